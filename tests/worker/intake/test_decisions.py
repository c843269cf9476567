"""What a worker does next with its queues, decided without a server."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queasy.worker.execution.units import Units
from queasy.worker.intake.activity import Turn
from queasy.worker.intake.capacity import MANY, Room
from queasy.worker.intake.decisions import (
    MAX_STARVED,
    Decision,
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

NOW = 1000.0
CAPACITY = 100


def queue(index: int = 0, size: int = 10, **fields: Any) -> QueueView:
    return QueueView(index=index, size=size, **fields)


def room(used: int = 0, reserved: int = 0) -> Room:
    return Room(CAPACITY, Units(awaited=used), Units(awaited=reserved))


def decision(*queues: QueueView, **fields: Any) -> Decision:
    fields.setdefault("room", room())
    fields.setdefault("running", fields["room"].used.total > 0)
    return decide(Snapshot(now=NOW, queues=queues, **fields))


def actions(*queues: QueueView, **fields: Any) -> list[Any]:
    return decision(*queues, **fields).actions


# Polling


def test_queue_that_is_alone_may_hold_jobs_ready_beyond_the_capacity() -> None:
    """They begin as soon as others end, without a call to the server in between."""
    full, busy = room(used=CAPACITY), queue(size=1, turnover_units=20)
    assert actions(busy, room=full) == [Dequeue(0, limit=20, units=20)]


def test_queue_beside_others_holds_no_jobs_ready() -> None:
    full, busy = room(used=CAPACITY), queue(size=1, turnover_units=20)
    for_two = actions(busy, queue(1), room=full)
    assert not any(isinstance(action, Dequeue) for action in for_two)


def test_idle_worker_requests_half_of_what_fits() -> None:
    """The other half is requested while these are on their way."""
    assert actions(queue(size=10)) == [Dequeue(0, limit=5, units=50)]


def test_idle_worker_requests_a_third_where_many_jobs_fit() -> None:
    assert actions(queue(size=1)) == [Dequeue(0, limit=33, units=33)]


def test_idle_worker_requests_one_job_that_is_larger_than_its_capacity() -> None:
    assert actions(queue(size=250)) == [Dequeue(0, limit=1, units=250)]


def test_busy_worker_requests_no_more_than_fits() -> None:
    assert actions(queue(size=10), room=room(used=75)) == [Dequeue(0, limit=2, units=20)]


def test_queue_is_not_polled_before_its_time() -> None:
    found = decision(queue(poll_at=NOW + 3))
    assert found.actions == []
    assert found.decide_again_at == NOW + 3


def test_queue_that_the_worker_left_is_not_polled() -> None:
    assert actions(queue(serving=False)) == []
    assert decision(queue(serving=False, poll_at=NOW + 3)).decide_again_at is None


@pytest.mark.parametrize(
    "fields", [{"jobs": 1, "most_jobs": 1}, {"leases_are_kept": False}], ids=str
)
def test_no_job_is_requested_beside_a_suspect_or_if_leases_may_end(fields: dict[str, Any]) -> None:
    assert actions(queue(), **fields) == [NotePassedOver(0)]


# Suspects


def test_no_more_jobs_are_requested_than_a_suspect_may_have_beside_it() -> None:
    asked = actions(queue(0, size=1), queue(1, size=1), jobs=30, most_jobs=50)
    assert asked == [Dequeue(0, limit=20, units=20), NotePassedOver(1)]


def test_queue_that_skipped_suspects_is_polled_as_soon_as_they_fit() -> None:
    skipping = queue(poll_at=NOW + 3, skipped=2)
    assert actions(skipping, jobs=3) == []
    assert actions(skipping, jobs=2) == [Dequeue(0, limit=1, units=10)]
    assert actions(skipping, jobs=0) == [Dequeue(0, limit=3, units=30)]


def test_only_one_queue_polls_for_a_suspect_that_must_be_alone() -> None:
    """Else each of the two polls counts the other's jobs as companions, and skips its suspect."""
    both = [queue(0, poll_at=NOW + 3, skipped=0), queue(1, poll_at=NOW + 3, skipped=0)]
    assert actions(*both) == [Dequeue(0, limit=1, units=10)]


