"""The intake of a worker: takes a snapshot, decides, and carries the decisions out.

1. `_schedule` begins all calls, except the stand-down that `_revoke_hand_off` sends. It runs after
   every event that may give the worker something to do: a run ended, an answer or a message
   arrived, a timer fired.
2. Each call is one task. `holdings` starts, defers or releases the jobs that a call brings.
3. Messages from the server wake the worker, hand it a job, or cancel a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any

from queasy.job import Job
from queasy.outcomes import Release
from queasy.store.records import Taken, decode_text
from queasy.suspect_room import SuspectRoom
from queasy.worker.events import event
from queasy.worker.execution.run import Run, RunEnding
from queasy.worker.intake.decisions import (
    Action,
    Dequeue,
    ForwardWakeUp,
    NotePassedOver,
    Probe,
    QueueView,
    Report,
    Snapshot,
    StandDown,
    decide,
)
from queasy.worker.intake.holdings import Holdings
from queasy.worker.intake.queue_state import Call, QueueState
from queasy.worker.intake.subscription import GivenUp, Subscription
from queasy.worker.liveness.inflight_table import InflightTable

__all__ = ["Scheduler"]

# If the supervisor has not run for this many seconds, the worker requests no jobs: perhaps nothing
# extends its leases.
SUPERVISOR_SILENCE = 2.0


class Scheduler:
    """Takes jobs of all the worker's queues, as many as there is room for."""

    def __init__(
        self,
        subscriptions: Sequence[Subscription],
        table: InflightTable,
        *,
        capacity: int,
        safety_poll_seconds: float,
        on_declared_dead: Callable[[], None],
        on_destroyed: Callable[[int], None],
        max_jobs: int | None,
        job_limit_reached: Callable[[], None],
    ) -> None:
        self.changed = asyncio.Event()
        """Set each time `_schedule` runs, because the state of the worker may have changed."""
        self.queues = [subscription.state for subscription in subscriptions]
        self._activity = self.queues[0].activity
        self.holdings = Holdings(self.queues, table, capacity, self, max_jobs)
        self._subscriptions = subscriptions
        self._runs = self.holdings.runs
        self._table = table
        self._safety_poll_seconds = safety_poll_seconds
        self._on_declared_dead = on_declared_dead
        self._on_destroyed = on_destroyed
        self._max_jobs = max_jobs
        self._job_limit_reached = job_limit_reached
        self._limit_reported = False
        self._context = contextvars.copy_context()
        self._pending_pass: asyncio.Handle | None = None
        """The call of `_schedule` in the next pass of the event loop; None if none is planned."""
        self._timer: asyncio.TimerHandle | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._suspect_room = SuspectRoom()

    def add(self, subscription: Subscription) -> None:
        """Take jobs of one more queue. It is the last in the worker's list of subscriptions."""
        self.queues.append(subscription.state)

    def close(self) -> None:
        """Take no more jobs. Running jobs continue."""
        self.holdings.close()
        self._activity.awake.update(range(len(self.queues)))
        self.schedule_soon()

    def dispose(self) -> None:
        """Stop scheduling. No new run starts. Runs continue until they end by themselves."""
        for timer in (self._pending_pass, self._timer):
            if timer is not None:
                timer.cancel()
        self.holdings.dispose()

    # Events from runs

    def run_ended(self, run: Run, ending: RunEnding) -> None:
        queue = self.queues[run.queue]
        queue.outcomes.add(ending)
        for later in run.endings_after:
            queue.outcomes.add(later)
        if self._pending_pass is None:
            self.schedule_soon()

    def thread_refused(self, run: Run) -> None:
        self.queues[run.queue].pause()

    def crowded_out(self, run: Run) -> None:
        self.queues[run.queue].portions.suspend_early_requests()

    def job_refused(self, run: Run) -> None:
        self.queues[run.queue].leases.mark_stale()

    def room_changed(self) -> None:
        self.schedule_soon()

    # Deciding

    def schedule_soon(self) -> None:
        if self._pending_pass is None:
            # In the scheduler's own context: the caller may be a handler, which has another one.
            loop = asyncio.get_running_loop()
            self._pending_pass = loop.call_soon(self._schedule, context=self._context)

    def _schedule_now(self) -> None:
        """Run `_schedule` in this pass of the event loop, not in the next: a job waits."""
        if self._pending_pass is not None:
            self._pending_pass.cancel()
        self._context.run(self._schedule)

    def _schedule(self) -> None:
        self._pending_pass = None
        self.changed.set()
        self._keep_job_limit()
        self.holdings.advance_deferred()
        if self._table.stood_down:
            self._wait_again()
        self._activity.wake_due(time.monotonic())
        snapshot = self.snapshot()
        decision = decide(snapshot)
        if decision.wanted_more:
            self._runs.note_unmet_demand()
        for action in decision.actions:
            self._carry_out(action)
        self._activity.let_rest(lambda index: self.queues[index].rests_until(snapshot.now))
        self._set_timer(snapshot.now, decision.decide_again_at)
        self._runs.go()  # after the calls are sent: the server works while these run

    def snapshot(self) -> Snapshot:
        """All that the next decision depends on. Queues at rest do not count."""
        now = time.monotonic()
        queues = [self._view(self.queues[index]) for index in self._activity.awake]
        skipped = any(queue.skipped is not None and queue.serving for queue in queues)
        self._suspect_room.update(now, skipped=skipped)
        return Snapshot(
            now=now,
            queues=queues,
            room=self.holdings.room(),
            closing=self.holdings.closing,
            jobs=self.holdings.jobs(),
            most_jobs=self._activity.most_jobs,
            makes_room=self._suspect_room.is_made(now),
            leases_are_kept=self._leases_are_kept(now),
            running=bool(self._runs),
            jobs_left=self._jobs_left(),
            turn=self._activity.turn(now),
        )

    def _jobs_left(self) -> int | None:
        """How many more jobs may be requested; None if there is no limit."""
        left = self.holdings.jobs_left
        if left is None:
            return None
        return max(0, left - self._activity.requested)

    def _view(self, queue: QueueState) -> QueueView:
        own_units = self.holdings.units_of(queue) if queue.starved else 0
        reconciles = self._needs_reconcile(queue)
        return queue.view(self._runs.pace, needs_reconcile=reconciles, own_units=own_units)

    def _needs_reconcile(self, queue: QueueState) -> bool:
        """Whether the queue's leases must be compared with those on the server.

        False if the worker is closing and runs nothing. Then it is about to leave the queue, which
        ends every lease. It must not wait for an unreachable server.
        """
        leaves = self.holdings.closing and not self._runs
        return queue.leases.stale and queue.joined and not leaves

    def _leases_are_kept(self, now: float) -> bool:
        """Whether the worker's leases are kept alive.

        The supervisor extends them, so it must have run recently. An inline worker has no
        supervisor, and extends them itself.
        """
        seen = self._table.supervisor_ran_at
        return not seen or now - seen <= SUPERVISOR_SILENCE

    def _keep_job_limit(self) -> None:
        """Take no jobs beyond the limit. The supervisor replaces the worker a little earlier."""
        if self._max_jobs is None or self.holdings.closing:
            return
        started = self._runs.started_count
        if not self._limit_reported and started >= self._max_jobs - self._max_jobs // 10:
            self._limit_reported = True
            self._job_limit_reached()
        if started >= self._max_jobs:
            self.close()

    def _wait_again(self) -> None:
        """Become a waiter again.

        The heartbeat removed this worker from the waiters while its event loop was blocked.
        """
        self._table.clear_stood_down()
        for queue in self.queues:
            queue.become_waiter_again(not_before_pause=True)

    def _set_timer(self, now: float, decide_again_at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        alarms = (decide_again_at, self._activity.next_alarm, self._suspect_room.next_change(now))
        if (at := min((at for at in alarms if at is not None), default=None)) is not None:
            self._timer = asyncio.get_running_loop().call_later(at - now, self.schedule_soon)

    # Carrying out

    def _carry_out(self, action: Action) -> None:
        subscription = self._subscriptions[action.queue]
        queue = subscription.state
        if not self._runs.has_of(queue.index) and not queue.has_arriving:
            queue.portions.note_drained()
        match action:
            case Dequeue(limit=limit, units=units):
                call = queue.begin("dequeue", limit, units)
                self._begin_call(self._dequeue(subscription, call))
            case Probe():
                self._begin_call(self._probe(subscription, queue.begin("probe")))
            case Report():
                self._begin_call(self._report(subscription, queue.begin("report")))
            case StandDown():
                self._begin_call(self._stand_down(subscription, queue.begin("stand_down")))
            case ForwardWakeUp():
                subscription.forward_wake_up()
            case NotePassedOver():
                queue.pass_over()

    def _begin_call(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._calls.add(task)
        task.add_done_callback(self._call_ended)

    def _call_ended(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            # Only a bug in the worker leads here: dequeue, report and reconcile wait for an
            # unreachable server, and a stand-down ignores errors.
            event("internal_error", logging.ERROR, error=repr(problem))
            logging.getLogger("queasy").error("internal error in a worker", exc_info=problem)

    @contextlib.contextmanager
    def _in_flight(self, queue: QueueState, call: Call) -> Generator[None]:
        """End the call, whatever happens to it and to the jobs of its answer."""
        try:
            yield
        except GivenUp:
            queue.portions.give_up()
        except Exception:
            queue.leases.mark_stale()  # a reconcile releases jobs that were taken but not started
            queue.pause()
            raise
        finally:
            queue.end(call)
            self.schedule_soon()

    async def _dequeue(self, subscription: Subscription, call: Call) -> None:
        """Take jobs and start them."""
        queue, was_exhausted = subscription.state, subscription.state.exhausted
        with self._in_flight(queue, call):
            taken = await self._poll(subscription, call)
            self.holdings.note_answer(queue, call, taken)
            more_likely = queue.portions.has_more and not was_exhausted
            requests_more_first = more_likely and not self._needs_reconcile(queue)
            if requests_more_first:
                await self._request_more_first(queue, call)
            other_may_hand_off = taken.count > 0 and self._revoke_hand_off(queue)
            started = 0
            if call.prefetch:
                started = await self.holdings.start_while_room_is_short(queue, taken)
            queue.jobs_started(call)
            if not self._start(queue, call, taken, started):
                return
            if (was_exhausted or taken.count < call.limit) and not other_may_hand_off:
                self._runs.go(at_once=True)  # no call is about to be sent
            if not requests_more_first:
                await self._reconcile_if_needed(subscription)

    async def _probe(self, subscription: Subscription, call: Call) -> None:
        """Ask whether a job that does not fit is due."""
        queue = subscription.state
        with self._in_flight(queue, call):
            taken = await self._poll(subscription, call)
            if self._start(queue, call, taken):
                await self._reconcile_if_needed(subscription)

    async def _report(self, subscription: Subscription, call: Call) -> None:
        """Report outcomes, and reconcile leases."""
        queue = subscription.state
        with self._in_flight(queue, call):
            if queue.outcomes.some_wait:
                await subscription.report()
            await self._reconcile_if_needed(subscription)

    async def _stand_down(self, subscription: Subscription, call: Call) -> None:
        try:
            await subscription.stand_down()
        finally:
            subscription.state.end(call)
            self.schedule_soon()

    async def _poll(self, subscription: Subscription, call: Call) -> Taken:
        """Dequeue, and return the answer. The call accepts a hand-off if the policy allows one."""
        queue = subscription.state
        policy = self.holdings.hand_off
        hand_off = policy.may_accept(queue, idle=not self._runs)
        policy.note_poll(queue, accepts=hand_off)
        taken = await subscription.dequeue(
            call.limit, self._safety_poll_seconds, hand_off=hand_off,
            others=lambda: self.holdings.jobs() - call.limit,
        )  # fmt: skip
        queue.note_answer(call, taken)
        return taken

    async def _request_more_first(self, queue: QueueState, call: Call) -> None:
        """Send the next dequeue before this answer's jobs start, so the server works meanwhile."""
        queue.end_flight(call)
        self._schedule()
        await asyncio.sleep(0)  # the dequeue is sent in this pass of the event loop

    def _start(self, queue: QueueState, call: Call, taken: Taken, started: int = 0) -> bool:
        """Start the jobs of an answer. Returns False if the server declared this worker dead, or
        the queue was destroyed.
        """
        if taken.state == "lost":
            self._on_declared_dead()
            return False
        if taken.state == "destroyed":
            self._on_destroyed(queue.index)
            return False
        self.holdings.start(queue, call, taken, started)
        return True

    async def _reconcile_if_needed(self, subscription: Subscription) -> None:
        """Compare the worker's leases with those on the server, unless another call is in flight.

        The worker stops runs whose lease the server does not have. It releases leases that it does
        not know, each after any run of the same id has ended.
        """
        queue = subscription.state
        if queue.calls > 1 or not self._needs_reconcile(queue):
            return
        revocation = self._table.revocation(queue.index)
        unknown, forgotten = await subscription.reconcile(lambda: self.holdings.leases_of(queue))
        for lease in unknown:
            subscription.release_unknown(lease, self._runs.find(queue.index, lease[0]))
        self.holdings.forget(queue, forgotten)
        if not queue.has_arriving:
            self._table.settle_revocation(queue.index, revocation)

    # Messages

    def receive(self, subscription: Subscription, message: bytes) -> None:
        """Handle a message from the server: a wake-up, a time to poll, a job handed off, or a
        run to cancel.

        b"" means that the connection was lost. Messages may have been lost with it.
        """
        word, _, rest = message.partition(b":")
        queue = subscription.state
        match word:
            case b"wake":
                queue.wake()
                self._schedule_now()
            case b"poll":
                with contextlib.suppress(ValueError, OverflowError):  # not a message of ours
                    queue.poll_within(int(rest) / 1000)
                self.schedule_soon()
            case b"job":
                self._receive_job(subscription, message)
            case b"cancel":
                token, _, id_ = rest.partition(b":")
                with contextlib.suppress(ValueError):  # not a message of ours
                    self.cancel(queue.index, decode_text(id_), int(token))
            case b"":
                queue.lose_connection()
                self.schedule_soon()
            case _:  # a newer library sends a kind unknown here: a poll is always safe
                queue.poll_now()
                self.schedule_soon()

    def _receive_job(self, subscription: Subscription, message: bytes) -> None:
        """Start the job that came with a wake-up if there is room, else release it."""
        queue = subscription.state
        try:
            job = subscription.accept_hand_off(message)
        except ValueError:  # not a message of ours
            return
        self.holdings.hand_off.withdraw(queue)
        if job is not None and self._has_room_for(queue, job):
            self.holdings.accept(queue, [job])
            self._runs.go(at_once=True)
        elif job is not None:
            queue.outcomes.add_of(job, Release())
        self.schedule_soon()

    def _has_room_for(self, queue: QueueState, job: Job) -> bool:
        if not self.holdings.admits(job) or not self._leases_are_kept(time.monotonic()):
            return False
        return self.holdings.room().jobs(self._view(queue)) > 0

    def _revoke_hand_off(self, queue: QueueState) -> bool:
        """Accept no more hand-offs, because a job of this queue arrived.

        Returns whether another queue may still hand a job to this worker. If so, the worker asks
        the server of that queue to stop: now or, if a call for that queue is in flight, after its
        answer.
        """
        other = self.holdings.hand_off.revoke(queue)
        if other is None:
            return False
        if other.calls:
            other.require_forwarding()
        else:
            subscription = self._subscriptions[other.index]
            self._begin_call(self._stand_down(subscription, other.begin("stand_down")))
        return True

    def cancel(self, queue: int, id_: str, token: int) -> None:
        """Cancel a run."""
        self._runs.cancel(queue, id_, token)
