"""Decides what a worker does next with its queues: a pure function of a snapshot.

Queues take their turn by priority. Within one priority, starved queues come first, then those with
smaller jobs. Among queues with jobs of one size, the one served longest ago comes first. The jobs
of one dequeue are called a portion.

1. If a poll of a queue is due and the worker has room for jobs of that queue, the worker dequeues
   as many as fit. It reports outcomes with the same call.
2. If a queue's answers keep coming back full, the worker requests the next portion while the
   previous one is on its way.
3. A queue of lower priority waits while one of higher priority may be about to receive jobs.
4. If a queue's jobs do not fit, the worker asks after a while whether one of them is due (probe).
   If one is due, the queue is starved: queues of the same or a lower priority leave it the room it
   needs.
5. The worker reports outcomes and reconciles leases even for queues of which it takes no jobs.
6. If the server expects the worker to poll at a certain time, and the worker cannot, the worker
   stands down: the server chooses another client. If a wake-up arrives and the worker has no room,
   the worker forwards the wake-up.
7. Queues with many short async jobs take turns: while one has its turn, the others of the same or a
   lower priority take nothing.
8. A suspect may have only so many companions in its process. While one runs, the worker requests no
   more jobs than that. If a poll had to skip suspects, the worker polls again as soon as they fit.
   Now and then it makes room for them: queues of the same or a lower priority take nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from queasy.worker.intake.activity import Turn
from queasy.worker.intake.capacity import Room, StarvedNeeds, fits_many

__all__ = [
    "Action",
    "Decision",
    "Dequeue",
    "ForwardWakeUp",
    "NotePassedOver",
    "Probe",
    "QueueView",
    "Report",
    "Snapshot",
    "StandDown",
    "decide",
]

# The worker passes over a queue whose job does not fit. After this many seconds the worker probes
# the queue.
STARVES_AFTER = 0.1
# Seconds between two probes of a starved queue.
PROBE_EVERY = 1.0
# The worker leaves room for this many starved queues at a time. It probes no others meanwhile.
MAX_STARVED = 8
# After a call has requested jobs, queues of lower priority take no room for this many seconds: the
# jobs that the answer brings may need it.
ANSWER_EXPECTED_WITHIN = 0.05


class QueueView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One queue at one moment, as decisions see it. Times are on the monotonic clock."""

    index: int
    """The queue's place among the worker's queues. Actions name the queue by it."""
    priority: int = 100
    """Queues with a higher priority take their turn first."""
    size: int
    """Units of capacity that one job takes."""
    is_async: bool = True
    """Whether the handler is async."""
    pace: float = 1.0
    """The part of the worker's capacity that jobs of this kind of handler may use."""
    serving: bool = True
    """Whether the worker takes jobs of this queue."""
    calls: int = 0
    """Calls in flight."""
    asked_at: float = 0.0
    """When the latest call in flight was sent; 0 if that call requests no jobs."""
    probing: bool = False
    """The latest call in flight is a probe."""
    exhausted: bool = False
    """The last poll found fewer jobs than it requested."""
    has_more: bool = False
    """The last dequeue brought as many jobs as it requested, so more are likely."""
    prefetches: bool = False
    """The next dequeue prefetches: jobs are so short that a portion ends before the next starts."""
    takes_turns: bool = False
    """The queue has many short async jobs, and takes turns with others like it."""
    reserved_ahead: int = 0
    """Units of capacity that are reserved for prefetching calls."""
    turnover_units: int = 0
    """Units of the queue's jobs that end within 2 ms: as many more may be held ready."""
    has_endings: bool = False
    """Outcomes wait to be reported."""
    needs_reconcile: bool = False
    """The queue's leases must be compared with those on the server."""
    poll_at: float = 0.0
    """When to poll; 0 for at once."""
    skipped: int | None = None
    """The highest companion limit of the suspects that the last poll skipped; None if it skipped
    none."""
    paused_until: float = 0.0
    """No report or reconciliation before this time, because something failed."""
    owes_poll: bool = False
    """The worker must poll, or forward a wake-up: see `QueueState.owes_poll`."""
    passed_over_since: float | None = None
    """When the worker first passed the queue over because its job, if it has one, does not fit.
    None if the worker does not pass it over."""
    probed_at: float = 0.0
    """When the worker last probed the queue, or first passed it over, whichever was later."""
    starved: bool = False
    """A job that does not fit has waited long enough: other queues leave it room."""
    own_units: int = 0
    """Units of capacity that the queue's own runs use. Only set if it is starved."""
    last_served: float = 0.0
    """When a dequeue of the queue was last answered."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All that a decision depends on."""

    now: float
    queues: Sequence[QueueView]
    room: Room
    closing: bool = False
    """The worker takes no more jobs."""
    jobs: int = 0
    """Jobs in this process: those that run, are not reported yet, or may come with an answer."""
    most_jobs: int | None = None
    """The limit on jobs in this process while a suspect is here; None without a suspect."""
    makes_room: bool = False
    """The worker makes room for suspects that it had to skip."""
    leases_are_kept: bool = True
    """Leases are kept alive: the worker is inline, or its supervisor ran recently."""
    running: bool = False
    """At least one job runs."""
    jobs_left: int | None = None
    """How many more jobs the worker may request; None if there is no limit."""
    turn: Turn | None = None
    """The turn of a queue with many short async jobs; None if none lasts."""


