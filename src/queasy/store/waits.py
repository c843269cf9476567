"""Calls that wait on the server: callers that wait for the same key share one call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from queasy.store.command import WaitForItem

__all__ = ["SharedWaits"]


class _SharedWait:
    """One call to the server, and how many callers wait for its answer."""

    def __init__(self, call: asyncio.Future[Any]) -> None:
        self.call = call
        self._callers = 0
        # Its error is of no interest if no caller waits any more.
        call.add_done_callback(lambda done: done.cancelled() or done.exception())

    def join(self) -> None:
        """One more caller waits."""
        self._callers += 1

    def leave(self) -> bool:
        """The last caller that leaves ends the call, which has taken nothing; whether it was."""
        self._callers -= 1
        if not self._callers:
            self.call.cancel()
        return not self._callers


class SharedWaits:
    """The calls of one event loop. They need one connection for each key, not for each caller."""

    def __init__(self, run: Callable[[WaitForItem], Awaitable[Any]]) -> None:
        self._run = run
        self._waits: dict[str, _SharedWait] = {}

    async def wait(self, command: WaitForItem, seconds: float) -> None:
        """Returns when the list may have an element, or after some seconds."""
        (key,) = command.keys
        shared = self._waits.get(key)
        if shared is None or shared.call.done():
            shared = self._waits[key] = _SharedWait(asyncio.ensure_future(self._run(command)))
        shared.join()
        try:
            done, _ = await asyncio.wait([shared.call], timeout=seconds)
            for call in done:
                if not call.cancelled():  # cancelled: the store was closed
                    call.result()
        finally:
            if shared.leave() and self._waits.get(key) is shared:
                del self._waits[key]

    def close(self) -> None:
        """Ends every call; its callers try once more, and find the store closed."""
        for shared in self._waits.values():
            shared.call.cancel()
        self._waits.clear()
