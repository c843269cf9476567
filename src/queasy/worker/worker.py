"""A worker: one event loop that takes jobs, runs them and reports.

1. It looks at its queues in turn: by priority, then by what fits best. It takes no more than
   can start now.
2. Every job runs as a task (async handlers) or in a thread (plain functions).
3. What ended is reported with the next look: one round trip.
4. Runs past their deadline, or to be cancelled, are asked to end; what does not listen is the
   supervisor's business.
5. A suspect, a job that was there when a worker died, runs alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import math
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from queasy.errors import ProtocolError, QueasyError
from queasy.job import Job
from queasy.outcome import Release
from queasy.store.records import Ending, Taken
from queasy.store.store import AsyncStore
from queasy.worker.events import event
from queasy.worker.held import Held
from queasy.worker.line import LONGEST_PAUSE, Lease, Line, Reach
from queasy.worker.plan import Plan, Record
from queasy.worker.runs import ASKED, Runs, Units
from queasy.worker.table import Table

__all__ = ["Worker"]

# How long a queue whose job does not fit is passed over before others make room for it.
PATIENCE = 0.1
# Whether it still has one is asked again.
AGAIN = 1.0
# So long the server may take to hear what ended, when the worker stops.
REPORT = 5.0
# A look takes a moment; so long nobody of a lower priority takes what it may need.
MOMENT = 0.05
UNSEEN = 2.0
BEAT = 1.0
MOST_JOBS = 1000  # in one call


class Worker:
    """See above. `lost` is called once if the server takes this worker for dead."""

    def __init__(
        self,
        plan: Plan,
        store: AsyncStore,
        client: str,
        table: Table,
        *,
        capacity: int,
        safety: float,
        lost: Callable[[], None],
        most_jobs: int | None = None,
        worn_out: Callable[[], None] = lambda: None,
    ) -> None:
        self.client = client
        self.table = table
        reach = self._reach = Reach(client)
        self._late: set[asyncio.Task[None]] = set()
        """Those that wait for a queue to be mended."""
        self._lines = [
            Line(service, index, client, store, table, reach)
            for index, service in enumerate(plan.services)
        ]
        self._store = store
        self._capacity = capacity
        self._safety = safety
        self._lost = lost
        self._most_jobs = most_jobs
        self._worn_out = worn_out
        self._runs = Runs(table, capacity, self._fill_soon)
        self._held = Held(self._lines, self._runs, table, capacity)
        self._passes = table.passes
        self._reserved = Units()
        self._context = contextvars.copy_context()
        self._closing = False
        self._filling: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._beating: asyncio.TimerHandle | None = None
        self._talks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._started = False
        self._record = b""
        self._stop_by = math.inf

    # Coming and going

    async def start(self, record: Record, queues: Collection[str] | None = None) -> None:
        """Registers with every queue (or those named) and begins to take jobs."""
        self._record = record.pack()
        lines = [line for line in self._lines if queues is None or line.service.queue in queues]
        entered = await asyncio.gather(*(self._try_to_enter(line) for line in lines))
        problems = [problem for problem in entered if problem is not None]
        if problems and len(problems) == len(lines):
            raise problems[0]
        for line in lines:
            if not line.open:
                self._late.add(asyncio.create_task(self._enter_later(line)))
        self._started = True
        self._passes = self.table.passes
        self._beat()
        self._fill_soon()

    def _beat(self) -> None:
        """Also when nothing runs: a loop that does not turn reports nothing, either."""
        self.table.beat(time.monotonic())
        if self.table.passes != self._passes:  # what is due may now be for us, or for others
            self._passes = self.table.passes
            for line in self._lines:
                line.next_look = line.avoid_until = 0.0
            self._fill_soon()
        self._beating = asyncio.get_running_loop().call_later(BEAT, self._beat)

    async def _enter(self, line: Line) -> None:
        line.wanted = True
        await line.enter(self._record, partial(self._told, line))

    async def _try_to_enter(self, line: Line) -> ProtocolError | None:
        """A queue whose keys somebody spoilt; the others do not suffer for it."""
        try:
            await self._enter(line)
        except ProtocolError as problem:
            self._reach.failed(line.service.name, problem)
            return problem
        return None

    async def _enter_later(self, line: Line) -> None:
        """When somebody has mended it."""
        while not line.open:
            await asyncio.sleep(LONGEST_PAUSE)
            async with line.passing:
                if not line.wanted:
                    return  # an order to serve it tries again
                with contextlib.suppress(QueasyError):
                    await self._enter(line)
        self._reach.answered(line.service.name)
        self._fill_soon()

    async def serve(self, queue: str) -> None:
        """Takes jobs of this queue again."""
        lines = self._lines_of(queue)
        for line in lines:
            line.wanted = True
        self._changed.set()
        for line in lines:
            async with line.passing:
                if line.wanted and not line.open:
                    await self._enter(line)
        event("serving", queue=queue, client=self.client)
        self._fill_soon()

    async def unserve(self, queue: str, *, release: bool = False) -> None:
        """Takes no more jobs of this queue. Those it holds may end, or are released."""
        lines = self._lines_of(queue)
        for line in lines:
            line.wanted = line.open = False
        self._fill_soon()
        if release:
            self._held.release(lines)
            for run in self._runs:
                if run.line in lines:
                    self._runs.ask(run, "stop")
        for line in lines:
            await self._leave(line)
        event("not serving", queue=queue, client=self.client)

    async def _leave(self, line: Line) -> None:
        """Once nothing of the queue runs; unless somebody thinks better of it meanwhile."""
        while not line.wanted:
            line.open = False  # whoever was just entering has opened it
            await self._until(lambda: self._holds_nothing_of(line) or line.wanted)
            async with line.passing:
                if not line.wanted and not line.open and self._holds_nothing_of(line):
                    await line.leave()
                    return

    def _lines_of(self, queue: str) -> list[Line]:
        lines = [line for line in self._lines if line.service.queue == queue]
        if not lines:
            known = sorted({line.service.queue for line in self._lines})
            raise QueasyError(f"no handler for queue {queue!r}; there are {', '.join(known)}")
        return lines

    def _holds_nothing_of(self, line: Line) -> bool:
        busy = line.busy or any(run.line is line for run in self._runs)
        return not busy and not self._held.of(line)

    def close(self) -> None:
        """Takes nothing more. What runs goes on."""
        self._closing = True
        self._held.release(self._lines)
        self._fill_soon()

    async def drained(self) -> None:
        """Until nothing runs and all is reported, once it is closed."""
        await self._until(lambda: all(map(self._holds_nothing_of, self._lines)))

    async def stop(self, grace: float) -> bool:
        """Lets what runs end for `grace` seconds, then releases it; False if some went on."""
        self.hasten(grace)
        self.close()
        await self._while_before(lambda: bool(self._runs), lambda: self._stop_by)
        for run in self._runs:
            self._runs.ask(run, "stop")
        asked = time.monotonic() + ASKED
        await self._while_before(lambda: bool(self._runs), lambda: asked)
        reported = time.monotonic() + REPORT
        await self._while_before(lambda: any(line.busy for line in self._lines), lambda: reported)
        return not self._runs

    def hasten(self, grace: float) -> None:
        """A stop is to be over by then, if not before."""
        self._stop_by = min(self._stop_by, time.monotonic() + grace)
        self._changed.set()

    async def leave(self) -> None:
        """The queues forget this worker; what it still holds is released."""
        left = await asyncio.gather(
            *(line.leave() for line in self._lines if line.open), return_exceptions=True
        )
        for problem in left:  # of one queue; the others were left all the same
            if isinstance(problem, BaseException):
                raise problem

    def dispose(self) -> None:
        for timer in (self._filling, self._timer, self._beating):
            if timer is not None:
                timer.cancel()
        for task in self._late:
            task.cancel()
        for line in self._lines:
            line.abandon()
        self._closing = True
        self._runs.close()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def _while_before(
        self, condition: Callable[[], bool], deadline: Callable[[], float]
    ) -> None:
        while condition() and (left := deadline() - time.monotonic()) > 0:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()

    @property
    def ready(self) -> bool:
        """Whether it takes jobs, and the server answers."""
        return self._started and not self._closing and self._reach.answers

    @property
    def running(self) -> list[Job]:
        return [run.job for run in self._runs]

    # Taking

    def _fill_soon(self) -> None:
        if self._filling is None:
            # Not in the context of whoever calls, which may be a handler's.
            loop = asyncio.get_running_loop()
            self._filling = loop.call_soon(self._fill, context=self._context)

    def _fill(self) -> None:
        """Starts as many talks with queues as there is room and reason for."""
        self._filling = None
        self._changed.set()
        self._note_wear()
        self._held.start_suspect(busy=self._closing or bool(self._reserved.all))
        self._held.start_behind(self._accept, closing=self._closing)
        now = time.monotonic()
        reserved_above = -1
        for line in self._in_turn():
            priority = line.service.handler.options.priority
            if line.talking:
                if now - line.asked_at < MOMENT:  # what is free may be for its answer
                    reserved_above = max(reserved_above, priority)
                continue
            limit = 0
            if line.open and not self._closing and now >= max(line.next_look, line.avoid_until):
                if priority < reserved_above:
                    self._runs.full = True
                elif not (limit := self._room_for(line)) and self._passed_over(line, now):
                    reserved_above = max(reserved_above, priority + 1)
            owes = bool(line.endings) or self._must_compare(line)
            if not line.talking and (limit or (owes and now >= line.pause_until)):
                self._talk(line, limit)
            if not limit and not line.talking and self._oversleeps(line, now):
                line.talking, line.asked_at = True, 0.0
                self._in_background(self._stand_down(line))
            elif line.woken and not limit:
                line.pass_on()
        self._set_timer(now)
        self._runs.go()  # behind what is sent: the server works while these run

    def _oversleeps(self, line: Line, now: float) -> bool:
        """It said when it looks again; now there is no room, or it takes nothing more. Room that is
        kept for an answer may be there in a moment.
        """
        if not line.next_look or self._reserved.all or now < line.pause_until:
            return False
        stays = bool(self._runs) and (self._closing or not line.open)
        return stays or line.next_look <= now

    async def _stand_down(self, line: Line) -> None:
        try:
            await line.stand_down()
        finally:
            line.talking = False
            self._fill_soon()

    def _note_wear(self) -> None:
        if self._most_jobs is not None and self._runs.done >= self._most_jobs:
            self._most_jobs = None
            self._worn_out()

    def _in_turn(self) -> list[Line]:
        if len(self._lines) == 1:
            return self._lines
        pace = self._runs.pace
        return sorted(
            self._lines,
            key=lambda line: (
                -line.service.handler.options.priority,
                line.passed_over if line.starved else math.inf,
                line.size(pace),
                line.last_served,
            ),
        )

    def _room_for(self, line: Line) -> int:
        """How many jobs of the queue can start now."""
        if self._held.in_the_way or self._unsupervised():
            return 0
        pace, used, held = self._runs.pace, self._runs.used, self._reserved
        size, kind = line.size(pace), line.is_async
        # Half of what it could hold at a time: while one half runs, the other is on its way.
        most = min(MOST_JOBS, max(1, self._capacity // size // 2))
        if not used.all and not held.all:  # one fits into a worker with nothing to do
            return most
        part = int(self._capacity * pace.of(is_async=kind))
        free = min(
            self._capacity - used.all - held.all,
            part - used.of(is_async=kind) - held.of(is_async=kind),
        )
        return min(most, max(0, free // size))

    def _unsupervised(self) -> bool:
        """Nobody keeps the leases: what is taken now would be lost."""
        seen = self.table.supervised
        return bool(seen) and time.monotonic() - seen > UNSEEN

    def _passed_over(self, line: Line, now: float) -> bool:
        """Notes that a queue's job, if it has one, did not fit; after a while asks whether it
        has. True: nobody of the same or a lower priority is served until it fits.
        """
        self._runs.full = True
        if line.passed_over is None:
            line.passed_over = line.asked_due = now
        elif now - line.asked_due > (AGAIN if line.starved else PATIENCE):
            line.asked_due = now
            self._talk(line, 0, asks=True)
        return line.starved

    def _talk(self, line: Line, limit: int, *, asks: bool = False) -> None:
        line.talking, line.asked_at = True, time.monotonic() if limit else 0.0
        units = limit * line.size(self._runs.pace)
        self._reserved.add(line, units)
        self._in_background(self._converse(line, limit, units, asks=asks))

    async def _converse(self, line: Line, limit: int, units: int, *, asks: bool) -> None:
        over = False
        """The next one may have begun."""
        try:
            if limit or asks:
                taken = await line.take(limit, self._safety)
                line.starved = asks and taken.next_in == 0
                if not line.starved:
                    line.passed_over = None
                if limit:
                    line.last_served = time.monotonic()
                    self._note_pace(line, taken, limit)
                if limit > 1 and taken.count == limit:  # of one alone, it may be a suspect
                    over = True
                    await self._ask_for_more(line, taken)
                self._reserved.add(line, -units)
                units = 0
                self._taken(line, taken)
                if taken.state == "lost":
                    return
                if taken.count < limit:  # there is nothing more to ask for first
                    self._runs.go(at_once=True)
            elif line.endings:
                await line.report()
            if not over and self._must_compare(line):
                await self._compare(line)
        finally:
            self._reserved.add(line, -units)
            if not over:
                line.talking = False
            self._fill_soon()

    def _note_pace(self, line: Line, taken: Taken, limit: int) -> None:
        if taken.count == limit:  # there may be more
            self._runs.full = True
            if taken.settled and line.is_async and not self._runs:
                self._runs.pace.hasten()

    async def _ask_for_more(self, line: Line, taken: Taken) -> None:
        """Before anything is done with what was taken: the server works on it meanwhile."""
        line.arriving, line.talking = taken, False
        self._fill()
        await asyncio.sleep(0)  # for one pass of the loop, in which it is sent
        line.arriving = None

    def _taken(self, line: Line, taken: Taken) -> None:
        if taken.state == "lost":
            self._lost()
            return
        for job in taken.jobs:
            self._accept(line, job)
        for cancelled in taken.cancels:
            self.cancel(line.index, cancelled.id, cancelled.token)

    def _accept(self, line: Line, job: Job) -> None:
        if self._runs.supersede(line, job):  # nor may another have it yet
            self._held.behind(line, job)
        elif self._closing or not line.open:  # it was asked before
            line.endings.append(Ending(job.id, job.token, Release()))
        elif job.suspect:
            self._held.suspect(line, job)
        else:
            self._runs.start(line, job, line.size(self._runs.pace))

    async def _compare(self, line: Line) -> None:
        """With what the server knows. What it gives to others is not to go on here, nor to begin;
        what it keeps for us is given back, but not while a run of the same id goes on.
        """
        strays, forgotten = await line.compare(lambda: self._leases_of(line))
        runs = {run.job.id: run for run in self._runs if run.line is line}
        for stray in strays:
            run = runs.get(stray[0])
            line.release_stray(stray, None if run is None else run.behind)
        for run in runs.values():
            if (run.job.id, run.job.token) in forgotten:
                self._runs.ask(run, "stop")
        self._held.forget(line, forgotten)

    def _must_compare(self, line: Line) -> bool:
        """Also when it takes nothing any more. But who is closing and has nothing left to run is
        about to leave, which ends every lease: a server that is away must not keep him.
        """
        return line.unsure and line.entered and (bool(self._runs) or not self._closing)

    def _leases_of(self, line: Line) -> set[Lease]:
        """What this worker answers for."""
        runs = [run for run in self._runs if run.line is line]
        jobs = self._held.of(line) + [run.job for run in runs]
        jobs += line.arriving.jobs if line.arriving else []
        endings = line.endings + [ending for run in runs for ending in run.behind]
        return {(job.id, job.token) for job in jobs} | {(end.id, end.token) for end in endings}

    def _in_background(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._talks.add(task)
        task.add_done_callback(self._talked)

    def _talked(self, task: asyncio.Task[None]) -> None:
        self._talks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            # Not the server's doing, which is ridden out: a mistake of ours. Be heard.
            event("internal error", logging.ERROR, error=repr(problem))
            logging.getLogger("queasy").error("in a worker", exc_info=problem)

    def _set_timer(self, now: float) -> None:
        """For the next look that nobody wakes us for."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        times = [max(line.next_look, line.avoid_until) for line in self._lines if line.open]
        looks = [at for at in times if at > now]
        if looks and not self._closing:
            delay = min(looks) - now
            self._timer = asyncio.get_running_loop().call_later(delay, self._fill_soon)

    def _told(self, line: Line, message: str) -> None:
        """By the server: there is work, or some is to be cancelled."""
        word, _, rest = message.partition(":")
        if word == "cancel":
            token, _, id_ = rest.partition(":")
            with contextlib.suppress(ValueError):  # somebody else's words: no run has that token
                self.cancel(line.index, id_, int(token))
            return
        line.woken = word == "wake"
        if not word:  # the connection was lost, and with it perhaps the server
            line.doubt()
        line.next_look = 0.0
        self._fill_soon()
        if line.woken and self._filling is not None:  # at once: somebody waits for this
            self._filling.cancel()
            self._context.run(self._fill)

    def cancel(self, index: int, id_: str, token: int) -> None:
        """Somebody asked to cancel this run."""
        self._runs.cancel(index, id_, token)
        if self._held.cancel(index, id_, token):
            self._fill_soon()