class Dequeue(msgspec.Struct, frozen=True, gc=False):
    """Request up to `limit` jobs, reserve `units` for them, and report outcomes with the call."""

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


class NotePassedOver(msgspec.Struct, frozen=True, gc=False):
    """From now on the queue counts as passed over: its job, if it has one, does not fit."""

    queue: int


Action = Dequeue | Probe | Report | StandDown | ForwardWakeUp | NotePassedOver


class Decision(msgspec.Struct, frozen=True):
    actions: list[Action]
    wanted_more: bool
    """More jobs would have been requested if there had been room."""
    decide_again_at: float | None
    """When to decide again if no event comes first."""


class _Turns(msgspec.Struct):
    """What is decided so far: the actions, and the room that is left for the next queues."""

    room: Room
    actions: list[Action]
    contenders: dict[int, int]
    """How many queues of each priority want to poll now."""
    starved: int
    """How many queues of this or a higher priority are starved, or will be if their probe finds a
    job."""
    jobs: int
    """Jobs in this process, with those that are requested now."""
    needs: StarvedNeeds = msgspec.field(default_factory=StarvedNeeds)
    """The room to leave to the starved queues that had their turn."""
    most_jobs: float = math.inf
    """The limit on jobs in this process while a suspect is here, or may come with an answer."""
    room_priority: int = -1
    """Queues of this priority or a lower one take nothing: a suspect needs the room."""
    min_priority: int = -1
    """Queues of a lower priority than this take nothing: the room is for the others."""
    wanted_more: bool = False
    jobs_left: int | None = None
    turn: tuple[int, int] | None = None
    """Which queue has its turn, and its priority."""

    def let_wait_for(self, queue: int, priority: int) -> None:
        """Let others wait for the turn of this queue."""
        self.turn = (queue, priority)

    def waits_for_turn(self, queue: QueueView) -> bool:
        """Whether it is the turn of another queue."""
        if self.turn is None or not queue.takes_turns:
            return False
        holder, priority = self.turn
        return queue.index != holder and queue.priority <= priority

    def want_more(self) -> None:
        self.wanted_more = True

    def dequeue(self, queue: QueueView, limit: int) -> None:
        units = self.room.units(queue, limit)
        self.room.reserved.add(units, is_async=queue.is_async)
        self.jobs += limit
        self.actions.append(Dequeue(queue.index, limit, units))
        if queue.takes_turns:
            self.let_wait_for(queue.index, queue.priority)
        if self.jobs_left is not None:
            self.jobs_left -= limit

    def note_probe(self, queue: QueueView) -> None:
        self.actions.append(Probe(queue.index))
        self.starved += not queue.starved

    def leave_room_for(self, starved: QueueView) -> None:
        self.starved += 1
        self.needs.add(self.room, starved)

    def limit_jobs(self, most: int) -> None:
        self.most_jobs = min(self.most_jobs, most)

    def make_room(self, priority: int) -> None:
        self.room_priority = priority

    def raise_min_priority(self, priority: int) -> None:
        self.min_priority = max(self.min_priority, priority)


