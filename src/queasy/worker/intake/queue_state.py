"""The state of one queue in a worker. Only its own methods change it, and it does no I/O.

Phases, by what is in flight:

    idle           no call
    dequeuing      one dequeue
    overlapping    two dequeues; or one, while the jobs of the one before it are about to start
    probing        a dequeue of no jobs, which asks whether one that does not fit is due
    reporting      a report of outcomes, or a reconciliation of leases; no jobs are taken
    standing_down  a request that the server choose another client to poll in time

A queue that is not `serving` takes no jobs, but reports what it still holds.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from typing import Literal

import msgspec

from queasy.store.records import LeaseKey, Taken
from queasy.worker.execution.pace import Pace
from queasy.worker.execution.run import RunEnding
from queasy.worker.intake.activity import Activity, Turn
from queasy.worker.intake.decisions import QueueView
from queasy.worker.intake.lease_ledger import LeaseLedger
from queasy.worker.intake.portions import Portions
from queasy.worker.intake.unreported import Unreported
from queasy.worker.liveness.inflight_table import InflightTable
from queasy.worker.plan import Service

__all__ = ["RETRY_PAUSE", "Call", "Phase", "QueueState"]

CallKind = Literal["dequeue", "probe", "report", "stand_down"]
Phase = Literal["idle", "dequeuing", "overlapping", "probing", "reporting", "standing_down"]
# A worker that could not subscribe to wake-ups polls this often, in seconds.
POLL_WITHOUT_WAKE_UPS = 1.0
# How long a queue is left alone after an error, in seconds. The call itself waited already.
RETRY_PAUSE = 2.0
# A time on the monotonic clock, long past. It cannot be 0, which means "the queue is not served".
LONG_AGO = 1.0


class Call(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One call in flight, and the room that is reserved for what it may bring."""

    kind: CallKind
    limit: int = 0
    units: int = 0
    prefetch: bool = False
    started_at: float = 0.0