def test_other_queues_take_no_jobs_while_the_worker_makes_room_for_a_suspect() -> None:
    skipping = queue(0, poll_at=NOW + 3, skipped=0, priority=1)
    others = [queue(index, priority=index) for index in (1, 2)]
    passed_over = [NotePassedOver(0), NotePassedOver(1)]
    assert actions(skipping, others[0], jobs=4, makes_room=True) == passed_over
    found = actions(skipping, *others, jobs=4, makes_room=True)
    assert found == [Dequeue(2, limit=5, units=50)], "a queue of higher priority"


def test_worker_that_makes_room_asks_whether_the_suspect_still_waits() -> None:
    """Another worker may have taken it: then other jobs need not wait."""
    waiting = queue(poll_at=NOW + 3, skipped=0, passed_over_since=NOW - 9, probed_at=NOW - 9)
    assert actions(waiting, jobs=4, makes_room=True) == [Probe(0)]
    assert actions(waiting, jobs=4) == []


def test_async_handlers_that_compute_get_only_the_room_their_pace_allows() -> None:
    slow = room(used=10)
    assert actions(queue(size=10, pace=0.1), room=slow) == [NotePassedOver(0)]
    assert actions(queue(size=10, is_async=False), room=slow) == [Dequeue(0, limit=5, units=50)]


# Prefetching


def test_queue_that_has_more_requests_a_second_portion_while_the_first_is_on_its_way() -> None:
    asked = queue(size=1, calls=1, has_more=True)
    assert actions(asked, room=room(reserved=33)) == [Dequeue(0, limit=33, units=33)]


@pytest.mark.parametrize(
    "fields",
    [{"has_more": False}, {"calls": 2}, {"serving": False}, {"needs_reconcile": True}],
    ids=str,
)
def test_queue_that_may_not_ask_again_requests_no_second_portion(fields: dict[str, Any]) -> None:
    asked = queue(**{"size": 1, "calls": 1, "has_more": True, **fields})
    assert actions(asked, room=room(reserved=33)) == []


def test_second_portion_is_requested_whole_or_not_at_all() -> None:
    asked = queue(size=1, calls=1, has_more=True)
    assert actions(asked, room=room(used=35, reserved=33)) == []


