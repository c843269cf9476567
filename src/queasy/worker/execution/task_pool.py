"""Async handlers, in tasks.

A task for each job would cost more than all else that is done for it. So those that do not wait
run one after another in the same task; one that waits keeps the task for itself, and the others
go on in the next. Nothing a handler leaves behind in its task is there for another one.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

__all__ = ["Tasks"]

T = TypeVar("T")

# So long handlers that do not wait may keep the event loop from everything else.
TURN = 0.005


class Tasks(Generic[T]):
    """`perform` runs one of what was added, and raises nothing."""

    def __init__(
        self, perform: Callable[[T, asyncio.Task[Any]], Coroutine[Any, Any, None]]
    ) -> None:
        self._perform = perform
        self._context = contextvars.copy_context()
        self._waiting: deque[T] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._next: asyncio.Handle | None = None
        self._turn = 0
        self._abreast = 1

    def add(self, thing: T) -> None:
        """It is performed after the next `go`, in order."""
        self._waiting.append(thing)

    def go(self, *, at_once: bool = False) -> None:
        """Begins with the next pass of the loop; else with the one behind it, when what is to be
        sent is on its way, and the server works on it meanwhile.
        """
        if self._waiting and self._next is None:
            self._abreast = 1
            if at_once:
                self._begin()
            else:
                self._begin_soon()

    def _begin_soon(self) -> None:
        # Not in the context of whoever calls, which may be a handler's.
        loop = asyncio.get_running_loop()
        self._next = loop.call_soon(self._begin, context=self._context)

    def _begin(self) -> None:
        """Comes again as soon as the tasks it began wait, or have ended."""
        self._next = None
        self._turn += 1
        if not self._waiting:
            return
        for _ in range(min(self._abreast, len(self._waiting))):
            task = asyncio.create_task(self._work(), context=self._context.copy())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._abreast *= 2  # who comes here again has seen that they wait
        self._begin_soon()

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        turn, clean, known = self._turn, contextvars.copy_context(), _holders(task)
        over_at = time.monotonic() + TURN
        while self._waiting:
            await self._perform(self._waiting.popleft(), task)
            waited = self._turn != turn
            if waited or task.cancelling() or contextvars.copy_context() != clean:
                break
            if _holders(task) != known or getattr(task, "_must_cancel", False):
                break
            if time.monotonic() > over_at:
                break
        self.go()

    def close(self) -> None:
        """Nothing more is begun."""
        self._waiting.clear()


def _holders(task: asyncio.Task[Any]) -> tuple[int, int]:
    """How many know of a task: one that a handler leaves behind, such as a timer or a generator
    with a timeout in it, would cancel whoever has the task by then. Before Python 3.13 there may be
    a cancellation on its way, too, of a task that is not `cancelling()` any more.
    """
    return sys.getrefcount(task), weakref.getweakrefcount(task)