def decide(snapshot: Snapshot) -> Decision:
    """The actions for all queues, and when to decide again at the latest."""
    probing = sum(queue.probing for queue in snapshot.queues)
    contenders, left = _contenders(snapshot), snapshot.jobs_left
    turns = _Turns(snapshot.room.copy(), [], contenders, probing, snapshot.jobs, jobs_left=left)
    if snapshot.turn is not None:
        turns.let_wait_for(snapshot.turn.queue, snapshot.turn.priority)
    if snapshot.most_jobs is not None:
        turns.limit_jobs(snapshot.most_jobs)
    if snapshot.makes_room:
        turns.make_room(
            max(queue.priority for queue in snapshot.queues if queue.skipped is not None)
        )
    for queue in _in_turn(snapshot.queues):
        if queue.calls:
            _request_next_portion(snapshot, queue, turns)
        else:
            _poll_or_report(snapshot, queue, turns)
    return Decision(turns.actions, turns.wanted_more, _next_poll(snapshot))


def _contenders(snapshot: Snapshot) -> dict[int, int]:
    counts: dict[int, int] = {}
    for queue in snapshot.queues:
        if not queue.calls and _wants_to_poll(snapshot, queue, snapshot.jobs):
            counts[queue.priority] = counts.get(queue.priority, 0) + 1
    return counts


def _wants_to_poll(snapshot: Snapshot, queue: QueueView, jobs: int) -> bool:
    may_poll = queue.serving and not snapshot.closing
    probes = snapshot.makes_room and queue.skipped is not None
    is_time = snapshot.now >= queue.poll_at or probes or _suspects_fit(queue, jobs)
    return may_poll and is_time


def _suspects_fit(queue: QueueView, jobs: int) -> bool:
    """Whether suspects that the last poll skipped may run beside so many jobs."""
    return queue.skipped is not None and jobs <= queue.skipped


def _in_turn(queues: Sequence[QueueView]) -> Sequence[QueueView]:
    if len(queues) == 1:
        return queues
    return sorted(queues, key=_turn)


def _turn(queue: QueueView) -> tuple[int, float, int, float, int]:
    since = queue.passed_over_since if queue.starved else None
    waits_since = math.inf if since is None else since
    return (-queue.priority, waits_since, queue.size, queue.last_served, queue.index)


def _request_next_portion(snapshot: Snapshot, queue: QueueView, turns: _Turns) -> None:
    """Request the next portion of a queue that has calls in flight, if all of it fits."""
    expects_more = queue.has_more and queue.serving and not snapshot.closing
    may_ask = expects_more and queue.calls == 1 and not queue.needs_reconcile
    may_ask = may_ask and not turns.waits_for_turn(queue)
    limit = 0
    if may_ask and queue.priority >= turns.min_priority:
        many = fits_many(snapshot.room.capacity, queue.size)
        limit = _limit(snapshot, queue, turns) if many else 0
    if limit and limit == turns.room.portion(queue):
        turns.dequeue(queue, limit)
        turns.raise_min_priority(queue.priority)
    elif snapshot.now - queue.asked_at < ANSWER_EXPECTED_WITHIN:
        turns.raise_min_priority(queue.priority)


