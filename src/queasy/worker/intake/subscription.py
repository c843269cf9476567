"""One queue as a worker sees it: when to look, what it holds, what it has to report."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from queasy.errors import (
    EmbeddedServerError,
    LeaseLost,
    QueasyError,
    ServerError,
    Unanswered,
)
from queasy.job import Job, JobError
from queasy.operation import run_operation
from queasy.operations import evict, forward_wakeup
from queasy.outcomes import Fail, Release
from queasy.store.commands import QueueCommands
from queasy.store.records import Ending, Taken
from queasy.store.store import AsyncStore
from queasy.worker.events import event
from queasy.worker.intake.connectivity import Reach
from queasy.worker.intake.outcome_log import Became
from queasy.worker.intake.pace import Pace
from queasy.worker.liveness.inflight_table import InflightTable
from queasy.worker.plan import CUT_OFF, DEFAULT_SIZE, IDLE_LEASE, LEASE, Service

__all__ = ["LONGEST_PAUSE", "GivenUp", "Lease", "Line"]

T = TypeVar("T")
Lease = tuple[str, int]  # a job's id, and the token of its run

PAGE = 100
MOST_ENDINGS = 1000  # in one call
# Who could not subscribe to the wake-ups of a queue looks this often.
DEAF = 1.0
SOON = 1.0  # on the monotonic clock: long ago
# Between two tries, each of which has waited for the server already.
LONGEST_PAUSE = 2.0


class GivenUp(Exception):
    """A call was not answered, and is not repeated. What came of it, a comparison shows."""


class Line:
    """The conversation about one queue. One call is under way at a time, or two that take jobs: the
    server finds the second when it is through with the first.
    """

    def __init__(
        self,
        service: Service,
        index: int,
        client: str,
        store: AsyncStore,
        table: InflightTable,
        reach: Reach,
    ) -> None:
        self.service = service
        self.is_async = service.function.is_async
        self.index = index
        self.client = client
        self.endings: list[Ending] = []
        self.under_way = 0
        """How many calls are."""
        self.flows = False
        """The last that took jobs got as many as it asked for: there are more, most likely."""
        self.swift = False
        """And those before had ended by then, all in a moment."""
        self.slow_until = 0.0
        """They had not, and some were given back: so long it is not swift, whatever it seems."""
        self.ahead = 0
        """Units that are reserved for answers with more jobs than that, while it is swift."""
        self.asked_at = 0.0
        self.asked_for_jobs = 0.0
        """When, for those that came last: their lease is no older."""
        self.open = False
        """Whether jobs are taken."""
        self.wanted = False
        """Whether they should be, by the last order; and who comes or goes does so alone."""
        self.passing = asyncio.Lock()
        self.arriving: list[Taken] = []
        """What was taken, and is about to be started."""
        self.next_look = 0.0
        self.woken = False
        self.last_served = 0.0
        self.asked_due = 0.0
        self.avoid_until = 0.0
        """It has a suspect, which this worker is too busy for."""
        self.pause_until = 0.0
        self.passed_over: float | None = None
        """Since when there may be a job that does not fit."""
        self.starved = False
        """There is one, and it has waited long enough: others make room."""
        self.dry = True
        """The last look found less than it asked for: the next asks to be woken."""
        self._hears: object | None = None
        self._hearing: object | None = None
        """The last it heard by, if it hears nothing now."""
        self._doubts = self._dispelled = 0
        self._sure_until = 0.0
        """So long at least the server takes this worker for alive, by what it was told."""
        self._given_back: set[Lease] = set()
        """Of strays, while the message that hands one out may still be on its way."""
        self._heard: deque[Lease] = deque(maxlen=100)
        """The last that were handed out: on two lines, of a primary and of what was one, a message
        is heard twice."""
        self._requests = 0
        self._became = Became(service.name)
        self._reach = reach
        self._store = store
        self._table = table
        self._commands = service.commands
        self._channel = service.commands.keys.channel(client)

    @property
    def busy(self) -> bool:
        """Whether it talks, or has anything to start or to report."""
        return bool(self.under_way or self.endings or self.arriving)

    def size(self, pace: Pace) -> int:
        """What a job costs, at this pace."""
        size = self.service.handler.options.size
        if size is not None:
            return size
        if self.is_async and pace.awaited > 1:
            return max(1, round(DEFAULT_SIZE / pace.awaited))
        return DEFAULT_SIZE

    # Coming and going

    async def enter(self, record: bytes, told: Callable[[str], None]) -> None:
        """Tells the queue what holds for its jobs, and that there is somebody to run them."""
        handler, run = self.service.handler, self._store.run
        await run(self._commands.configure(limits=handler.options.limits))
        if handler.fail:
            keys = replace(self._commands.keys, fail=False)
            await run(QueueCommands(keys).configure(fail_handler=True))
        self._store.listener.add_callback(self._channel, told)
        sent = time.monotonic()
        if await run(self._commands.register(self.client, IDLE_LEASE, record)) == "lost":
            raise LeaseLost(f"queue {self.service.name!r}: swept while registering")
        self._sure_until = sent + IDLE_LEASE
        self._table.rest(self.index, self._sure_until)
        self.open, self.dry, self.next_look = True, True, 0.0
        self._hearing = None

    @property
    def entered(self) -> bool:
        """Whether the queue knows of this worker: there may be leases, open or not."""
        return bool(self._table.rests_until(self.index))

    def abandon(self) -> None:
        """Nobody keeps its leases any more."""
        self.open, self.next_look = False, 0.0
        self._table.rest(self.index, 0.0)
        self._store.listener.remove_callback(self._channel)

    async def leave(self) -> None:
        """Ends what the queue knows of this worker; what it still holds is released."""
        self.abandon()
        await run_operation(self._store, evict(self._commands, self.client, died=False))

    def pass_on(self) -> None:
        """There is no room for what this worker was woken for: another one is."""
        self.woken = False
        self._store.run_later(forward_wakeup(self._commands))

    def look_again(self) -> None:
        """The server does not think that this worker waits, whatever an answer says that was given
        before and comes after this.
        """
        self.woken, self.next_look = self.under_way > 0, self.pause_until

    async def stand_down(self) -> None:
        """It does not look when it said it would, and others sleep for they rely on it: another
        one keeps the time.
        """
        self.next_look, self.woken = 0.0, False
        with contextlib.suppress(QueasyError):  # best effort, as all waking is
            await self._store.run(forward_wakeup(self._commands, self.client))

    # Talking

    async def take(self, limit: int, safety: float, *, by_hand: bool = False) -> Taken:
        """Reports what ended and takes up to `limit` jobs: one round trip. With a limit of 0 it
        only asks whether there are any: `next_in` is 0, or the server will wake us; if we take jobs
        `by_hand`, with one.

        Rides out a server that is away, for as long as that takes. But while another one is under
        way it is `GivenUp`: the server knows only the last again.
        """
        waits = safety if self.dry or not limit else 0.0
        if waits or self.unsure:
            self._hears = await self._subscribe()
        self.woken = False
        endings = self._some_endings()
        self._table.attend(self.index, 1)  # the answer may be long in coming
        request, sent, unclear = self._next_request(), 0.0, False

        async def look() -> Taken:
            nonlocal sent, unclear
            sent = sent if unclear else time.monotonic()
            self._sure_until = min(self._sure_until, sent + LEASE)
            try:
                return await self._store.run(
                    self._commands.dequeue(
                        self.client, lease=LEASE, limit=limit, request=request, waiter=self.client,
                        waits=waits, endings=endings, passes=self._table.passes, by_hand=by_hand,
                    )
                )  # fmt: skip
            except Unanswered:  # the lease may have begun
                unclear = True
                raise

        try:
            try:
                taken = await self._until_answered(look, again=lambda: self.under_way < 2)
            except GivenUp:
                raise
            except Exception as problem:  # one of the endings, most likely: find it
                await self._settle_each(endings, problem)
                self._table.attend(self.index, -len(endings))
                endings = []
                taken = await self._until_answered(look)
        except BaseException:
            self._keep(endings)
            self._table.attend(self.index, -1)
            raise
        if taken.state == "overtaken":  # what it took when it came before, if anything, is unknown
            self.doubt()
        self._table.attend(self.index, taken.count - len(endings) - 1)
        if taken.count:
            self.asked_for_jobs = sent
            self._sure_until = sent + LEASE
            self._table.take(self.index, sent)
        self._look_again(taken, limit, waits, sent)
        if waits and self._hears and await self._subscribe() is not self._hears:
            self.next_look = 0.0  # the queue was found elsewhere: nobody wakes us here
        self._became.note(endings, taken.settled)
        return taken

    def _some_endings(self) -> list[Ending]:
        """As many as one call may end."""
        endings, self.endings = self.endings, []
        if len(endings) > MOST_ENDINGS:
            endings, self.endings = endings[:MOST_ENDINGS], endings[MOST_ENDINGS:]
        return endings

    def _next_request(self) -> str:
        """Higher each time: one that is given up takes nothing when it comes after a later one."""
        self._requests += 1
        return str(self._requests)

    def handed(self, message: str) -> Job | None:
        """A job that was taken for this worker, while it waited; None if it was given back before
        this was heard, or heard before. One whose lease may be over is given back now.
        """
        job = self._commands.handed(message, self.client)
        lease = (job.id, job.token)
        if lease in self._heard:
            return None
        self._heard.append(lease)
        # It waits no more, whatever an answer says that was given before and comes after this.
        self.woken, self.next_look = self.under_way > 0, 0.0
        if lease in self._given_back:
            self._given_back.discard(lease)
            return None
        now = time.monotonic()
        # As if it had asked so long ago that no more of the lease can be left.
        asked = max(self.asked_for_jobs, min(now, self._sure_until - LEASE))
        late = now - asked > CUT_OFF and now - self._table.kept(self.index) > CUT_OFF
        self._table.attend(self.index, 1)
        if late:
            self.endings.append(Ending(job.id, job.token, Release()))
            return None
        self.asked_for_jobs = asked
        self._table.take(self.index, asked)
        return job

    async def _subscribe(self) -> object | None:
        try:
            hears = await self._store.listener.subscribe(self._channel)
        except QueasyError as problem:  # a permission is missing: looking often does as well
            self._reach.deaf(problem)
            return None
        if hears is not None:
            if self._hearing not in (None, hears):
                self._given_back.clear()  # what was said there is not heard any more
                self.doubt()
            self._hearing = hears
        return hears

    # Comparing

    def doubt(self) -> None:
        """The server may have forgotten what it was told last: a crash, a failover."""
        self._doubts += 1

    @property
    def unsure(self) -> bool:
        """Until a comparison that began after the last doubt is over."""
        return self._doubts != self._dispelled

    async def compare(self, held: Callable[[], set[Lease]]) -> tuple[set[Lease], set[Lease]]:
        """Leases that the server says are ours and nobody here knows of: it forgot that they were
        reported. And those held here that it does not know: it forgot, or never learnt, that they
        were taken. By token: of one id, it may have forgotten the end of a run and the next start.
        """
        doubts = self._doubts
        try:
            await self._overtake()
            before = held()  # what is handed out from now on may not be in the answer
            ours = await self._leases()
            # Who takes nothing any more listens all the same: it may forget once more.
            await self._subscribe()
        except BaseException:
            self.pause()
            raise
        self._dispelled = doubts
        known = held()
        return ours - known, (known & before) - ours

    async def _overtake(self) -> None:
        """What was given up and may still be on its way takes nothing any more."""
        last = self._commands.dequeue(
            self.client, lease=LEASE, limit=0, request=self._next_request()
        )
        await self._until_answered(partial(self._store.run, last))

    async def _leases(self) -> set[Lease]:
        found: set[Lease] = set()
        cursor, more = f"{self.client}:".encode(), True
        while more:  # leases stand in the order of their clients
            page, cursor = await self._until_answered(
                partial(self._store.run, self._commands.jobs("active", cursor, PAGE))
            )
            found |= {(job.id, job.token) for job in page if job.client == self.client}
            more = bool(cursor) and all(job.client == self.client for job in page)
        return found

    def release_stray(self, lease: Lease, behind: list[Ending] | None) -> None:
        """One that nobody here knows of; `behind` a run of the same id, or at once."""
        id_, token = lease
        event("job not known here, released", logging.WARNING,
              queue=self.service.name, job=id_, token=token)  # fmt: skip
        self._table.attend(self.index, 1)
        self._given_back.add(lease)
        self.next_look = 0.0  # if it was handed to us, the server does not think that we wait
        (self.endings if behind is None else behind).append(Ending(id_, token, Release()))

    def drop(self, leases: int) -> None:
        """Held here, but not for us any more; there is nothing to report."""
        self._table.attend(self.index, -leases)

    def _look_again(self, taken: Taken, limit: int, waits: float, sent: float) -> None:
        """When, after this answer."""
        now = time.monotonic()
        self.dry = taken.count < limit or not limit
        self.next_look = 0.0
        if taken.count:
            self._table.rest(self.index, SOON)  # when they have ended
        elif waits:  # the server will wake us
            if taken.held > self._table.attention(self.index):
                self.doubt()  # one was handed to us, and the message with it was lost
            elif not self._table.attention(self.index):
                self._sure_until = sent + 2 * waits + LEASE
                self._table.rest(self.index, self._sure_until)
            until = now + (waits if self._hears else min(waits, DEAF))
            if taken.next_in is not None:
                # It counted from when it answered, which was no earlier than this.
                until = min(until, sent + taken.next_in)
            if until > now or taken.next_in:  # who has no room by then stands down
                self.next_look = until
        if self.woken:
            self.next_look = 0.0

    async def report(self) -> None:
        """Reports what ended, and takes nothing."""
        endings = self._some_endings()
        words: list[str] = []
        try:
            try:
                words = await self._until_answered(
                    lambda: self._store.run(self._commands.settle(endings))
                )
            except Exception as problem:
                await self._settle_each(endings, problem)
        except BaseException:
            self._keep(endings)
            raise
        self._table.attend(self.index, -len(endings))
        self._became.note(endings, words)

    def _keep(self, endings: list[Ending]) -> None:
        """They could not be reported now; they will be."""
        self.endings = endings + self.endings
        self.pause()

    def pause(self) -> None:
        """Something went wrong, and would again at once."""
        self.next_look = self.pause_until = time.monotonic() + LONGEST_PAUSE

    async def _until_answered(
        self, call: Callable[[], Awaitable[T]], again: Callable[[], bool] = lambda: True
    ) -> T:
        while True:
            try:
                answer = await call()
            except (ServerError, EmbeddedServerError) as problem:
                self._reach.failed(self.service.name, problem)
                self.doubt()
                if not again():
                    raise GivenUp from problem
                await asyncio.sleep(random.uniform(0.2, LONGEST_PAUSE))
            else:
                self._reach.answered(self.service.name)
                return answer

    async def _settle_each(self, endings: list[Ending], problem: Exception) -> None:
        """One of them is refused: it must not hold the others up, nor stay with us."""
        if not endings:
            raise problem
        for ending in endings:
            try:
                await self._store.run(self._commands.settle([ending]))
            except (ServerError, EmbeddedServerError):
                raise
            except Exception as refused:
                event("ending refused", logging.ERROR, queue=self.service.name, job=ending.id,
                      error=refused)  # fmt: skip
                why = Fail(JobError("EndingRefused", str(refused), "permanent"))
                await self._store.run(self._commands.settle([Ending(ending.id, ending.token, why)]))
