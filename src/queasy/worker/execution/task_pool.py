"""Async handlers in shared asyncio tasks.

A task for each job would cost more than everything else a worker does for it. So handlers that do
not await run one after another in the same task. A handler that awaits keeps its task, and the rest
go on in the next one. Nothing that a handler leaves in its task can reach another handler.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextvars import copy_context
from sys import getrefcount
from time import monotonic
from typing import Any, Generic, TypeVar
from weakref import getweakrefcount

__all__ = ["TaskPool"]

T = TypeVar("T")

# How long handlers that do not await may occupy the event loop in one pass, in seconds.
MAX_SECONDS_PER_PASS = 0.005
# Before Python 3.13 a task that is not `cancelling()` any more may still receive a cancellation.
MAY_CANCEL_LATE = sys.version_info < (3, 13)


class TaskPool(Generic[T]):
    """Calls `perform` for each item that was added. `perform` must not raise.

    `most_to_begin(waiting)` is how many items of those that wait may begin now. The pool asks
    before it starts tasks. A task whose handler did not await takes the next item without asking.
    """

    def __init__(
        self,
        perform: Callable[[T, asyncio.Task[Any]], Coroutine[Any, Any, None]],
        most_to_begin: Callable[[Sequence[T]], int] = len,
    ) -> None:
        self._perform = perform
        self._most_to_begin = most_to_begin
        self._context = copy_context()
        self._waiting: deque[T] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._next: asyncio.Handle | None = None
        self._pass = 0
        self._tasks_to_start = 1

    def add(self, items: Iterable[T]) -> None:
        """Queue items. The pool performs them after the next `go`, in order."""
        self._waiting.extend(items)

    @property
    def waiting(self) -> Sequence[T]:
        """The items that wait to be performed."""
        return self._waiting

    def go(self, *, at_once: bool = False) -> None:
        """Start performing: now if `at_once`, else in the next pass of the event loop.

        The later start lets calls to the server leave first, so that the server works meanwhile. If
        a start is planned already, nothing changes.
        """
        if self._waiting and self._next is None:
            self._tasks_to_start = 1
            if at_once:
                self._start_tasks()
            else:
                self._start_tasks_soon()

    def _start_tasks_soon(self) -> None:
        # In the pool's own context: the caller may be a handler with a context of its own.
        loop = asyncio.get_running_loop()
        self._next = loop.call_soon(self._start_tasks, context=self._context)

    def _start_tasks(self) -> None:
        """Start tasks, and run again in the next pass: by then they await, or have ended."""
        self._next = None
        self._pass += 1
        if not self._waiting or not (most := self._most_to_begin(self._waiting)):
            return
        for _ in range(min(self._tasks_to_start, most)):
            task = asyncio.create_task(self._work(), context=self._context.copy())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        # If items are left in the next pass, the handlers of these tasks await: start more tasks.
        self._tasks_to_start *= 2
        self._start_tasks_soon()

    async def _work(self) -> None:
        """Perform items until one awaits, leaves something in the task, or time is up."""
        task = asyncio.current_task()
        assert task is not None
        begun_in, clean = self._pass, copy_context()
        # A handler may leave a reference to its task, such as a timer or a generator with a timeout
        # in it. The timeout would later cancel another handler that runs in the same task.
        references, weak_references = getrefcount(task), getweakrefcount(task)
        may_cancel_late = MAY_CANCEL_LATE and hasattr(task, "_must_cancel")
        over_at = monotonic() + MAX_SECONDS_PER_PASS
        waiting, perform = self._waiting, self._perform
        while waiting:
            await perform(waiting.popleft(), task)
            awaited = self._pass != begun_in
            if awaited or task.cancelling() or copy_context() != clean:
                break
            if getrefcount(task) != references or getweakrefcount(task) != weak_references:
                break
            if may_cancel_late and task._must_cancel:  # pyright: ignore
                break
            if monotonic() > over_at:
                break
        self.go()

    def withdraw(self, is_late: Callable[[T], bool]) -> list[T]:
        """Remove and return the first items that wait, while they are late."""
        late: list[T] = []
        while self._waiting and is_late(self._waiting[0]):
            late.append(self._waiting.popleft())
        return late

    def close(self) -> None:
        """Drop the items that have not started."""
        self._waiting.clear()
