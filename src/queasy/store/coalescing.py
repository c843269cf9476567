"""Dispatches of one queue that are awaited at the same time share calls."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable

from queasy.errors import InvalidInput, Unanswered
from queasy.store.command import Command
from queasy.store.commands import QueueCommands
from queasy.store.idempotency import Caller
from queasy.store.records import Dispatched, DispatchItem

__all__ = ["CHUNK_BYTES", "CHUNK_JOBS", "DispatchCoalescer"]

# The most that one call dispatches. A larger call would delay the server's other clients.
CHUNK_JOBS = 1000
CHUNK_BYTES = 4 * 1024 * 1024
# If more than SPLIT_ABOVE_JOBS callers dispatch again as soon as they are answered, the coalescer
# sends their dispatches in two halves. The server works on one half while the event loop wakes the
# callers of the other half.
SPLIT_ABOVE_JOBS = 50
# Roughly the seconds from waking one caller until it has dispatched again. If a call takes longer
# than waking all callers, one call for all of them is better than two halves.
WAKE_UP_SECONDS = 15e-6

Run = Callable[[Command[list[Dispatched]]], Awaitable[list[Dispatched]]]
# A tuple, because one is made for each job.
_Waiting = tuple[QueueCommands, DispatchItem, asyncio.Future[Dispatched]]


class DispatchCoalescer:
    """Sends one call at a time, with all dispatches made since the previous call, in their order.

    If no call is in flight, the caller sends its dispatch itself, in its own task. There is nothing
    to share yet, and another task would double the cost. While that call is in flight, further
    dispatches wait. A sender task sends them together. No single caller can cancel the sender task.

    If calls are slow, and several callers dispatched together last time, the sender task also sends
    the first dispatch. Its call then includes all dispatches of one pass of the event loop.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Waiting] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._busy = False
        """A call is in flight, or about to be sent. If False, no dispatch waits."""
        self._expects_others = False
        """A dispatch that finds no call in flight waits for others of the same event loop pass."""
        self._last_call_seconds = 0.0
        self._largest_batch = 0
        """Jobs in the largest call since the coalescer was last idle."""
        self._left_over = 0
        """Dispatches that did not fit into the last call."""
        self._answered = self._answered_before = 0
        """How many callers the last call answered, and how many the call before it did."""
        self._call_ended: asyncio.Future[None] | None = None
        """Done when the call in flight ends; made when `wait_until_sent` needs it."""
        # All calls have one caller id, and their numbers grow. If an abandoned call reaches the
        # server after the next call, its lower number shows the server that it is too late.
        self._caller_id = Caller().id
        self._calls = 0

    def dispatch(self, commands: QueueCommands, item: DispatchItem) -> Awaitable[Dispatched]:
        """The result of the dispatch; raises the error if it fails."""
        if self._busy or self._expects_others:
            return self._append(commands, item)
        return self._send_alone(commands, item)

    def _append(self, commands: QueueCommands, item: DispatchItem) -> asyncio.Future[Dispatched]:
        done: asyncio.Future[Dispatched] = self._loop.create_future()
        self._waiting.append((commands, item, done))
        if not self._busy:
            self._busy = True
            self._sender = self._loop.create_task(self._send_all())
        return done

    async def _send_alone(self, commands: QueueCommands, item: DispatchItem) -> Dispatched:
        if self._busy:  # a call began after `dispatch` returned
            return await self._append(commands, item)
        self._busy = True
        self._calls += 1
        began = time.perf_counter()
        try:
            (result,) = await self._run(commands.dispatch((item,), (self._caller_id, self._calls)))
            return result
        finally:
            self._last_call_seconds = time.perf_counter() - began
            self._answered, self._largest_batch = 1, 1 + len(self._waiting)
            self._continue()

    async def wait_until_sent(self) -> None:
        """Waits until all dispatches made before now are answered or have failed.

        It does not wait for later dispatches: there may always be more.
        """
        if self._busy:
            self._call_ended = self._call_ended or self._loop.create_future()
            await asyncio.wait([self._call_ended, *(done for _, _, done in self._waiting)])

    async def _call(self, commands: QueueCommands, items: list[DispatchItem]) -> list[Dispatched]:
        self._calls += 1
        began = time.perf_counter()
        try:
            return await self._run(commands.dispatch(items, (self._caller_id, self._calls)))
        finally:
            self._last_call_seconds = time.perf_counter() - began

    def _continue(self) -> None:
        """Starts the sender task if dispatches wait. Runs after a call, whatever its result."""
        self._signal_call_ended()
        while self._waiting and self._waiting[0][2].done():
            self._waiting.popleft()
        self._sender = None
        if self._waiting and self._loop.is_running():  # False while a closed loop cleans up
            self._sender = self._loop.create_task(self._send_all())
        else:
            shared = self._largest_batch > 1
            self._expects_others = shared and not self._is_fast_for(self._largest_batch)
            self._largest_batch = self._left_over = 0
            self._answered = self._answered_before = 0
            self._busy = False

    async def _send_all(self) -> None:
        """Sends the waiting dispatches, in order, until there are none."""
        try:
            while batch := self._next_batch() or await self._next_batch_of_returning_callers():
                await self._send(batch)
                self._signal_call_ended()
        finally:
            self._continue()

    async def _next_batch_of_returning_callers(self) -> list[_Waiting]:
        """The next dispatches. If many callers were just answered, lets them dispatch again first.

        The event loop needs one pass to wake these callers, and one in which they dispatch.
        """
        if self._answered > SPLIT_ABOVE_JOBS and self._is_fast_for(self._answered):
            for _ in range(2):
                await asyncio.sleep(0)
            self._answered_before, self._answered = self._answered, 0
        return self._next_batch()

    def _signal_call_ended(self) -> None:
        ended, self._call_ended = self._call_ended, None
        if ended is not None and not ended.done():
            ended.set_result(None)

    def _next_batch(self) -> list[_Waiting]:
        """The next dispatches to send, without those that were cancelled."""
        batch: list[_Waiting] = []
        size, most = 0, min(CHUNK_JOBS, self._batch_limit())
        while self._waiting and len(batch) < most:
            _, item, done = waiting = self._waiting[0]
            if not done.done():
                size += len(item.payload)
                if batch and size > CHUNK_BYTES:
                    break
                batch.append(waiting)
            self._waiting.popleft()
        self._largest_batch = max(self._largest_batch, len(batch))
        self._left_over = len(self._waiting)
        return batch

    def _batch_limit(self) -> int:
        """How many dispatches the next call takes: all, or half if their callers keep returning."""
        # At least half of the callers answered by the call before the last have dispatched again.
        returning = 0 < self._answered_before <= 2 * (len(self._waiting) - self._left_over)
        callers = len(self._waiting) + self._answered
        if returning and callers > SPLIT_ABOVE_JOBS and self._is_fast_for(callers):
            return -(-callers // 2)
        return callers

    def _is_fast_for(self, callers: int) -> bool:
        """Whether the last call took less time than it takes to wake that many callers."""
        return self._last_call_seconds < callers * WAKE_UP_SECONDS

    async def _send(self, batch: list[_Waiting]) -> None:
        self._answered_before, self._answered = self._answered, 0
        try:
            results = await self._call(batch[0][0], [item for _, item, _ in batch])
        except InvalidInput as error:
            if len(batch) == 1:
                _fail(batch, error)
            else:  # the server refused one of them, and so the whole call
                await self._send_each(batch)
        except Exception as error:
            _fail(batch, error)
        except BaseException:  # the loop is shutting down and cancels every task
            for waiting in batch:
                commands, item, _ = waiting
                what = f"queue {commands.keys.name!r}: the dispatch of job {item.id!r}"
                why = f"{what} was interrupted; the job may have been dispatched"
                _fail([waiting], Unanswered(why))
            raise
        else:
            self._answered = len(batch)
            self._loop.call_soon(_answer, batch, results)  # so that the next call is sent first

    async def _send_each(self, batch: list[_Waiting]) -> None:
        left = deque(batch)
        try:
            while left:
                await self._send([left.popleft()])
        finally:
            self._waiting.extendleft(reversed(left))  # if interrupted, these are sent next


def _answer(batch: list[_Waiting], results: list[Dispatched]) -> None:
    for (_, _, done), result in zip(batch, results, strict=True):
        if not done.done():  # its caller may have been cancelled
            done.set_result(result)


def _fail(batch: list[_Waiting], error: Exception) -> None:
    for _, _, done in batch:
        if not done.done():
            done.set_exception(error)
