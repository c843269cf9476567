"""What a worker does next with its queues: a pure function of a snapshot.

Queues take their turn by priority. Within one priority, starved queues come first, then those with
smaller jobs, then the one that was served longest ago.

1. A queue with room and a reason to poll dequeues as many jobs as fit. Outcomes are reported with
   the same call.
2. A queue whose answers keep coming back full requests the next portion while the last is on its
   way (prefetch).
3. A queue of lower priority waits while one of higher priority may be about to receive jobs.
4. A queue whose job does not fit is asked, after a while, whether it has one that is due. If so it
   is starved: queues of the same or a lower priority leave it the room it needs.
5. A queue with outcomes to report, or leases to reconcile, does that even if it takes no jobs.
6. A worker that promised the server to poll at a time, and cannot, hands that duty to another
   worker. A wake-up that it has no room for is forwarded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from queasy.worker.intake.capacity import Room, fits_many

__all__ = [
    "Action",
    "Decision",
    "Dequeue",
    "ForwardWakeUp",
    "NoteUnserved",
    "Probe",
    "QueueView",
    "Report",
    "Snapshot",
    "StandDown",
    "decide",
]

# How long a queue whose job does not fit is passed over before it is probed, in seconds.
STARVES_AFTER = 0.1
# How often a starved queue is probed again.
PROBE_EVERY = 1.0
# How long queues of lower priority leave the room free that a call in flight may need.
ANSWER_EXPECTED_WITHIN = 0.05


class QueueView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One queue at one moment, as decisions see it."""

    index: int
    priority: int = 100
    size: int
    is_async: bool = True
    serving: bool = True
    """Whether the worker takes jobs of this queue."""
    calls: int = 0
    """Calls in flight."""
    asked_at: float = 0.0
    """When the last call in flight requested jobs; 0 if it requested none."""
    has_more: bool = False
    prefetches: bool = False
    reserved_ahead: int = 0
    has_endings: bool = False
    needs_reconcile: bool = False
    poll_at: float = 0.0
    """When to poll; 0 for at once."""
    avoid_until: float = 0.0
    paused_until: float = 0.0
    woken: bool = False
    unserved_since: float | None = None
    probed_at: float = 0.0
    starved: bool = False
    own_units: int = 0
    last_served: float = 0.0


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All that a decision depends on."""

    now: float
    queues: Sequence[QueueView]
    room: Room
    closing: bool = False
    """The worker takes no more jobs."""
    exclusive: bool = False
    """A suspect runs, or is about to: nothing else may start."""
    supervised: bool = True
    """Whether anything keeps the leases alive."""
    running: bool = False


class Dequeue(msgspec.Struct, frozen=True, gc=False):
    """Request up to `limit` jobs, with `units` reserved for them; report outcomes on the way."""

    queue: int
    limit: int
    units: int


class Probe(msgspec.Struct, frozen=True, gc=False):
    """Ask whether a job that does not fit is due."""

    queue: int


class Report(msgspec.Struct, frozen=True, gc=False):
    """Report outcomes and reconcile leases, without taking jobs."""

    queue: int


class StandDown(msgspec.Struct, frozen=True, gc=False):
    """Have the server choose another client to poll when the next job is due."""

    queue: int


class ForwardWakeUp(msgspec.Struct, frozen=True, gc=False):
    """Have the server wake another client: this one has no room."""

    queue: int


class NoteUnserved(msgspec.Struct, frozen=True, gc=False):
    """From now on the queue counts as passed over: its job, if it has one, does not fit."""

    queue: int


Action = Dequeue | Probe | Report | StandDown | ForwardWakeUp | NoteUnserved


class Decision(msgspec.Struct, frozen=True):
    actions: list[Action]
    wanted_more: bool
    """More jobs would have been requested if there had been room."""
    poll_at: float | None
    """When to decide again although nothing happened."""


class _Turns(msgspec.Struct):
    """What the queues before this one leave it."""

    room: Room
    actions: list[Action]
    starved: list[QueueView] = []
    reserved_above: int = -1
    """Queues of a lower priority than this leave the free room alone."""
    wanted_more: bool = False

    def want_more(self) -> None:
        self.wanted_more = True

    def dequeue(self, queue: QueueView, limit: int) -> None:
        units = self.room.units(queue, limit)
        self.room.reserved.add(units, is_async=queue.is_async)
        self.actions.append(Dequeue(queue.index, limit, units))

    def reserve_above(self, priority: int) -> None:
        self.reserved_above = max(self.reserved_above, priority)


def decide(now: Snapshot) -> Decision:
    """What to do with each queue, and when to decide again at the latest."""
    turns = _Turns(now.room.copy(), [])
    for queue in _in_turn(now.queues):
        if queue.calls:
            _prefetch(now, queue, turns)
        else:
            _poll_or_report(now, queue, turns)
    return Decision(turns.actions, turns.wanted_more, _next_poll(now))


def _in_turn(queues: Sequence[QueueView]) -> Sequence[QueueView]:
    if len(queues) == 1:
        return queues
    return sorted(queues, key=_turn)


def _turn(queue: QueueView) -> tuple[int, float, int, float]:
    since = queue.unserved_since if queue.starved else None
    return (-queue.priority, math.inf if since is None else since, queue.size, queue.last_served)


def _prefetch(now: Snapshot, queue: QueueView, turns: _Turns) -> None:
    """The queue has calls in flight. Request a further portion, whole or not at all."""
    expects_more = queue.has_more and queue.serving and not now.closing
    may_ask = expects_more and queue.calls == 1 and not queue.needs_reconcile
    limit = 0
    if (
        may_ask
        and queue.priority >= turns.reserved_above
        and fits_many(now.room.capacity, queue.size)
    ):
        limit = _limit(now, queue, turns)
    if limit and limit == turns.room.portion(queue):
        turns.dequeue(queue, limit)
        turns.reserve_above(queue.priority)
    elif now.now - queue.asked_at < ANSWER_EXPECTED_WITHIN:
        turns.reserve_above(queue.priority)


def _poll_or_report(now: Snapshot, queue: QueueView, turns: _Turns) -> None:
    """The queue has no call in flight."""
    limit, probes = 0, False
    wants_to_poll = now.now >= max(queue.poll_at, queue.avoid_until)
    if queue.serving and not now.closing and wants_to_poll:
        if queue.priority < turns.reserved_above:
            turns.want_more()
        else:
            limit = _limit(now, queue, turns)
            probes = not limit and _pass_over(now, queue, turns)
    owes_a_call = queue.has_endings or queue.needs_reconcile
    reports = not limit and not probes and owes_a_call and now.now >= queue.paused_until
    if limit:
        turns.dequeue(queue, limit)
        turns.reserve_above(queue.priority)  # it may receive more, and request the next portion
    elif probes:
        turns.actions.append(Probe(queue.index))
    elif reports:
        turns.actions.append(Report(queue.index))
    elif _misses_its_poll(now, queue, turns):
        turns.actions.append(StandDown(queue.index))
        return
    if queue.woken and not limit:
        turns.actions.append(ForwardWakeUp(queue.index))


def _limit(now: Snapshot, queue: QueueView, turns: _Turns) -> int:
    """How many jobs to request. None that would be lost: without a supervisor the leases expire."""
    if now.exclusive or not now.supervised:
        return 0
    return turns.room.jobs(queue, turns.starved)


def _pass_over(now: Snapshot, queue: QueueView, turns: _Turns) -> bool:
    """The queue's job, if it has one, does not fit. Returns whether to probe for one."""
    turns.want_more()
    if queue.starved:
        turns.starved.append(queue)
    if queue.unserved_since is None:
        turns.actions.append(NoteUnserved(queue.index))
        return False
    patience = PROBE_EVERY if queue.starved else STARVES_AFTER
    return now.now - queue.probed_at > patience


def _misses_its_poll(now: Snapshot, queue: QueueView, turns: _Turns) -> bool:
    """Whether the worker will not poll when it promised to.

    While room is reserved for an answer there may be room again in a moment.
    """
    if not queue.poll_at or turns.room.reserved.total or now.now < queue.paused_until:
        return False
    stays_busy = now.running and (now.closing or not queue.serving)
    return stays_busy or queue.poll_at <= now.now


def _next_poll(now: Snapshot) -> float | None:
    if now.closing:
        return None
    polls = [max(queue.poll_at, queue.avoid_until) for queue in now.queues if queue.serving]
    return min((at for at in polls if at > now.now), default=None)
