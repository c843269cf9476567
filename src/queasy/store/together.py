"""Dispatches of one queue that are awaited at the same time: they share calls."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec

from queasy.errors import InvalidInput, Unanswered
from queasy.store.callers import Callers
from queasy.store.command import Command
from queasy.store.commands import Commands
from queasy.store.records import Dispatched, DispatchItem

__all__ = ["CHUNK_BYTES", "CHUNK_JOBS", "Line"]

# One call's worth of dispatches: what the server does without others noticing.
CHUNK_JOBS = 1000
CHUNK_BYTES = 4 * 1024 * 1024

Run = Callable[[Command[list[Dispatched]]], Awaitable[list[Dispatched]]]


class _Waiting(msgspec.Struct):
    commands: Commands
    item: DispatchItem
    done: asyncio.Future[Dispatched]


class Line:
    """One call at a time, with all who came since the one before, in the order they came.

    Who finds nobody sends his own, in his own task: there is nobody yet to share with, and a task
    more would cost what the rest does. Others who come meanwhile are sent for by a task that none
    of them can cancel.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Waiting] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._free = asyncio.Event()
        """Nobody is sending, so nobody waits."""
        self._free.set()
        self._over: asyncio.Future[None] | None = None
        """For those who ask: the call that is under way."""
        # One caller for all: should a call that was given up arrive behind the next, the server
        # knows by its number that it is too late.
        self._callers = Callers()

    async def dispatch(self, commands: Commands, item: DispatchItem) -> Dispatched:
        """What became of it; raises what stood in the way."""
        if not self._free.is_set():
            waiting = _Waiting(commands, item, self._loop.create_future())
            self._waiting.append(waiting)
            return await waiting.done
        self._free.clear()
        try:
            return (await self._call(commands, [item]))[0]
        finally:
            self._go_on()

    async def emptied(self) -> None:
        """Until all who stand in line now have been sent; others may come as fast as these go."""
        if not self._free.is_set():
            self._over = self._over or self._loop.create_future()
            await asyncio.wait([self._over, *(waiting.done for waiting in self._waiting)])

    async def _call(self, commands: Commands, items: list[DispatchItem]) -> list[Dispatched]:
        caller = self._callers.take()
        caller.calls += 1
        try:
            return await self._run(commands.dispatch(items, (caller.id, caller.calls)))
        finally:
            self._callers.give_back(caller)

    def _go_on(self) -> None:
        """A call is over, however it ended: the next, or nobody."""
        self._tell_that_it_is_over()
        while self._waiting and self._waiting[0].done.done():
            self._waiting.popleft()
        self._sender = None
        if self._waiting and self._loop.is_running():  # not when what it left behind is cleared up
            self._sender = self._loop.create_task(self._send_all())
        else:
            self._free.set()

    async def _send_all(self) -> None:
        """Sends what stands in line, in order, until nobody does."""
        try:
            while batch := self._next_batch():
                await self._send(batch)
                self._tell_that_it_is_over()
        finally:
            self._go_on()

    def _tell_that_it_is_over(self) -> None:
        over, self._over = self._over, None
        if over is not None and not over.done():
            over.set_result(None)

    def _next_batch(self) -> list[_Waiting]:
        """Without who was cancelled before he was sent."""
        batch: list[_Waiting] = []
        size = 0
        while self._waiting and len(batch) < CHUNK_JOBS:
            waiting = self._waiting[0]
            if not waiting.done.done():
                size += len(waiting.item.payload)
                if batch and size > CHUNK_BYTES:
                    break
                batch.append(waiting)
            self._waiting.popleft()
        return batch

    async def _send(self, batch: list[_Waiting]) -> None:
        try:
            results = await self._call(batch[0].commands, [waiting.item for waiting in batch])
        except InvalidInput as error:
            if len(batch) == 1:
                _fail(batch, error)
            else:  # one is refused: the others must not suffer for it
                await self._send_each(batch)
        except Exception as error:
            _fail(batch, error)
        except BaseException:  # somebody cancels whatever runs in this loop
            _fail(batch, Unanswered("dispatch: interrupted; it may have been carried out"))
            raise
        else:
            for waiting, result in zip(batch, results, strict=True):
                if not waiting.done.done():  # its caller may have been cancelled
                    waiting.done.set_result(result)

    async def _send_each(self, batch: list[_Waiting]) -> None:
        left = deque(batch)
        try:
            while left:
                await self._send([left.popleft()])
        finally:
            self._waiting.extendleft(reversed(left))  # interrupted: these are the next


def _fail(batch: list[_Waiting], error: Exception) -> None:
    for waiting in batch:
        if not waiting.done.done():
            waiting.done.set_exception(error)
