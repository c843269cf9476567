"""What a worker takes: when it talks with which queue, and what becomes of the answers."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from queasy.job import Job
from queasy.outcomes import Release
from queasy.store.records import Ending, Taken
from queasy.worker.events import event
from queasy.worker.execution.runs import Runs
from queasy.worker.intake.capacity import Room
from queasy.worker.intake.deferred import Held
from queasy.worker.intake.subscription import GivenUp, Lease, Line
from queasy.worker.liveness.inflight_table import InflightTable

__all__ = ["Intake"]

# How long a queue whose job does not fit is passed over before others make room for it.
PATIENCE = 0.1
# Whether it still has one is asked again.
AGAIN = 1.0
# A look takes a moment; so long nobody of a lower priority takes what it may need.
MOMENT = 0.05
# Jobs of which a portion is over in this time are swift; they are not when none of them ended in so
# many passes of the event loop. It takes some to start them.
SWIFT, STILL = 0.01, 10
UNSEEN = 2.0


class Intake:
    """As many jobs as there is room for, of all the queues. See `Worker`."""

    def __init__(
        self,
        lines: Sequence[Line],
        table: InflightTable,
        *,
        capacity: int,
        safety: float,
        lost: Callable[[], None],
        most_jobs: int | None,
        worn_out: Callable[[], None],
    ) -> None:
        self.closing = False
        """Nothing more is taken."""
        self.changed = asyncio.Event()
        """Set whenever something began, ended, or was reported."""
        self.runs = Runs(table, capacity, self.fill_soon)
        self._room = Room(capacity, self.runs)
        self._reserved = self._room.reserved
        self.held = Held(lines, self.runs, self._reserved, table, capacity)
        self._lines = lines
        self._table = table
        self._safety = safety
        self._lost = lost
        self._most_jobs = most_jobs
        self._worn_out = worn_out
        self._favourite = lines[0] if len(lines) == 1 else None
        """The queue of which a job came last."""
        self._by_hand: Line | None = None
        """A queue of which jobs may be handed out to this worker just now."""
        self._context = contextvars.copy_context()
        self._filling: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._talks: set[asyncio.Task[None]] = set()

    def dispose(self) -> None:
        self.closing = True
        for timer in (self._filling, self._timer):
            if timer is not None:
                timer.cancel()
        self.runs.close()

    def holds_nothing_of(self, line: Line) -> bool:
        busy = line.busy or any(run.line is line for run in self.runs)
        return not busy and not self.held.of(line)

    def fill_soon(self) -> None:
        if self._filling is None:
            # Not in the context of whoever calls, which may be a handler's.
            loop = asyncio.get_running_loop()
            self._filling = loop.call_soon(self._fill, context=self._context)

    def _fill(self) -> None:
        """Starts as many talks with queues as there is room and reason for."""
        self._filling = None
        self.changed.set()
        self._note_wear()
        self.held.start_suspect(busy=self.closing or bool(self._reserved.all))
        self.held.start_behind(self._accept, closing=self.closing)
        now = time.monotonic()
        if self._table.unheard:
            self._wait_again()
        reserved_above, starved = -1, list[Line]()
        for line in self._in_turn():
            priority = line.service.handler.options.priority
            if line.under_way:
                if self._may_ask_ahead(line) and priority >= reserved_above:
                    self._ask_ahead(line, starved)
                if now - line.asked_at < MOMENT:  # what is free may be for its answer
                    reserved_above = max(reserved_above, priority)
                continue
            limit = 0
            if line.open and not self.closing and now >= max(line.next_look, line.avoid_until):
                if priority < reserved_above:
                    self.runs.full = True
                elif not (limit := self._room_for(line, starved)) and self._passed_over(line, now):
                    starved.append(line)
            owes = bool(line.endings) or self._must_compare(line)
            if not line.under_way and (limit or (owes and now >= line.pause_until)):
                self._talk(line, limit)
                if limit:  # there may be more, for which it will ask: see above
                    reserved_above = max(reserved_above, priority)
            if not limit and not line.under_way and self._oversleeps(line, now):
                line.under_way, line.asked_at = 1, 0.0
                self._in_background(self._stand_down(line))
            elif line.woken and not limit:
                line.pass_on()
        self._set_timer(now)
        self.runs.go()  # behind what is sent: the server works while these run

    def _wait_again(self) -> None:
        """The servers were told that this worker hears nothing; by now it does."""
        self._table.unheard = False
        for line in self._lines:
            line.look_again()

    def _oversleeps(self, line: Line, now: float) -> bool:
        """It said when it looks again; now there is no room, or it takes nothing more. Room that is
        kept for an answer may be there in a moment.
        """
        if not line.next_look or self._reserved.all or now < line.pause_until:
            return False
        stays = bool(self.runs) and (self.closing or not line.open)
        return stays or line.next_look <= now

    async def _stand_down(self, line: Line) -> None:
        try:
            await line.stand_down()
        finally:
            line.under_way -= 1
            self.fill_soon()

    def _note_wear(self) -> None:
        if self._most_jobs is not None and self.runs.done >= self._most_jobs:
            self._most_jobs = None
            self._worn_out()

    def _in_turn(self) -> Sequence[Line]:
        if len(self._lines) == 1:
            return self._lines
        pace = self.runs.pace
        return sorted(
            self._lines,
            key=lambda line: (
                -line.service.handler.options.priority,
                line.passed_over if line.starved else math.inf,
                line.size(pace),
                line.last_served,
            ),
        )

    def _room_for(self, line: Line, starved: Sequence[Line] = ()) -> int:
        """How many jobs of the queue can start now."""
        if self.held.in_the_way or self._unsupervised():
            return 0
        return self._room.of(line, starved)

    def _may_ask_ahead(self, line: Line) -> bool:
        """While another call is under way, of which it is likely that it is not the last."""
        goes_on = line.flows and line.open and not self.closing
        return goes_on and line.under_way == 1 and not self._must_compare(line)

    def _ask_ahead(self, line: Line, starved: Sequence[Line]) -> None:
        """For a whole portion, or it can wait."""
        if self._room.is_for_many(line):
            limit = self._room_for(line, starved)
            if limit == self._room.portion(line):
                self._talk(line, limit)

    def _unsupervised(self) -> bool:
        """Nobody keeps the leases: what is taken now would be lost."""
        seen = self._table.supervised
        return bool(seen) and time.monotonic() - seen > UNSEEN

    def _passed_over(self, line: Line, now: float) -> bool:
        """Notes that a queue's job, if it has one, did not fit; after a while asks whether it
        has. True: nobody of the same or a lower priority has room that it needs, until it fits.
        """
        self.runs.full = True
        if line.passed_over is None:
            line.passed_over = line.asked_due = now
        elif now - line.asked_due > (AGAIN if line.starved else PATIENCE):
            line.asked_due = now
            self._talk(line, 0, asks=True)
        return line.starved

    def _talk(self, line: Line, limit: int, *, asks: bool = False) -> None:
        line.under_way += 1
        line.asked_at = time.monotonic() if limit else 0.0
        units = self._room.units(line, limit)
        self._reserve(line, units, swift=line.swift)
        talk = self._converse(line, limit, units, asks=asks, swift=line.swift)
        self._in_background(talk)

    def _reserve(self, line: Line, units: int, *, swift: bool) -> None:
        self._reserved.add(line, units)
        if swift:
            line.ahead += units

    async def _converse(
        self, line: Line, limit: int, units: int, *, asks: bool, swift: bool
    ) -> None:
        over, rested = False, line.dry
        """Whether the next one may have begun; and whether there was nothing to do until now."""
        try:
            if limit or asks:
                taken = await line.take(limit, self._safety, by_hand=self._may_be_handed(line))
                line.starved = asks and taken.next_in == 0
                if not line.starved:
                    line.passed_over = None
                if limit:
                    before, line.last_served = line.last_served, time.monotonic()
                    self._note_pace(line, taken, limit, line.last_served - before)
                # Of one alone, it may be a suspect; and who always has more to ask for would never
                # come to compare.
                line.flows = limit > 1 and taken.count == limit
                if line.flows and not rested and not self._must_compare(line):
                    over = True
                    await self._ask_for_more(line, taken)
                if swift:
                    await self._make_way(line, taken)
                self._reserve(line, -units, swift=swift)
                units = 0
                waits_for_another = taken.count > 0 and self._take_no_more_by_hand(line)
                self._taken(line, taken, self._room.left(line) if swift else taken.count)
                if taken.state == "lost":
                    return
                if (rested or taken.count < limit) and not waits_for_another:
                    self.runs.go(at_once=True)  # there is nothing more to ask for first
            elif line.endings:
                await line.report()
            if line.under_way == 1 and not over and self._must_compare(line):
                await self._compare(line)
        except GivenUp:
            line.flows = False
        except Exception:
            line.doubt()  # what was taken, and is nowhere now, is given back
            line.pause()
            raise
        finally:
            self._reserve(line, -units, swift=swift)
            if not over:
                line.under_way -= 1
            self.fill_soon()

    def _note_pace(self, line: Line, taken: Taken, limit: int, seconds: float) -> None:
        """After so many since the answer before."""
        goes_on = taken.count == limit and seconds < SWIFT and self._room.is_for_many(line)
        # Of those that fail larger portions make none faster.
        goes_on = goes_on and taken.settled.count("finished") == len(taken.settled)
        goes_on = goes_on and line.last_served > line.slow_until
        line.swift = line.swift and goes_on
        if taken.count == limit:  # there may be more
            self.runs.full = True
            if taken.settled and line.is_async and not self.runs:
                self.runs.pace.hasten()
                line.swift = goes_on

    async def _ask_for_more(self, line: Line, taken: Taken) -> None:
        """Before anything is done with what was taken: the server works on it meanwhile."""
        line.arriving.append(taken)
        line.under_way -= 1
        try:
            self._fill()
            await asyncio.sleep(0)  # for one pass of the loop, in which it is sent
        finally:
            line.arriving.remove(taken)

    async def _make_way(self, line: Line, taken: Taken) -> None:
        """More was asked for than there is room for, because those before end in a moment: for as
        long as some do.
        """
        line.arriving.append(taken)
        passes, done = 0, self.runs.done
        try:
            while self._room.left(line) < taken.count and passes < STILL:
                await asyncio.sleep(0)
                passes = passes + 1 if self.runs.done == done else 0
                done = self.runs.done
        finally:
            line.arriving.remove(taken)

    def _taken(self, line: Line, taken: Taken, room: int) -> None:
        """There is room for so many; the others go back to the front of their queue."""
        if taken.state == "lost":
            self._lost()
            return
        for job in taken.jobs[:room]:
            self._accept(line, job)
        for job in taken.jobs[room:]:
            line.swift, line.slow_until = False, line.last_served + AGAIN
            self._accept(line, job, fits=False)
        for cancelled in taken.cancels:
            self.cancel(line.index, cancelled.id, cancelled.token)

    def _accept(self, line: Line, job: Job, *, fits: bool = True) -> None:
        size = line.size(self.runs.pace)
        if self.runs.supersede(line, job):  # nor may another have it yet
            self.held.behind(line, job, size)
        elif self.closing or not line.open or not fits:  # it was asked for before
            line.endings.append(Ending(job.id, job.token, Release()))
        elif job.suspect:
            self.held.suspect(line, job)
        else:
            self._favourite = line
            self.runs.start(line, job, size)

    async def _compare(self, line: Line) -> None:
        """With what the server knows. What it gives to others is not to go on here, nor to begin;
        what it keeps for us is given back, but not while a run of the same id goes on.
        """
        strays, forgotten = await line.compare(lambda: self._leases_of(line))
        runs = {run.job.id: run for run in self.runs if run.line is line}
        for stray in strays:
            run = runs.get(stray[0])
            line.release_stray(stray, None if run is None else run.behind)
        for run in runs.values():
            if (run.job.id, run.job.token) in forgotten:
                self.runs.ask(run, "stop")
        self.held.forget(line, forgotten)

    def _must_compare(self, line: Line) -> bool:
        """Also when it takes nothing any more. But who is closing and has nothing left to run is
        about to leave, which ends every lease: a server that is away must not keep him.
        """
        return line.unsure and line.entered and (bool(self.runs) or not self.closing)

    def _leases_of(self, line: Line) -> set[Lease]:
        """What this worker answers for."""
        runs = [run for run in self.runs if run.line is line]
        jobs = self.held.of(line) + [run.job for run in runs]
        jobs += [job for taken in line.arriving for job in taken.jobs]
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
        if looks and not self.closing:
            delay = min(looks) - now
            self._timer = asyncio.get_running_loop().call_later(delay, self.fill_soon)

    def told(self, line: Line, message: str) -> None:
        """By the server: there is work, or some is to be cancelled."""
        word, _, rest = message.partition(":")
        if word == "cancel":
            token, _, id_ = rest.partition(":")
            with contextlib.suppress(ValueError):  # somebody else's words: no run has that token
                self.cancel(line.index, id_, int(token))
            return
        if word == "job":
            self._handed(line, message)
            return
        line.woken = word == "wake"
        if not word:  # the connection was lost, and with it perhaps the server
            line.doubt()
        line.next_look = 0.0
        self.fill_soon()
        if line.woken and self._filling is not None:  # at once: somebody waits for this
            self._filling.cancel()
            self._context.run(self._fill)

    def _may_be_handed(self, line: Line) -> bool:
        """Who has something to run may be held up by it, and could not hear of more. So only one
        with nothing to do takes jobs by hand, and of one queue only: as soon as it runs anything
        else, it tells that one, before that begins.
        """
        others = any(other.under_way for other in self._lines if other is not line)
        may = line is self._favourite and not self.runs and not others
        if may or self._by_hand is line:
            self._by_hand = line if may else None
        return may

    def _take_no_more_by_hand(self, but: Line) -> bool:
        """A job of this queue came; whether another has to be told first."""
        line, self._by_hand = self._by_hand, None
        if line is None or line is but:
            return False
        if line.under_way:
            line.woken = True  # it says so as soon as it can
        else:
            line.under_way, line.asked_at = 1, 0.0
            self._in_background(self._stand_down(line))
        return True

    def _handed(self, line: Line, message: str) -> None:
        """A job came with the message: it runs at once, or is given back at once."""
        try:
            job = line.handed(message)
        except ValueError:  # somebody else's words
            return
        if self._by_hand is line:
            self._by_hand = None
        if job is not None and self._room_for(line):
            self._accept(line, job)
            self.runs.go(at_once=True)
        elif job is not None:
            line.endings.append(Ending(job.id, job.token, Release()))
        self.fill_soon()

    def cancel(self, index: int, id_: str, token: int) -> None:
        """Somebody asked to cancel this run."""
        self.runs.cancel(index, id_, token)
        if self.held.cancel(index, id_, token):
            self.fill_soon()
