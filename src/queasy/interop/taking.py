"""Takes items of a foreign queue, and waits for some."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any

from queasy.errors import SERVER_AWAY
from queasy.interop.dialect import Dialect, Held, Taken
from queasy.operation import Operation, Sleep, Undoable
from queasy.operations import REFUSED_RETRY_SECONDS
from queasy.store.store import AsyncStore, SyncStore

__all__ = ["take_one", "take_some"]

log = logging.getLogger("queasy")


def take_one(
    dialect: Dialect, store: AsyncStore | SyncStore, seconds: float, timeout: float | None
) -> Operation[Held | None]:
    """The next item; None if none came within `timeout` seconds (None: no limit)."""
    taken: Taken = yield from take_some(dialect, lambda: dialect.take(seconds), store, timeout)
    return taken.held


def take_some(
    dialect: Dialect,
    attempt: Callable[[], Undoable],
    store: AsyncStore | SyncStore,
    timeout: float | None,
) -> Operation[Any]:
    """The answer to the first attempt that took something; the last answer if none did within
    `timeout` seconds (None: no limit). Answers have `count` and `more`, as `Taken` has.

    Taking and leasing are one call. The wait before it takes nothing, so a caller that dies or is
    cancelled meanwhile leaves the queue as it was. If the answer to a call is lost, what that call
    took is given back.

    If the server was reached before, the operation waits while the server is unreachable.
    """
    give_up_at = math.inf if timeout is None else time.monotonic() + timeout
    logged: type[Exception] | None = None
    while True:
        left = give_up_at - time.monotonic()
        last = left <= 0
        try:
            taken = yield attempt()
            logged = None
            if taken.count:
                return taken
            if taken.more:
                continue
            if last:
                return taken
            yield dialect.wait(min(left, store.longest_wait))
        except SERVER_AWAY as away:
            if last or not store.was_reached:
                raise
            if type(away) is not logged:
                log.warning("waiting for an item of %s: %s", dialect.queue, away)
            logged = type(away)
            yield Sleep(min(left, REFUSED_RETRY_SECONDS))
