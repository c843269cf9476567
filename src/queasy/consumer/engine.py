"""Runs a consumer: carries out what its state decides, in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from queasy.consumer.leases import Flag, LeaseRecord
from queasy.consumer.link import Link
from queasy.consumer.state import (
    IDLE_LEASE,
    Action,
    Bump,
    ConsumerQueue,
    ConsumerState,
    ForwardWakeUp,
    Join,
    Poll,
    Reconcile,
    StandDown,
)
from queasy.dispatch import new_client_id
from queasy.errors import SERVER_AWAY
from queasy.job import Job
from queasy.outcomes import Release
from queasy.store.commands import QueueCommands
from queasy.store.records import Ending
from queasy.store.store import AsyncStore
from queasy.worker_record import WorkerRecord

__all__ = ["Engine"]

log = logging.getLogger("queasy")

Work = Callable[[], Coroutine[Any, Any, None]]


class Program(Protocol):
    """The program's side of a consumer, perhaps in other threads."""

    def flag(self) -> Flag:
        """A new event that is not set."""
        ...

    def notify(self) -> None:
        """A job is ready, or there will be none."""
        ...

    def post(self, call: Callable[..., None], *args: Any) -> None:
        """Make a call in the event loop of the engine."""
        ...


class Engine:
    """The queues of a consumer, one heartbeat for each, and jobs that its program has not begun."""

    def __init__(
        self,
        store: AsyncStore,
        queues: Sequence[QueueCommands],
        concurrency: int,
        lease: float,
        program: Program,
    ) -> None:
        self._store = store
        self._lease = lease
        self._program = program
        self._concurrency = concurrency
        self.id = f"~~{new_client_id()}"
        self._links = [
            Link(
                ConsumerQueue(index, commands.keys.name, lease), commands, store, self.id,
                self._make_record, self._changed,
            )
            for index, commands in enumerate(queues)
        ]  # fmt: skip
        self._state = ConsumerState(concurrency, [link.state for link in self._links])
        sizes = {commands.keys.name: 1 for commands in queues}
        self._worker_record = WorkerRecord.here(self.id, 0, concurrency, sizes, lease).pack()
        self._wanted = False
        self.stopped = False
        """The program wants no more jobs."""
        self.problem: Exception | None = None
        """Why there are no more jobs, unless the program stopped the consumer."""
        self._ready: deque[tuple[LeaseRecord, QueueCommands]] = deque()
        """Jobs that the program has not begun."""
        self._due = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pump: asyncio.Task[None] | None = None

    # Called by the program

    async def start(self) -> None:
        """Register with all queues; raises if that is not possible."""
        await self._store.connect()
        joins = map(self._join, self._links)
        problems = await asyncio.gather(*joins, return_exceptions=True)
        for problem in problems:
            if problem is not None:
                await self.close()
                raise problem
        self._pump = asyncio.create_task(self._run(), name=f"queasy consumer {self.id}")

    def next_job(self) -> tuple[LeaseRecord, QueueCommands] | None:
        """A job that the program begins now; None if none is ready. Any thread may call this.

        Jobs whose lease is lost, or may be, are left out: another client may have them.
        """
        while not self.stopped and (ready := self._pop()):
            lease, _ = ready
            if lease.unconfirmed:
                lease.report(Ending(*lease.key, Release()))
            elif not lease.over:
                return ready
        return None

    def _pop(self) -> tuple[LeaseRecord, QueueCommands] | None:
        try:
            return self._ready.popleft()
        except IndexError:
            return None

    def want(self, wanted: bool) -> None:
        """The program asks for a job, or does not ask any more."""
        self._wanted = wanted
        if self._ready or self.stopped or self.problem:
            self._program.notify()
        self._changed()

    def stop(self) -> None:
        """Take no more jobs, and release those that the program has not begun."""
        self.refuse_new_jobs()
        while ready := self._pop():
            lease, _ = ready
            lease.report(Ending(*lease.key, Release()))
        for link in self._links:
            link.state.stop_waiting()
        self._program.notify()
        self._changed()

    def refuse_new_jobs(self) -> None:
        """`next_job` returns None from now on. Any thread may call this; call `stop` afterwards."""
        self.stopped = True

    async def close(self) -> None:
        """Release all leases that have not ended, and unregister."""
        self.stopped = True
        tasks = self._cancel_tasks()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in self._links:
            if not link.state.joined:
                link.abandon()
        await asyncio.gather(*[link.leave() for link in self._links if link.state.joined])

    def abandon(self, problem: Exception) -> None:
        """End at once, without a call to the server: the leases expire."""
        self.end_with(problem)
        self._cancel_tasks()
        for link in self._links:
            link.abandon()

    def end_with(self, problem: Exception) -> None:
        """Take no more jobs. The program's loop raises this error."""
        self.problem = self.problem or problem
        self._program.notify()

    def _cancel_tasks(self) -> list[asyncio.Task[None]]:
        tasks = [*self._tasks, *([self._pump] if self._pump else [])]
        for task in tasks:
            task.cancel()
        return tasks

    # Called by leases, in any thread

    def ended(self, lease: LeaseRecord) -> None:
        """The server has answered a call that ended this lease."""
        self._program.post(self._end, lease, None)

    def report(self, lease: LeaseRecord, ending: Ending) -> None:
        """Have the consumer end this lease: the program could not."""
        self._program.post(self._end, lease, ending)

    def _end(self, lease: LeaseRecord, ending: Ending | None) -> None:
        link = self._links[lease.queue.index]
        if ending is None:
            link.ended(lease)
        else:
            link.report(lease, ending)
        self._changed()

    # The loop

    def _changed(self) -> None:
        self._due.set()

    def _make_record(self, job: Job, link: Link) -> LeaseRecord:
        return LeaseRecord(job, link.state, self, self._program.flag())

    async def _run(self) -> None:
        """Carry out what is due, until cancelled."""
        try:
            while True:
                self._due.clear()
                left = self._carry_out_due() - time.monotonic()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if left == math.inf else max(0.0, left)):
                        await self._due.wait()
        except Exception as problem:  # nothing keeps the leases alive any more
            log.exception("consumer %s: ended by an error", self.id)
            self.abandon(problem)

    def _carry_out_due(self) -> float:
        """Carry out what is due; returns when something is due next."""
        now = time.monotonic()
        self._warn_of_risk(now)
        wanted = self._wanted and not (self._ready or self.stopped or self.problem)
        for action in self._state.decide(now, wanted=wanted):
            self._carry_out(action)
        return self._state.next_alarm(now)

    def _warn_of_risk(self, now: float) -> None:
        """Set `should_stop` of every lease that the server did not confirm in time."""
        for link in self._links:
            if link.state.at_risk_at() <= now:
                for lease in link.leases.values():
                    lease.note_unconfirmed()

    def _carry_out(self, action: Action) -> None:
        link, now = self._links[action.queue.index], time.monotonic()
        match action:
            case Bump(lease=lease):
                work = partial(link.bump, lease)
            case Join():
                link.state.begin(now)
                work = partial(self._exclusively, link, partial(self._join, link))
            case Reconcile():
                link.state.begin(now)
                work = partial(self._exclusively, link, link.reconcile)
            case Poll(limit=limit, beside=beside):
                link.state.begin(now, limit)
                work = partial(self._exclusively, link, partial(self._poll, link, limit, beside))
            case ForwardWakeUp():
                link.state.give_up_turn()
                work = link.forward_wake_up
            case StandDown():
                link.state.give_up_turn()
                work = link.stand_down
        task = asyncio.create_task(self._perform(link, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _perform(self, link: Link, work: Work) -> None:
        try:
            await work()
        except SERVER_AWAY as away:  # try again later
            link.note_problem(away)
            link.state.mark_stale()
            link.state.pause(time.monotonic())
        except Exception as problem:
            self.end_with(problem)
        finally:
            self._changed()

    async def _exclusively(self, link: Link, work: Work) -> None:
        try:
            await work()
        finally:
            link.state.end()

    async def _join(self, link: Link) -> None:
        await link.join(self._worker_record, max(self._lease, IDLE_LEASE))

    async def _poll(self, link: Link, limit: int, beside: int) -> None:
        for lease in await link.poll(limit, beside, self._lease):
            self._ready.append((lease, link.commands))
        if self.stopped:
            self.stop()
        elif self._ready:
            self._wanted = False
            self._program.notify()