def test_second_portion_is_not_requested_where_few_jobs_fit() -> None:
    few = queue(size=CAPACITY // MANY + 1, calls=1, has_more=True)
    assert actions(few, room=room(reserved=30)) == []


def test_prefetching_queue_requests_the_whole_capacity_and_reserves_a_third() -> None:
    short = queue(size=1, prefetches=True)
    assert actions(short, room=room(used=1)) == [Dequeue(0, limit=100, units=33)]


def test_queue_that_stops_prefetching_waits_for_what_is_on_its_way() -> None:
    """More jobs are on their way than room was reserved for."""
    assert actions(queue(size=1, reserved_ahead=33), room=room(used=10, reserved=33)) == [
        NotePassedOver(0)
    ]


# Turns


def test_queue_waits_for_the_turn_of_another_and_reports_meanwhile() -> None:
    turn = Turn(0, 100, NOW + 1)
    having = queue(0, 1, prefetches=True, takes_turns=True)
    waiting = queue(1, 1, prefetches=True, takes_turns=True, has_endings=True)
    found = decision(having, waiting, turn=turn)
    assert found.actions == [Dequeue(0, limit=100, units=33), Report(1)]
    assert found.wanted_more
    overlapping = queue(1, 1, takes_turns=True, has_more=True, calls=1)
    assert actions(overlapping, turn=turn) == []
    assert actions(overlapping) == [Dequeue(1, limit=33, units=33)]


@pytest.mark.parametrize("fields", [{}, {"takes_turns": True, "priority": 101}], ids=str)
def test_queue_without_turns_or_of_higher_priority_does_not_wait_for_a_turn(
    fields: dict[str, Any],
) -> None:
    other = queue(1, 1, **fields)
    assert actions(other, turn=Turn(0, 100, NOW + 1)) == [Dequeue(1, limit=33, units=33)]


def test_only_one_queue_begins_its_turn() -> None:
    both = [queue(index, 1, prefetches=True, takes_turns=True) for index in (0, 1)]
    assert actions(*both) == [Dequeue(0, limit=100, units=33)]


def test_queue_waits_for_the_room_of_short_jobs_instead_of_a_small_portion() -> None:
    next_in_turn = queue(size=1, prefetches=True, takes_turns=True)
    full = room(used=50, reserved=40)
    assert actions(next_in_turn, room=full) == [Dequeue(0, limit=30, units=10)]
    full.reserved_ahead = 40
    assert actions(next_in_turn, room=full) == []


# Priorities


def test_higher_priority_is_served_and_lower_waits_for_the_answer() -> None:
    low, high = queue(0, priority=1), queue(1, priority=2)
    found = decision(low, high)
    assert found.actions == [Dequeue(1, limit=5, units=50)]
    assert found.wanted_more


@pytest.mark.parametrize(("seconds_ago", "waits"), [(0.01, True), (0.2, False)])
def test_lower_priority_waits_only_as_long_as_an_answer_takes(
    seconds_ago: float, waits: bool
) -> None:
    low = queue(0, priority=1)
    asked = queue(1, priority=2, calls=1, asked_at=NOW - seconds_ago)
    assert bool(actions(low, asked)) is not waits


def test_second_portion_of_a_lower_priority_waits_for_the_answer_of_a_higher_one() -> None:
    low = queue(0, size=1, priority=1, calls=1, has_more=True)
    assert actions(low, queue(1, size=1, priority=2), room=room(reserved=10)) == [
        Dequeue(1, limit=33, units=33)
    ]


def test_second_portion_does_not_wait_for_a_queue_of_the_same_priority() -> None:
    asked = queue(0, size=1, calls=1, has_more=True)
    assert actions(asked, queue(1, size=1), room=room(reserved=10)) == [
        Dequeue(0, limit=33, units=33),
        Dequeue(1, limit=33, units=33),
    ]


def test_lower_priority_waits_for_a_second_portion_of_a_higher_one() -> None:
    high = queue(1, size=1, priority=2, calls=1, has_more=True)
    assert actions(queue(0, size=1, priority=1), high, room=room(reserved=33)) == [
        Dequeue(1, limit=33, units=33)
    ]


def test_queues_of_the_same_priority_share_the_room() -> None:
    found = actions(queue(0), queue(1))
    assert found == [Dequeue(0, limit=5, units=50), Dequeue(1, limit=5, units=50)]


def test_queue_served_longest_ago_comes_first() -> None:
    first, *_ = actions(queue(0, last_served=NOW - 1), queue(1, last_served=NOW - 2))
    assert first == Dequeue(1, limit=5, units=50)


def test_queue_with_smaller_jobs_comes_first() -> None:
    assert [action.queue for action in actions(queue(0, size=20), queue(1, size=10))] == [1, 0]


# Jobs that do not fit


def test_worker_without_room_for_a_job_wanted_more() -> None:
    assert decision(queue(), room=room(used=95)).wanted_more
    assert not decision(queue()).wanted_more


def test_queue_whose_job_does_not_fit_is_probed_after_a_while() -> None:
    full = room(used=95)
    assert actions(queue(), room=full) == [NotePassedOver(0)]
    waiting = queue(passed_over_since=NOW - 0.05, probed_at=NOW - 0.05)
    assert actions(waiting, room=full) == []
    waiting = queue(passed_over_since=NOW - 0.2, probed_at=NOW - 0.2)
    assert actions(waiting, room=full) == [Probe(0)]


def test_starved_queue_is_probed_once_a_second() -> None:
    starved = queue(starved=True, passed_over_since=NOW - 9, probed_at=NOW - 0.5)
    assert actions(starved, room=room(used=95)) == []
    starved = msgspec.structs.replace(starved, probed_at=NOW - 1.1)
    assert actions(starved, room=room(used=95)) == [Probe(0)]


def test_room_that_comes_free_is_left_to_the_starved_queue() -> None:
    starved = queue(0, size=60, starved=True, passed_over_since=NOW - 1, probed_at=NOW)
    small = queue(1, size=1)
    assert actions(starved, small, room=room(used=50)) == [NotePassedOver(1)]


def test_room_that_the_starved_queue_cannot_use_is_not_left_idle() -> None:
    """The next job of the starved queue waits for that queue's own run. Then both queues fit."""
    starved = queue(
        0, size=60, starved=True, passed_over_since=NOW - 1, probed_at=NOW, own_units=60
    )
    assert actions(starved, queue(1, size=1), room=room(used=60)) == [
        Dequeue(1, limit=33, units=33)
    ]


def test_starved_queue_of_lower_priority_takes_no_room_from_a_higher_one() -> None:
    starved = queue(0, size=60, priority=1, starved=True, passed_over_since=NOW - 1, probed_at=NOW)
    high = queue(1, size=1, priority=2)
    assert Dequeue(1, limit=33, units=33) in actions(starved, high, room=room(used=50))


def test_many_queues_that_do_not_fit_are_probed_a_few_at_a_time() -> None:
    """Bug: the worker probed each of a thousand queues every second, and ran no jobs."""
    waiting = [queue(n, passed_over_since=NOW - 1, probed_at=NOW - 1) for n in range(100)]
    found = actions(*waiting, room=room(used=95))
    assert found == [Probe(n) for n in range(MAX_STARVED)]
    probed = [queue(n, calls=1, probing=True) for n in range(MAX_STARVED)]
    assert actions(*probed, *waiting[MAX_STARVED:], room=room(used=95)) == []
    since = {"passed_over_since": NOW - 2, "probed_at": NOW}
    starved = [queue(n, starved=True, **since) for n in range(MAX_STARVED)]
    assert actions(*starved, *waiting[MAX_STARVED:], room=room(used=95)) == []
    high = queue(100, priority=200, passed_over_since=NOW - 1, probed_at=NOW - 1)
    assert actions(*starved, *waiting[MAX_STARVED:], high, room=room(used=95)) == [Probe(100)]


def test_many_queues_that_may_be_empty_share_the_room_of_one_look() -> None:
    """Bug: two polls of empty queues reserved all room, so queues were polled two at a time."""
    found = actions(*(queue(n, exhausted=True) for n in range(100)))
    assert [action for action in found if isinstance(action, Dequeue)] == [
        Dequeue(n, limit=1, units=10) for n in range(10)
    ]


def test_queue_that_had_all_it_was_asked_for_does_not_share_its_portion() -> None:
    first, *_ = actions(queue(0), *(queue(n, exhausted=True) for n in range(1, 100)))
    assert first == Dequeue(0, limit=5, units=50)


# Reporting, reconciling, waiting


@pytest.mark.parametrize("fields", [{"has_endings": True}, {"needs_reconcile": True}], ids=str)
@pytest.mark.parametrize("serving", [True, False])
def test_outcomes_and_reconciling_do_not_wait_for_room(
    fields: dict[str, Any], serving: bool
) -> None:
    owes = queue(serving=serving, passed_over_since=NOW, probed_at=NOW, **fields)
    assert actions(owes, room=room(used=100)) == [Report(0)]
    paused = msgspec.structs.replace(owes, paused_until=NOW + 1)
    assert actions(paused, room=room(used=100)) == []


@pytest.mark.parametrize("fields", [{"has_endings": True}, {"needs_reconcile": True}], ids=str)
@pytest.mark.parametrize("closing", [True, False])
def test_paused_queue_reports_after_its_pause_even_if_it_is_not_served(
    fields: dict[str, Any], closing: bool
) -> None:
    """Bug: no timer was set. The lease was kept for ever, and leaving the queue never ended."""
    paused = queue(serving=False, paused_until=NOW + 1, **fields)
    assert decision(paused, closing=closing).decide_again_at == NOW + 1


def test_outcomes_are_reported_with_the_poll_where_there_is_room() -> None:
    assert actions(queue(has_endings=True)) == [Dequeue(0, limit=5, units=50)]


def test_wake_up_is_forwarded_without_room() -> None:
    woken = queue(owes_poll=True, passed_over_since=NOW, probed_at=NOW)
    assert actions(woken, room=room(used=100)) == [ForwardWakeUp(0)]
    assert actions(msgspec.structs.replace(woken, has_endings=True), room=room(used=100)) == [
        Report(0),
        ForwardWakeUp(0),
    ]


def test_wake_up_is_not_forwarded_with_room() -> None:
    assert actions(queue(owes_poll=True)) == [Dequeue(0, limit=5, units=50)]


def test_worker_that_cannot_poll_in_time_stands_down() -> None:
    late = queue(poll_at=NOW - 0.01, passed_over_since=NOW, probed_at=NOW)
    assert actions(late, room=room(used=100)) == [StandDown(0)]


def test_paused_queue_does_not_stand_down() -> None:
    """The pause set the time of the next poll: the server does not expect a poll then."""
    late = queue(poll_at=NOW, paused_until=NOW + 1, passed_over_since=NOW, probed_at=NOW)
    assert actions(late, room=room(used=100)) == []


def test_worker_that_left_the_queue_while_jobs_run_stands_down_at_once() -> None:
    left = queue(serving=False, poll_at=NOW + 5)
    assert actions(left, room=room(used=10)) == [StandDown(0)]


def test_worker_with_runs_does_not_stand_down_before_its_time() -> None:
    assert actions(queue(poll_at=NOW + 5), room=room(used=50)) == []


def test_worker_does_not_stand_down_while_an_answer_may_free_its_room() -> None:
    late = queue(poll_at=NOW - 0.01, passed_over_since=NOW, probed_at=NOW)
    assert actions(late, room=room(used=50, reserved=50)) == []


@pytest.mark.parametrize("running", [True, False])
def test_worker_that_stops_while_jobs_run_stands_down_at_once(running: bool) -> None:
    later = queue(poll_at=NOW + 5)
    found = actions(later, closing=True, running=running, room=room(used=10 if running else 0))
    assert found == ([StandDown(0)] if running else [])


# Properties

sizes = st.sampled_from((1, 2, 3, 10, 33, 50, 60, 100, 250))
turns = st.builds(Turn, st.integers(0, 4), st.integers(0, 2), st.just(NOW + 1))
times = st.sampled_from((0.0, NOW - 9, NOW - 0.2, NOW - 0.01, NOW + 1))


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Any state, with no more used and reserved than fits, or one large job alone."""
    queues: list[QueueView] = []
    for index in range(draw(st.integers(1, 4))):
        calls = draw(st.integers(0, 2))
        starved = draw(st.booleans()) and not calls
        queues.append(
            queue(
                index,
                draw(sizes),
                priority=draw(st.integers(0, 2)),
                is_async=draw(st.booleans()),
                pace=draw(st.sampled_from((0.1, 0.5, 1.0))),
                serving=draw(st.booleans()),
                calls=calls,
                asked_at=draw(times) if calls else 0.0,
                has_more=draw(st.booleans()),
                prefetches=draw(st.booleans()),
                takes_turns=draw(st.booleans()),
                has_endings=draw(st.booleans()),
                needs_reconcile=draw(st.booleans()),
                poll_at=draw(times),
                skipped=draw(st.none() | st.integers(0, 3)),
                paused_until=draw(times),
                owes_poll=draw(st.booleans()),
                passed_over_since=NOW - 9 if starved else draw(st.none() | st.just(NOW - 1)),
                probed_at=draw(times),
                starved=starved,
                last_served=draw(times),
            )
        )
    used = draw(st.integers(0, CAPACITY))
    plain = draw(st.integers(0, used))
    reserved = draw(st.integers(0, CAPACITY - used))
    free = Room(
        CAPACITY,
        Units(awaited=used - plain, plain=plain),
        Units(awaited=reserved),
    )
    return Snapshot(
        now=NOW,
        queues=queues,
        room=free,
        closing=draw(st.booleans()),
        jobs=draw(st.integers(0, 4)),
        most_jobs=draw(st.none() | st.integers(1, 5)),
        makes_room=False,
        leases_are_kept=draw(st.booleans()),
        running=used > 0,
        turn=draw(st.none() | turns),
    )


def dequeues(found: Decision) -> list[Dequeue]:
    return [action for action in found.actions if isinstance(action, Dequeue)]


@given(snapshots())
def test_jobs_requested_never_exceed_the_capacity(now: Snapshot) -> None:
    requested = dequeues(decide(now))
    occupied = now.room.used.total + now.room.reserved.total
    if not occupied and requested:  # an idle worker runs any job, and then nothing beside it
        first, *requested = requested
        occupied = first.units
        assert first.units <= CAPACITY or (first.limit == 1 and not requested)
    assert not requested or occupied + sum(action.units for action in requested) <= CAPACITY


@given(snapshots())
def test_each_kind_of_handler_keeps_to_its_pace(now: Snapshot) -> None:
    if not now.room.used.total + now.room.reserved.total:
        return  # an idle worker always runs one portion
    by_index = {queue.index: queue for queue in now.queues}
    for is_async in (True, False):
        kinds = [a for a in dequeues(decide(now)) if by_index[a.queue].is_async == is_async]
        occupied = now.room.used.of(is_async=is_async) + now.room.reserved.of(is_async=is_async)
        usable = max((CAPACITY * by_index[a.queue].pace for a in kinds), default=0)
        assert not kinds or occupied + sum(action.units for action in kinds) <= usable


@given(snapshots())
def test_lower_priority_is_not_served_where_a_higher_one_wants_jobs_that_fit(
    now: Snapshot,
) -> None:
    requested = {action.queue for action in dequeues(decide(now))}
    for high in now.queues:
        wants = high.serving and not high.calls and high.poll_at <= NOW
        lower = {low.index for low in now.queues if low.priority < high.priority}
        if wants and high.index in requested:
            assert not requested & lower


@given(snapshots())
def test_highest_priority_is_served_if_its_jobs_fit(now: Snapshot) -> None:
    """The queue whose turn is first is served if it wants jobs and has room."""
    startable = now.leases_are_kept and now.most_jobs is None and not now.closing
    first = max(now.queues, key=lambda queue: queue.priority)
    alone = [queue for queue in now.queues if queue.priority == first.priority] == [first]
    wants = first.serving and not first.calls and first.poll_at <= NOW
    if startable and alone and wants and now.room.jobs(first):
        assert first.index in {action.queue for action in dequeues(decide(now))}


@given(snapshots())
def test_nothing_is_requested_while_closing(now: Snapshot) -> None:
    closing = msgspec.structs.replace(now, closing=True)
    found = decide(closing)
    assert not [action for action in found.actions if isinstance(action, (Dequeue, Probe))]
    owes = any(queue.has_endings or queue.needs_reconcile for queue in now.queues)
    assert found.decide_again_at is None or owes


@given(snapshots())
def test_no_more_is_requested_than_a_suspect_allows(now: Snapshot) -> None:
    alone = msgspec.structs.replace(now, most_jobs=now.jobs + 2)
    assert sum(action.limit for action in dequeues(decide(alone))) <= 2


@given(snapshots())
def test_at_most_one_call_is_started_for_each_queue(now: Snapshot) -> None:
    calls = [a for a in decide(now).actions if isinstance(a, (Dequeue, Probe, Report, StandDown))]
    started = [action.queue for action in calls]
    assert len(started) == len(set(started))
    for view in now.queues:
        assert view.calls + started.count(view.index) <= max(2, view.calls)
        if view.calls:
            assert all(isinstance(a, Dequeue) for a in calls if a.queue == view.index)


@given(snapshots())
def test_decide_repeats_its_answer_and_does_not_change_the_snapshot(now: Snapshot) -> None:
    before = msgspec.to_builtins(now)
    assert decide(now) == decide(now)
    assert msgspec.to_builtins(now) == before