class QueueState:
    """One queue as a worker knows it, and the calls that the worker has in flight."""

    def __init__(
        self, service: Service, index: int, table: InflightTable, activity: Activity | None = None
    ) -> None:
        self.service = service
        self.index = index
        self.is_async = service.function.is_async
        self.name = service.name
        self.order_lock = asyncio.Lock()
        """Held while the worker joins or leaves the queue."""
        self.serving = False
        """The worker takes jobs of this queue."""
        self.wanted = False
        """The last order was to serve this queue."""
        self.times = table.times
        """How long this worker's leases last, and all that follows from it."""
        self.leases = LeaseLedger(index, table)
        self.starved = False
        """A job that does not fit has waited long enough: other queues leave it room."""
        self.exhausted = True
        """The last poll found fewer jobs than it requested: the next asks to be woken."""
        self.owes_poll = False
        """The worker must poll, or forward a wake-up. Set when a wake-up arrived that no poll has
        answered, and when the answer to the call in flight may make the server rely on this worker.
        """
        self.poll_at = 0.0
        """When to poll next; 0 for at once."""
        self.reserved = 0
        """Units of capacity that are reserved for what calls may bring."""
        self.reserved_ahead = 0
        """The part of `reserved` that belongs to prefetching calls."""
        self.activity = activity or Activity()
        """The present activity of all queues of this worker."""
        self.portions = Portions(
            index, service.handler.options, self.activity, is_async=self.is_async
        )
        """How early to request the next jobs, and how tightly to pack them."""
        self.outcomes = Unreported(index, table, self.leases, self.activity, self.portions.turnover)
        """The outcomes that the server has not confirmed."""
        self._table = table
        self._in_flight: list[Call] = []
        self._reserving: set[Call] = set()
        self._arriving: dict[Call, Taken] = {}
        """Answers whose jobs are about to start."""
        self.skipped: int | None = None
        """The highest companion limit of the suspects that the last poll skipped; None if it
        skipped none."""
        self._paused_until = 0.0
        self._passed_over_since: float | None = None
        self._probed_at = 0.0
        self._rested = False
        """The worker has rested since it joined or lost its connection."""
        self._poll_by = math.inf
        """When the server asked this worker to poll, since the last poll was sent."""
        self._rouse()

    # State

    @property
    def phase(self) -> Phase:
        if not self._in_flight:
            return "idle"
        match self._in_flight[-1].kind:
            case "dequeue":
                overlaps = len(self._in_flight) > 1 or self._arriving
                return "overlapping" if overlaps else "dequeuing"
            case "probe":
                return "probing"
            case "report":
                return "reporting"
            case "stand_down":
                return "standing_down"

    @property
    def calls(self) -> int:
        """How many calls are in flight."""
        return len(self._in_flight)

    @property
    def busy(self) -> bool:
        """Whether a call is in flight, or anything is left to start or to report."""
        return bool(self._in_flight or self.outcomes.some_wait or self._arriving)

    @property
    def has_arriving(self) -> bool:
        """Whether jobs of an answer are about to start."""
        return bool(self._arriving)

    @property
    def joined(self) -> bool:
        """Whether the server knows this worker as a client of the queue: it may have leases."""
        return bool(self._table.idle_until(self.index))

    def rests_until(self, now: float) -> float | None:
        """When to consider this queue again if nothing happens to it; None for at once."""
        if self.busy or self.owes_poll or self.leases.stale or self.skipped is not None:
            return None
        if not self.serving:
            return None if self.poll_at else math.inf
        turn = self.activity.turn(now)
        if turn is not None and self._waits_for(turn):
            return turn.until
        waits = self.poll_at > now and self._passed_over_since is None
        return self.poll_at if waits else None

    def _waits_for(self, turn: Turn) -> bool:
        """Whether the queue takes turns, and must wait for the end of this one."""
        if turn.queue == self.index or self.index not in self.activity.sharing:
            return False
        return self.service.handler.options.priority <= turn.priority

    def _rouse(self) -> None:
        """Something happened to the queue that may need a decision."""
        self.activity.awake.add(self.index)

    def held_leases(self) -> set[LeaseKey]:
        """Leases of jobs that are about to start, and of outcomes that are not reported yet."""
        held = {(job.id, job.token) for taken in self._arriving.values() for job in taken.jobs}
        return held | self.outcomes.waiting_leases

    def view(self, pace: Pace, *, needs_reconcile: bool, own_units: int) -> QueueView:
        """A snapshot for decisions."""
        call = self._in_flight[-1] if self._in_flight else None
        return QueueView(
            index=self.index,
            priority=self.service.handler.options.priority,
            size=self.portions.size(pace),
            is_async=self.is_async,
            pace=self.portions.usable(pace),
            serving=self.serving,
            calls=len(self._in_flight),
            asked_at=call.started_at if call is not None and call.limit else 0.0,
            probing=call is not None and call.kind == "probe",
            exhausted=self.exhausted,
            has_more=self.portions.has_more,
            prefetches=self.portions.prefetches,
            takes_turns=self.index in self.activity.sharing,
            reserved_ahead=self.reserved_ahead,
            turnover_units=self.portions.turnover_units(pace),
            has_endings=self.outcomes.some_wait,
            needs_reconcile=needs_reconcile,
            poll_at=self.poll_at,
            skipped=self.skipped,
            paused_until=self._paused_until,
            owes_poll=self.owes_poll,
            passed_over_since=self._passed_over_since,
            probed_at=self._probed_at,
            starved=self.starved,
            own_units=own_units,
            last_served=self.portions.last_served,
        )

    # Joining and leaving

    def note_fail_handler(self) -> None:
        """The worker now has a fail handler for the jobs that this queue gives up."""
        self.service = msgspec.structs.replace(self.service, has_fail_handler=True)

    def order_serve(self) -> None:
        """An operator, or the start of the worker, wants the queue served."""
        self.wanted = True

    def order_unserve(self) -> None:
        """An operator wants the worker to leave the queue: it takes no more jobs of it."""
        self.wanted = False
        self.stop_serving()

    def stop_serving(self) -> None:
        self.serving = False
        self.activity.end_sharing(self.index)
        self._rouse()

    def join(self, confirmed_until: float) -> None:
        """The server registered this worker."""
        self.leases.confirm(confirmed_until)
        self._table.set_idle_until(self.index, confirmed_until)
        self.serving, self.exhausted, self.poll_at = True, True, 0.0
        self._rested = False
        self.leases.forget_connection()
        self._rouse()

    def abandon(self) -> None:
        """Nothing keeps the leases alive any more."""
        self.poll_at = 0.0
        self.stop_serving()
        self._table.set_idle_until(self.index, 0.0)

    # Calls

    def begin(self, kind: CallKind, limit: int = 0, units: int = 0) -> Call:
        """A call is about to be sent."""
        now = time.monotonic()
        call = Call(kind, limit, units, self.portions.prefetches, now)
        self._in_flight.append(call)
        self.activity.calling.add(self.index)
        self._rouse()
        self._reserving.add(call)
        self._reserve(call, call.units)
        self.activity.note_requested(call.limit)
        if kind == "probe":
            self._probed_at = now
        elif kind == "dequeue" and self.index in self.activity.sharing:
            self.activity.begin_turn(self.index, self.service.handler.options.priority, now)
        return call

    def begin_poll(self) -> None:
        """A poll is about to be sent: it answers the messages that came before."""
        self.owes_poll, self._poll_by = False, math.inf

    def note_answer(self, call: Call, taken: Taken) -> None:
        """A poll was answered. Its jobs count as arriving until `jobs_started`."""
        self.starved = call.kind == "probe" and taken.next_in == 0
        if not self.starved:
            self._passed_over_since = None
        self.skipped = taken.skipped
        self.portions.note_answer(limit=call.limit, count=taken.count)
        if call.limit:
            self._arriving[call] = taken

    def note_arrival(self, call: Call, taken: Taken, *, fits_many: bool, drained: bool) -> bool:
        """A dequeue was answered. `drained`: no run of the queue is left.

        Returns whether a full portion of async jobs came after all those before them had ended.
        """
        return self.portions.note_arrival(
            full=taken.count == call.limit,
            fits_many=fits_many,
            drained=drained and len(self._arriving) == 1,
        )

    def jobs_started(self, call: Call) -> None:
        """The jobs of an answer start now: they use their room, which is no longer reserved."""
        self._arriving.pop(call, None)
        if call in self._reserving:
            self._reserving.remove(call)
            self._reserve(call, -call.units)
            self.activity.note_requested(-call.limit)

    def _reserve(self, call: Call, units: int) -> None:
        self.reserved += units
        self.activity.reserved.add(units, is_async=self.is_async)
        if call.prefetch:
            self.reserved_ahead += units
            self.activity.note_reserved_ahead(units)

    def end_flight(self, call: Call) -> None:
        """The call is answered: another one may be sent. Its jobs may still be arriving."""
        if call in self._in_flight:
            self._in_flight.remove(call)
            if not self._in_flight:
                self.activity.calling.discard(self.index)

    def end(self, call: Call) -> None:
        """Nothing of the call is left."""
        self.end_flight(call)
        self.jobs_started(call)

    # When to poll

    def plan_poll(self, taken: Taken, limit: int, wait_seconds: float, sent: float) -> None:
        """Set when to poll next, after the answer to a call that was sent at `sent`.

        With `wait_seconds`, the answer says when the server counts on this worker to poll. The
        server wakes the worker when there is a job. If two other waiters keep the time of the
        queue, the server lets this worker rest for longer than `wait_seconds`.
        """
        now = time.monotonic()
        self.exhausted = taken.count < limit or not limit
        self.poll_at = 0.0
        if taken.count:
            # The supervisor bumps as soon as these jobs have ended.
            self._table.set_idle_until(self.index, LONG_AGO)
        elif wait_seconds and not limit and taken.next_in == 0:
            self._stop_waiting()  # a job is due that does not fit: the server counts on others
        elif wait_seconds:
            asked = wait_seconds if taken.next_in is None else taken.next_in
            self._note_sleep(taken, sent, max(asked, wait_seconds))
            asked = self._spread(asked, wait_seconds)
            if not self.leases.listens:
                asked = min(asked, POLL_WITHOUT_WAKE_UPS)
            # The server counts from when it answered, which cannot be before `sent`.
            until = min(sent + asked, self._poll_by)
            # Keep a poll time even if it has just passed: a worker without room then stands down.
            if until > now or asked:
                self.poll_at = until
        if self.owes_poll:
            self.poll_at = 0.0

    def _spread(self, asked: float, wait_seconds: float) -> float:
        """How long to sleep if the server asks for a poll after `asked` seconds.

        A worker rests if that is longer than it wants to wait. Workers that joined or lost their
        connections together must not poll together for ever, so the first rest is shortened.
        """
        if asked <= wait_seconds or self._rested:
            return asked
        self._rested = True
        return random.uniform(wait_seconds, asked)

    def _note_sleep(self, taken: Taken, sent: float, seconds: float) -> None:
        """A poll that was sent at `sent` brought nothing, and this worker waits.

        If it holds nothing, the server extended its lease by that many seconds.
        """
        held = self._table.held_of(self.index)
        if taken.held > held:
            self.leases.mark_stale()  # the message that handed a job off was lost
        elif not held:
            self.leases.confirm(sent + seconds + self.times.lease)
            self._table.set_idle_until(self.index, self.leases.confirmed_until)

    def poll_now(self) -> None:
        self.poll_at = 0.0
        self._rouse()

    def poll_within(self, seconds: float) -> None:
        """The server counts on this worker to poll within that many seconds.

        A call in flight may have been handled before the server asked: its answer changes nothing.
        """
        self._poll_by = min(self._poll_by, time.monotonic() + seconds)
        self.poll_at = min(self.poll_at, self._poll_by)
        self._rouse()

    def wake(self) -> None:
        """The server woke this worker."""
        self.owes_poll, self.poll_at = True, 0.0
        self._rouse()

    def lose_connection(self) -> None:
        """The connection that brings wake-ups was lost, and with it perhaps the server."""
        self.owes_poll, self.poll_at, self._rested = False, 0.0, False
        self._rouse()
        self.leases.note_lost_messages()

    def forward_wake_up(self) -> None:
        """The worker takes no job, and the server does not count it as a waiter any more."""
        self.owes_poll = False
        self._stop_waiting()

    def require_forwarding(self) -> None:
        """When the call in flight is answered, poll again or have the server wake another client.

        The answer may let the server hand jobs to this worker, which is not idle any more.
        """
        self.owes_poll = True

    def stand_down(self) -> None:
        """The worker cannot poll when the server expects it to. Another client will."""
        self.poll_at, self.owes_poll = 0.0, False
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        """Have the supervisor bump soon, unless the worker waits again before that.

        The server does not count the worker as a waiter. Perhaps the worker has no room for a long
        time, and sends no other call for this queue: then a bump has to return the jobs of a dead
        host.
        """
        if self.joined:
            until = min(self._table.idle_until(self.index), time.monotonic() + self.times.lease)
            self._table.set_idle_until(self.index, until)

    def become_waiter_again(self, *, not_before_pause: bool = False) -> None:
        """The server removed this worker from the waiters: poll to become one again.

        A call in flight may have been handled before the removal, so poll after its answer, too.
        """
        self.owes_poll = bool(self._in_flight)
        self._rouse()
        self._stop_waiting()
        self.poll_at = self._paused_until if not_before_pause else 0.0

    def pause(self) -> None:
        """Something failed, and would fail again if it were repeated at once."""
        self.poll_at = self._paused_until = time.monotonic() + RETRY_PAUSE
        self._rouse()

    def pass_over(self) -> None:
        """The queue's job, if it has one, does not fit."""
        self._passed_over_since = self._probed_at = time.monotonic()
        self._stop_waiting()

    def report_failed(self, endings: list[RunEnding]) -> None:
        """These outcomes could not be reported: they are reported after a pause."""
        self.outcomes.give_back(endings)
        self.pause()