def _poll_or_report(snapshot: Snapshot, queue: QueueView, turns: _Turns) -> None:
    """Poll, probe, report or stand down, for a queue that has no call in flight."""
    limit, probes = 0, False
    if _wants_to_poll(snapshot, queue, turns.jobs):
        if queue.priority < turns.min_priority or turns.waits_for_turn(queue):
            turns.want_more()
        else:
            limit = _limit(snapshot, queue, turns)
            if _room_comes_soon(snapshot, queue, turns, limit):
                limit = 0
                turns.want_more()
            elif not limit:
                _pass_over(queue, turns)
                probes = _is_probe_due(snapshot, queue, turns)
    owes_a_call = queue.has_endings or queue.needs_reconcile
    reports = not limit and not probes and owes_a_call and snapshot.now >= queue.paused_until
    if limit:
        turns.dequeue(queue, limit)
        # Leave the rest of the room to this queue: it may soon request the next portion.
        turns.raise_min_priority(queue.priority)
    elif probes:
        turns.note_probe(queue)
    elif reports:
        turns.actions.append(Report(queue.index))
    elif _misses_its_poll(snapshot, queue, turns):
        turns.actions.append(StandDown(queue.index))
        return
    if queue.owes_poll and not limit:
        turns.actions.append(ForwardWakeUp(queue.index))


def _limit(snapshot: Snapshot, queue: QueueView, turns: _Turns) -> int:
    """How many jobs to request: 0 while nothing keeps leases alive, or a suspect needs the room."""
    suspects_fit = _suspects_fit(queue, turns.jobs)
    yields = queue.priority <= turns.room_priority and not suspects_fit
    if yields or not snapshot.leases_are_kept:
        return 0
    if suspects_fit and queue.skipped is not None:
        turns.limit_jobs(queue.skipped + 1)  # so that no other queue fills the room of the suspects
    alone = len(snapshot.queues) == 1  # otherwise another queue may need the next room
    fit = turns.room.jobs(queue, turns.needs, ready=queue.turnover_units if alone else 0)
    limit = int(min(fit, max(0, turns.most_jobs - turns.jobs)))
    if queue.exhausted:  # most likely few jobs are there: leave room for the polls of other queues
        limit = min(limit, turns.room.share(queue, turns.contenders.get(queue.priority, 1)))
    return limit if turns.jobs_left is None else min(limit, turns.jobs_left)


def _room_comes_soon(snapshot: Snapshot, queue: QueueView, turns: _Turns, limit: int) -> bool:
    """Whether the room for a portion of a queue that takes turns is used by short jobs only.

    A small portion would cost as many calls as a large one.
    """
    short_jobs_come = queue.takes_turns and snapshot.room.reserved_ahead > 0
    return short_jobs_come and 2 * limit < turns.room.portion(queue)


def _pass_over(queue: QueueView, turns: _Turns) -> None:
    """Note that the queue's job, if it has one, does not fit."""
    turns.want_more()
    if queue.starved:
        turns.leave_room_for(queue)
    if queue.passed_over_since is None:
        turns.actions.append(NotePassedOver(queue.index))


def _is_probe_due(snapshot: Snapshot, queue: QueueView, turns: _Turns) -> bool:
    """Whether the worker asks now if a queue that it passed over has a job that is due."""
    if queue.passed_over_since is None:
        return False
    if not queue.starved and turns.starved >= MAX_STARVED:
        return False  # it has its turn when one of those has had its own
    interval = PROBE_EVERY if queue.starved else STARVES_AFTER
    return snapshot.now - queue.probed_at > interval


def _misses_its_poll(snapshot: Snapshot, queue: QueueView, turns: _Turns) -> bool:
    """Whether the worker will not poll when the server expects it to.

    False while room is reserved for an answer: some of that room may soon be free, and then the
    worker can poll.
    """
    if not queue.poll_at or turns.room.reserved.total or snapshot.now < queue.paused_until:
        return False
    stays_busy = snapshot.running and (snapshot.closing or not queue.serving)
    return stays_busy or queue.poll_at <= snapshot.now


def _next_poll(snapshot: Snapshot) -> float | None:
    """When the next poll or report is due.

    When a pause ends, the worker reports even for a queue that it does not serve.
    """
    times: list[float] = []
    for queue in snapshot.queues:
        if queue.has_endings or queue.needs_reconcile:
            times.append(queue.paused_until)
        if queue.serving and not snapshot.closing:
            times.append(queue.poll_at)
    return min((at for at in times if at > snapshot.now), default=None)
