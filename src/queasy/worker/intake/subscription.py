"""One queue's calls to the server: join, dequeue, report, reconcile, leave.

At most two dequeues are in flight at once. The server handles the second after the first.

Dequeue, report and reconcile wait for an unreachable server and repeat their call. But while two
dequeues are in flight, a dequeue that fails raises GivenUp instead. Other calls are not repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from queasy.errors import EmbeddedServerError, LeaseLost, QueasyError, ServerError, Unanswered
from queasy.job import Job, JobError
from queasy.operation import run_operation
from queasy.operations import evict, forward_wake_up, leases_of
from queasy.outcomes import Fail, Release
from queasy.store.command import Command
from queasy.store.commands import QueueCommands
from queasy.store.records import Ending, LeaseKey, Taken
from queasy.store.store import AsyncStore
from queasy.worker.events import event
from queasy.worker.execution.run import Run, RunEnding
from queasy.worker.intake.connectivity import Connectivity
from queasy.worker.intake.lease_ledger import StaleMark
from queasy.worker.intake.outcome_log import OutcomeLog
from queasy.worker.intake.queue_state import RETRY_PAUSE, QueueState

__all__ = ["GivenUp", "Subscription"]

T = TypeVar("T")
# A queue has a fail handler for this long after a worker that has one said so last. Then jobs that
# are given up do not go to a fail queue that no worker serves any more.
FAIL_HANDLER_SECONDS = 7 * 86_400.0
ANNOUNCE_EVERY = 3600.0


class GivenUp(Exception):
    """A call was not answered, and is not repeated. A reconciliation shows what it did."""


class _DequeueAttempt:
    """One dequeue, with all the tries that it takes."""

    __slots__ = (
        "_maybe_leased", "_others", "endings", "hand_off", "limit", "mark", "request", "sent",
        "wait_seconds",
    )  # fmt: skip

    def __init__(
        self,
        request: str,
        limit: int,
        wait_seconds: float,
        hand_off: bool,
        endings: list[RunEnding],
        others: Callable[[], int],
        mark: StaleMark,
    ) -> None:
        self._others = others
        self.request = request
        self.limit = limit
        self.wait_seconds = wait_seconds
        self.hand_off = hand_off
        self.endings = endings
        """Outcomes to report with it."""
        self.mark = mark
        """What was stale when it was sent."""
        self.sent = 0.0
        """When the lease of its jobs begins at the earliest."""
        self._maybe_leased = False

    def begin_try(self) -> float:
        """When the lease of its jobs begins at the earliest: now, or with an earlier try that was
        sent and not answered.
        """
        if not self._maybe_leased:
            self.sent = time.monotonic()
        return self.sent

    def note_unanswered(self) -> None:
        self._maybe_leased = True

    @property
    def beside(self) -> int:
        """How many other jobs are in this process, once the outcomes of this call are reported."""
        return max(0, self._others() - len(self.endings))

    def forget_endings(self) -> None:
        """The outcomes were reported by other calls."""
        self.endings = []


class Subscription:
    """The connection between a worker and one queue. What it learns goes into `state`."""

    def __init__(
        self,
        state: QueueState,
        client: str,
        store: AsyncStore,
        connectivity: Connectivity,
    ) -> None:
        self.state = state
        self._client = client
        self._leases = state.leases
        self._times = state.times
        self._store = store
        self._connectivity = connectivity
        self._outcomes = OutcomeLog(state.name)
        self._commands = state.service.commands
        self._channel = self._commands.keys.channel(client)
        self._requests = 0
        self._announce_at = 0.0
        """When to say again that the queue has a fail handler."""

    # Joining and leaving

    async def join(self, record: bytes, receive: Callable[[bytes], None]) -> None:
        """Register with the queue and write its settings. `receive` gets its messages."""
        service, run = self.state.service, self._store.run
        # Before this worker runs a job, also of a queue that was destroyed: if the job is given up,
        # its fail handler must get it.
        fail_handler = FAIL_HANDLER_SECONDS if service.has_fail_handler else None
        limits = service.handler.options.limits
        await run(self._commands.configure(limits=limits, fail_handler=fail_handler))
        if service.handler.fail:
            await run(self._announce_fail_handler())
        # A worker that has jobs must know at once that its leases may be outdated. Otherwise it
        # might start a job that the server has forgotten.
        self._store.listener.add_callback(self._channel, receive, lambda: self._leases.held > 0)
        sent = time.monotonic()
        if (
            await run(self._commands.register(self._client, self._times.idle_lease, record))
            == "lost"
        ):
            raise LeaseLost(f"queue {self.state.name!r}: the server swept this worker as it joined")
        self.state.join(sent + self._times.idle_lease)

    def _announce_fail_handler(self) -> Command[str]:
        """Have jobs that are given up go to this fail queue, for as long as workers serve it."""
        self._announce_at = time.monotonic() + ANNOUNCE_EVERY
        keys = replace(self._commands.keys, fail=False)
        return QueueCommands(keys).configure(fail_handler=FAIL_HANDLER_SECONDS)

    def abandon(self) -> None:
        """Stop listening for messages. From now on nothing keeps the leases alive."""
        self.state.abandon()
        self._store.listener.remove_callback(self._channel)

    async def leave(self) -> None:
        """Have the server forget this worker and release what it still holds."""
        self.abandon()
        await run_operation(self._store, evict(self._commands, self._client, died=False))

    # Waiting

    def forward_wake_up(self) -> None:
        """Have the server wake another client: this worker has no room."""
        self.state.forward_wake_up()
        self._store.run_later(forward_wake_up(self._commands))

    async def stand_down(self) -> None:
        """Have the server choose another client to poll in time: this worker will not."""
        self.state.stand_down()
        with contextlib.suppress(QueasyError):  # best effort, as all wake-ups are
            await self._store.run(forward_wake_up(self._commands, self._client))

    async def _listen(self) -> object | None:
        """Subscribe to this queue's messages; the connection that brings them.

        None if this worker cannot subscribe: it is not allowed to, or the server is unreachable.
        """
        try:
            connection = await self._store.listener.subscribe(self._channel)
        except QueasyError as problem:  # the worker polls more often instead
            self._connectivity.cannot_subscribe(problem)
            connection = None
        self._leases.note_connection(connection)
        return connection

    # Dequeue and report

    async def dequeue(
        self,
        limit: int,
        safety_poll_seconds: float,
        *,
        others: Callable[[], int] = lambda: 0,
        hand_off: bool = False,
    ) -> Taken:
        """Report outcomes and take up to `limit` jobs in one round trip.

        With a limit of 0 it only asks whether a job is due. If so, `next_in` is 0. If not, the
        server wakes this worker when one is. With `hand_off` the server may send a job with the
        wake-up. `others` counts the other jobs in this process: a suspect may have only so many
        companions.

        Wait for an unreachable server, however long that takes. But if another dequeue is in flight
        too, raise GivenUp: the server recognises a repeat of the last request only.
        """
        state = self.state
        if state.service.handler.fail and time.monotonic() >= self._announce_at:
            self._store.run_later(self._announce_fail_handler())
        wait_seconds = safety_poll_seconds if state.exhausted or not limit else 0.0
        if wait_seconds or self._leases.stale:
            await self._listen()
        state.begin_poll()
        mark = self._leases.begin_reconcile()
        attempt = _DequeueAttempt(
            self._next_request(), limit, wait_seconds, hand_off, state.outcomes.take(), others, mark
        )
        self._leases.hold(1)  # so that the supervisor bumps, however long the answer takes
        try:
            taken = await self._take(attempt)
        except BaseException:
            state.report_failed(attempt.endings)
            self._leases.drop(1)
            raise
        # The jobs that came are held. Those that ended are not, nor is the one held for the answer.
        self._leases.hold(taken.count - 1)
        state.outcomes.confirm(attempt.endings)
        self._note_answer(attempt, taken)
        if wait_seconds and self._leases.listens and not await self._still_listens():
            state.poll_now()  # the queue moved to another server, which will not wake this worker
        self._outcomes.log(attempt.endings, taken.settled)
        return taken

    async def _take(self, attempt: _DequeueAttempt) -> Taken:
        """The answer to a dequeue; reports its outcomes one by one if the server refuses them."""
        send = partial(self._send_dequeue, attempt)
        try:
            return await self._until_answered(send, may_repeat=lambda: self.state.calls < 2)
        except GivenUp:
            raise
        except Exception as problem:  # most likely the server refuses one of the outcomes
            await self._settle_each(attempt.endings, problem)
            self.state.outcomes.confirm(attempt.endings)
            attempt.forget_endings()
            return await self._until_answered(send)

    async def _send_dequeue(self, attempt: _DequeueAttempt) -> Taken:
        self._leases.shorten(attempt.begin_try())
        try:
            return await self._store.run(
                self._commands.dequeue(
                    self._client, lease=self._times.lease, limit=attempt.limit,
                    request=attempt.request, waiter=self._client, waits=attempt.wait_seconds,
                    endings=attempt.endings,
                    beside=attempt.beside, accepts_hand_off=attempt.hand_off,
                )
            )  # fmt: skip
        except Unanswered:
            attempt.note_unanswered()
            raise

    def _note_answer(self, attempt: _DequeueAttempt, taken: Taken) -> None:
        sent = attempt.sent
        if taken.state == "overtaken":
            # An earlier try of the same request may have taken jobs, which are unknown here.
            self._leases.mark_stale()
        if taken.count:
            self._leases.note_taken(sent)
            self._leases.confirm(sent + self._times.lease)
        elif self._agrees_on_none(attempt, taken):
            self._leases.note_none_held(attempt.mark)
        self.state.plan_poll(taken, attempt.limit, attempt.wait_seconds, sent)

    def _agrees_on_none(self, attempt: _DequeueAttempt, taken: Taken) -> bool:
        """Whether both the server and this worker know of no lease.

        The server counts the leases of a worker that waits. If a job is due, `next_in` is 0, and
        the worker may not wait.
        """
        if not attempt.wait_seconds or not taken.next_in:
            return False
        return not taken.held and not self._leases.held

    async def _still_listens(self) -> bool:
        before = self._leases.connection
        return await self._listen() is before

    def _next_request(self) -> str:
        """A higher number each time: a request that a later one overtook takes no jobs."""
        self._requests += 1
        return str(self._requests)

    async def report(self) -> None:
        """Report outcomes, and take no jobs."""
        endings = self.state.outcomes.take()
        words: list[str] = []
        try:
            try:
                words = await self._until_answered(
                    lambda: self._store.run(self._commands.settle(endings))
                )
            except Exception as problem:
                await self._settle_each(endings, problem)
        except BaseException:
            self.state.report_failed(endings)
            raise
        self.state.outcomes.confirm(endings)
        self._outcomes.log(endings, words)

    async def _settle_each(self, endings: list[RunEnding], problem: Exception) -> None:
        """Report outcomes one by one, because the server refused them together.

        If the server refuses an outcome by itself, its job fails, so that it does not hold up the
        others. This waits for an unreachable server: a report that is repeated changes nothing.
        """
        if not endings:
            raise problem
        for ending in endings:
            try:
                await self._settle(ending)
            except Exception as refused:
                event("outcome_rejected", logging.ERROR, queue=self.state.name, job=ending.id,
                      error=refused)  # fmt: skip
                why = Fail(JobError("EndingRefused", str(refused), "permanent"))
                await self._settle(Ending(ending.id, ending.token, why))

    async def _settle(self, ending: Ending) -> None:
        await self._until_answered(partial(self._store.run, self._commands.settle([ending])))

    async def _until_answered(
        self, call: Callable[[], Awaitable[T]], may_repeat: Callable[[], bool] = lambda: True
    ) -> T:
        """Repeat a call until the server answers it. Raise GivenUp if `may_repeat` says not to."""
        while True:
            began = time.monotonic()
            try:
                answer = await call()
            except (ServerError, EmbeddedServerError) as problem:
                self._connectivity.failed(self.state.name, problem, began)
                self._leases.mark_stale()
                if not may_repeat():
                    raise GivenUp from problem
                await asyncio.sleep(random.uniform(0.2, RETRY_PAUSE))
            else:
                self._connectivity.answered(self.state.name)
                return answer

    # Hand-off

    def accept_hand_off(self, message: bytes) -> Job | None:
        """The job that came with a wake-up, or None if it must not run here.

        Raises ValueError for a message that is not ours.
        """
        job = self._commands.handed(message, self._client)
        verdict = self._leases.note_hand_off((job.id, job.token))
        if verdict == "duplicate":
            return None
        self.state.become_waiter_again()
        if verdict == "expired":
            self.state.outcomes.add_of(job, Release())
        return job if verdict == "held" else None

    # Reconciling

    async def reconcile(
        self, known: Callable[[], set[LeaseKey]]
    ) -> tuple[set[LeaseKey], set[LeaseKey]]:
        """Compare the leases that this worker knows with those that the server has.

        Returns two sets:
        - leases that only the server has: it forgot that they ended, or the message or answer that
          brought them was lost;
        - leases that only this worker has: the server forgot that it gave them out, as after a
          failover.

        Tokens are compared, not only ids: the server may have forgotten both the end of one run of
        an id and the start of the next.
        """
        mark = self._leases.begin_reconcile()
        try:
            await self._outdate_requests()
            before = known()  # a lease that begins after this may be missing in the answer
            ours = await self._leases_on_server()
            # Subscribe even if the worker takes no more jobs: a lost connection shows that the
            # server may have forgotten something again.
            await self._listen()
        except BaseException:
            self.state.pause()
            raise
        self._leases.end_reconcile(mark)
        now = known()
        return ours - now, (now & before) - ours

    async def _outdate_requests(self) -> None:
        """Make sure that a request that was given up takes no jobs if it still arrives."""
        last = self._commands.dequeue(
            self._client, lease=self._times.lease, limit=0, request=self._next_request()
        )
        await self._until_answered(partial(self._store.run, last))

    async def _leases_on_server(self) -> set[LeaseKey]:
        def read() -> Awaitable[list[LeaseKey]]:
            return run_operation(self._store, leases_of(self._commands, self._client))

        return set(await self._until_answered(read))

    def release_unknown(self, lease: LeaseKey, run: Run | None) -> None:
        """Release a lease that is unknown here: after a run of the same id ends, or at once."""
        id_, token = lease
        event("unknown_lease_released", logging.WARNING, queue=self.state.name, job=id_,
              token=token)  # fmt: skip
        self._leases.note_released(lease)
        self.state.poll_now()  # if it was handed off, this worker is not a waiter any more
        ending = RunEnding(id_, token, Release())
        if run is None:
            self.state.outcomes.add(ending)
        else:
            run.report_after(ending)
