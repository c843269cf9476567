"""Dispatches of one queue that are awaited at the same time: they share calls."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable

from queasy.errors import InvalidInput, Unanswered
from queasy.store.command import Command
from queasy.store.commands import QueueCommands
from queasy.store.idempotency import Callers
from queasy.store.records import Dispatched, DispatchItem

__all__ = ["CHUNK_BYTES", "CHUNK_JOBS", "DispatchCoalescer"]

# One call's worth of dispatches: what the server does without others noticing.
CHUNK_JOBS = 1000
CHUNK_BYTES = 4 * 1024 * 1024
# More than these, who come again when they are told, are sent in two halves: the server has the one
# while the other is told.
SPLIT_ABOVE_JOBS = 50
# Seconds that it takes to wake one of them, and to hear from it again. A call that takes longer
# than that for all of them is better shared by all.
WAKE_UP_SECONDS = 15e-6

Run = Callable[[Command[list[Dispatched]]], Awaitable[list[Dispatched]]]
# A tuple, for there is one for each job.
_Waiting = tuple[QueueCommands, DispatchItem, asyncio.Future[Dispatched]]


class DispatchCoalescer:
    """One call at a time, with all who came since the one before, in the order they came.

    Who finds nobody sends his own, in his own task: there is nobody yet to share with, and a task
    more would cost what the rest does. Others who come meanwhile are sent for by a task that none
    of them can cancel. Where calls take long, and the last who came first did not stay alone, the
    next is sent for in the same way: with those who come in the same pass of the loop.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Waiting] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._busy = False
        """Somebody is sending; if not, nobody waits."""
        self._crowded = False
        """Who finds nobody had better wait for others."""
        self._took = 0.0
        """Seconds of the last call."""
        self._crowd = self._left = 0
        """The most of one call since nobody was there; and who stayed behind the last one."""
        self._told = self._told_before = 0
        """How many of the last call are told now, and of the one before."""
        self._over: asyncio.Future[None] | None = None
        """For those who ask: the call that is under way."""
        # One caller for all: should a call that was given up arrive behind the next, the server
        # knows by its number that it is too late.
        self._callers = Callers()

    def dispatch(self, commands: QueueCommands, item: DispatchItem) -> Awaitable[Dispatched]:
        """What became of it; raises what stood in the way."""
        if self._busy or self._crowded:
            return self._stand_in_line(commands, item)
        return self._send_alone(commands, item)

    def _stand_in_line(
        self, commands: QueueCommands, item: DispatchItem
    ) -> asyncio.Future[Dispatched]:
        done: asyncio.Future[Dispatched] = self._loop.create_future()
        self._waiting.append((commands, item, done))
        if not self._busy:
            self._busy = True
            self._sender = self._loop.create_task(self._send_all())
        return done

    async def _send_alone(self, commands: QueueCommands, item: DispatchItem) -> Dispatched:
        if self._busy:  # by now
            return await self._stand_in_line(commands, item)
        self._busy = True
        caller = self._callers.take()
        caller.calls += 1
        began = time.perf_counter()
        try:
            (result,) = await self._run(commands.dispatch((item,), (caller.id, caller.calls)))
            return result
        finally:
            self._took = time.perf_counter() - began
            self._callers.give_back(caller)
            self._told, self._crowd = 1, 1 + len(self._waiting)
            self._go_on()

    async def emptied(self) -> None:
        """Until all who stand in line now have been sent; others may come as fast as these go."""
        if self._busy:
            self._over = self._over or self._loop.create_future()
            await asyncio.wait([self._over, *(done for _, _, done in self._waiting)])

    async def _call(self, commands: QueueCommands, items: list[DispatchItem]) -> list[Dispatched]:
        caller = self._callers.take()
        caller.calls += 1
        began = time.perf_counter()
        try:
            return await self._run(commands.dispatch(items, (caller.id, caller.calls)))
        finally:
            self._took = time.perf_counter() - began
            self._callers.give_back(caller)

    def _go_on(self) -> None:
        """A call is over, however it ended: the next, or nobody."""
        self._tell_that_it_is_over()
        while self._waiting and self._waiting[0][2].done():
            self._waiting.popleft()
        self._sender = None
        if self._waiting and self._loop.is_running():  # not when what it left behind is cleared up
            self._sender = self._loop.create_task(self._send_all())
        else:
            self._crowded = self._crowd > 1 and not self._is_quick_for(self._crowd)
            self._crowd = self._left = self._told = self._told_before = 0
            self._busy = False

    async def _send_all(self) -> None:
        """Sends what stands in line, in order, until nobody does."""
        try:
            while batch := self._next_batch() or await self._who_come_again():
                await self._send(batch)
                self._tell_that_it_is_over()
        finally:
            self._go_on()

    async def _who_come_again(self) -> list[_Waiting]:
        """A crowd has one pass of the loop to be told, and one to come again."""
        if self._told > SPLIT_ABOVE_JOBS and self._is_quick_for(self._told):
            for _ in range(2):
                await asyncio.sleep(0)
            self._told_before, self._told = self._told, 0
        return self._next_batch()

    def _tell_that_it_is_over(self) -> None:
        over, self._over = self._over, None
        if over is not None and not over.done():
            over.set_result(None)

    def _next_batch(self) -> list[_Waiting]:
        """Without who was cancelled before he was sent."""
        batch: list[_Waiting] = []
        size, most = 0, min(CHUNK_JOBS, self._share())
        while self._waiting and len(batch) < most:
            _, item, done = waiting = self._waiting[0]
            if not done.done():
                size += len(item.payload)
                if batch and size > CHUNK_BYTES:
                    break
                batch.append(waiting)
            self._waiting.popleft()
        self._crowd, self._left = max(self._crowd, len(batch)), len(self._waiting)
        return batch

    def _share(self) -> int:
        """How many go with the next call: all, or half of those who come again and again."""
        come_again = 0 < self._told_before <= 2 * (len(self._waiting) - self._left)
        there_are = len(self._waiting) + self._told
        if come_again and there_are > SPLIT_ABOVE_JOBS and self._is_quick_for(there_are):
            return -(-there_are // 2)
        return there_are

    def _is_quick_for(self, crowd: int) -> bool:
        return self._took < crowd * WAKE_UP_SECONDS

    async def _send(self, batch: list[_Waiting]) -> None:
        self._told_before, self._told = self._told, 0
        try:
            results = await self._call(batch[0][0], [item for _, item, _ in batch])
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
            self._told = len(batch)
            self._loop.call_soon(_tell, batch, results)  # when the next call has left

    async def _send_each(self, batch: list[_Waiting]) -> None:
        left = deque(batch)
        try:
            while left:
                await self._send([left.popleft()])
        finally:
            self._waiting.extendleft(reversed(left))  # interrupted: these are the next


def _tell(batch: list[_Waiting], results: list[Dispatched]) -> None:
    for (_, _, done), result in zip(batch, results, strict=True):
        if not done.done():  # its caller may have been cancelled
            done.set_result(result)


def _fail(batch: list[_Waiting], error: Exception) -> None:
    for _, _, done in batch:
        if not done.done():
            done.set_exception(error)
