"""The state of one queue in a worker: which event changes what."""

from operator import attrgetter
from typing import Any

import pytest

from queasy.job import Job
from queasy.outcomes import Fail, Release
from queasy.store.records import Ending, Taken
from queasy.worker.execution.pace import Pace
from queasy.worker.execution.run import RunEnding
from queasy.worker.intake.activity import TURN
from queasy.worker.intake.decisions import QueueView
from queasy.worker.intake.portions import (
    NO_PREFETCH_AFTER_RELEASE,
    NO_TURNS_AFTER_LONG_JOBS,
    SHORT_PORTION,
)
from queasy.worker.intake.queue_state import (
    POLL_WITHOUT_WAKE_UPS,
    RETRY_PAUSE,
    CallKind,
    QueueState,
)
from queasy.worker.intake.unreported import MAX_ENDING_BYTES, MAX_ENDINGS_PER_CALL
from queasy.worker.lease_times import DEFAULT_TIMES
from queasy.worker.liveness.inflight_table import InflightTable
from queasy.worker.plan import DEFAULT_SIZE
from tests.worker.intake.services import Clock, service

LEASE = DEFAULT_TIMES.lease

WAIT = 8.0


@pytest.fixture
def table() -> InflightTable:
    return InflightTable(1, 100)


@pytest.fixture
def state(clock: Clock, table: InflightTable) -> QueueState:
    joined = QueueState(service(size=1), 0, table)
    joined.order_serve()
    joined.join(clock.now + 20)
    return joined


def view(state: QueueState) -> QueueView:
    return state.view(Pace(), needs_reconcile=False, own_units=0)


def job(number: int = 1) -> Job:
    return Job(id=str(number), queue="q", state="active", payload=b"", token=number)


def taken(
    count: int = 0, *, next_in: float | None = None, held: int = 0, settled: Any = (),
    skipped: int | None = None,
) -> Taken:  # fmt: skip
    jobs = [job(number) for number in range(count)]
    return Taken("ok", next_in, list(settled), [], count, held, lambda: jobs, skipped)


# Serving


def test_order_to_leave_stops_serving_at_once_and_is_remembered(state: QueueState) -> None:
    assert state.serving
    assert state.wanted
    state.order_unserve()
    assert not state.serving
    assert not state.wanted
    assert state.joined, "it may still hold jobs"
    state.abandon()
    assert not state.joined


def test_attempt_to_join_that_came_late_can_be_undone(state: QueueState) -> None:
    state.stop_serving()
    assert not state.serving
    assert state.wanted


def test_worker_that_joins_has_a_lease_and_polls_at_once(
    clock: Clock, table: InflightTable
) -> None:
    joining = QueueState(service(), 0, table)
    assert not joining.serving
    assert not joining.joined
    joining.pause()
    joining.join(clock.now + 20)
    assert joining.serving
    assert joining.leases.confirmed_until == table.idle_until(0) == clock.now + 20
    assert joining.poll_at == 0.0


def test_worker_that_joins_again_over_a_new_connection_has_lost_no_message(
    state: QueueState, clock: Clock
) -> None:
    listen(state)
    state.join(clock.now + 20)
    listen(state)
    assert not state.leases.stale
    listen(state)
    assert state.leases.stale


# Size


def test_job_has_the_size_of_its_handler(table: InflightTable) -> None:
    assert QueueState(service(size=7), 0, table).portions.size(Pace()) == 7


def test_job_without_a_size_costs_less_where_the_pace_is_high(table: InflightTable) -> None:
    pace = Pace()
    measured = QueueState(service(size=None), 0, table)
    plain = QueueState(service(size=None, is_async=False), 0, table)
    assert measured.portions.size(pace) == plain.portions.size(pace) == DEFAULT_SIZE
    while pace.awaited <= 2:
        pace.hasten()
    assert measured.portions.size(pace) == round(DEFAULT_SIZE / pace.awaited)
    assert plain.portions.size(pace) == DEFAULT_SIZE


# Calls


@pytest.mark.parametrize(
    ("kind", "phase"),
    [
        ("dequeue", "dequeuing"),
        ("probe", "probing"),
        ("report", "reporting"),
        ("stand_down", "standing_down"),
    ],
)
def test_phase_follows_the_call_in_flight(state: QueueState, kind: CallKind, phase: str) -> None:
    assert state.phase == "idle"
    call = state.begin(kind)
    assert state.phase == phase
    assert state.calls == 1
    assert state.busy
    state.end(call)
    assert state.phase == "idle"
    assert not state.busy


def test_second_dequeue_overlaps_the_first_and_its_arriving_jobs(state: QueueState) -> None:
    first = state.begin("dequeue", 2, 2)
    second = state.begin("dequeue", 2, 2)
    assert (state.phase, state.calls) == ("overlapping", 2)
    state.note_answer(first, taken(2))
    state.end_flight(first)
    assert (state.phase, state.calls) == ("overlapping", 1)
    assert state.held_leases() == {("0", 0), ("1", 1)}
    state.jobs_started(first)
    assert state.phase == "dequeuing"
    assert state.held_leases() == set()
    state.end(second)
    assert not state.busy


def test_room_is_reserved_until_the_jobs_start(state: QueueState) -> None:
    call = state.begin("dequeue", 5, 50)
    assert (state.reserved, state.reserved_ahead) == (50, 0)
    state.note_answer(call, taken(5))
    state.end_flight(call)
    assert state.reserved == 50
    state.jobs_started(call)
    state.end(call)
    assert state.reserved == 0


def test_room_of_a_prefetching_call_is_reserved_ahead(state: QueueState, clock: Clock) -> None:
    prefetch(state, clock)
    call = state.begin("dequeue", 100, 33)
    assert (state.reserved, state.reserved_ahead) == (33, 33)
    state.end(call)
    assert (state.reserved, state.reserved_ahead) == (0, 0)


def test_call_that_is_given_up_expects_no_more(state: QueueState) -> None:
    state.note_answer(state.begin("dequeue", 2, 2), taken(2))
    assert state.portions.has_more
    state.portions.give_up()
    assert not state.portions.has_more


@pytest.mark.parametrize(("limit", "count", "more"), [(2, 2, True), (2, 1, False), (1, 1, False)])
def test_full_portion_of_several_jobs_makes_more_likely(
    state: QueueState, limit: int, count: int, more: bool
) -> None:
    """A single job may be a suspect, which runs alone."""
    state.note_answer(state.begin("dequeue", limit, limit), taken(count))
    assert state.portions.has_more is more


# Jobs that do not fit


def test_queue_starves_when_a_probe_finds_a_due_job(state: QueueState, clock: Clock) -> None:
    state.pass_over()
    assert view(state).passed_over_since == clock.now
    clock.now += 1
    probe = state.begin("probe")
    assert view(state).probed_at == clock.now
    state.note_answer(probe, taken(next_in=0))
    assert state.starved
    assert view(state).passed_over_since == clock.now - 1
    state.note_answer(state.begin("dequeue", 1, 60), taken(1))
    assert not state.starved
    assert view(state).passed_over_since is None


def test_probe_without_a_due_job_ends_the_wait(state: QueueState) -> None:
    state.pass_over()
    state.note_answer(state.begin("probe"), taken(next_in=3))
    assert not state.starved
    assert view(state).passed_over_since is None


# Prefetching


def prefetch(state: QueueState, clock: Clock) -> None:
    """Short jobs: a full portion comes, and those before it have finished."""
    for _ in range(2):
        clock.now += SHORT_PORTION / 2
        portion(state)
    assert state.portions.prefetches


def portion(
    state: QueueState, *, drained: bool = True, fits_many: bool = True, count: int = 2
) -> None:
    call, answer = state.begin("dequeue", 2, 2), taken(count)
    state.note_answer(call, answer)
    state.note_arrival(call, answer, fits_many=fits_many, drained=drained)
    state.end(call)


@pytest.mark.parametrize("fields", [{"count": 1}, {"fits_many": False}], ids=str)
def test_prefetching_ends_without_its_reasons(
    state: QueueState, clock: Clock, fields: dict[str, Any]
) -> None:
    prefetch(state, clock)
    portion(state, **fields)
    assert not state.portions.prefetches


def test_prefetching_ends_when_portions_take_long(state: QueueState, clock: Clock) -> None:
    prefetch(state, clock)
    clock.now += 1.1 * SHORT_PORTION
    portion(state)
    assert not state.portions.prefetches


def test_prefetching_begins_only_when_the_last_portion_has_ended(
    state: QueueState, clock: Clock
) -> None:
    for _ in range(2):
        clock.now += SHORT_PORTION / 2
        portion(state, drained=False)
    assert not state.portions.prefetches
    portion(state)
    assert state.portions.prefetches
    portion(state, drained=False)
    assert state.portions.prefetches, "once begun it goes on"


def test_prefetching_begins_only_when_no_other_answer_is_about_to_start(
    state: QueueState, clock: Clock
) -> None:
    portion(state)
    clock.now += SHORT_PORTION / 2
    other = state.begin("dequeue", 2, 2)
    state.note_answer(other, taken(2))
    portion(state)
    assert not state.portions.prefetches


def test_queue_that_waited_for_its_turn_goes_on_prefetching(
    state: QueueState, clock: Clock
) -> None:
    prefetch(state, clock)
    clock.now += SHORT_PORTION / 2
    state.portions.note_drained()
    clock.now += 100 * SHORT_PORTION
    state.portions.note_drained()
    portion(state)
    assert state.portions.prefetches, "its jobs had ended in time"


# Turns


def test_queue_takes_turns_while_it_has_more_jobs_that_may_be_short(
    state: QueueState, clock: Clock
) -> None:
    sharing = state.activity.sharing
    portion(state)
    assert sharing == {0}, "nothing is known about its jobs yet"
    clock.now += 2 * SHORT_PORTION
    portion(state, drained=False)
    assert not sharing, "its jobs are long"
    clock.now += NO_TURNS_AFTER_LONG_JOBS / 2
    portion(state)
    assert not sharing
    clock.now += NO_TURNS_AFTER_LONG_JOBS / 2
    state.portions.note_drained()
    prefetch(state, clock)
    assert sharing == {0}


@pytest.mark.parametrize(
    "end", ["few", "portions.give_up", "stop_serving", "portions.suspend_early_requests", "abandon"]
)
def test_queue_that_cannot_use_its_turn_ends_it(state: QueueState, clock: Clock, end: str) -> None:
    prefetch(state, clock)
    state.begin("dequeue", 2, 2)
    assert state.activity.turn(clock.now) is not None
    if end == "few":
        portion(state, count=1)
    else:
        attrgetter(end)(state)()
    assert state.activity.turn(clock.now) is None
    assert not state.activity.sharing


def test_queue_rests_until_the_turn_of_another_is_over(state: QueueState, clock: Clock) -> None:
    prefetch(state, clock)
    activity = state.activity
    activity.sharing.add(1)
    clock.now += TURN
    activity.begin_turn(1, 99, clock.now)
    assert state.rests_until(clock.now) is None, "its own priority is higher"
    activity.begin_turn(1, 100, clock.now)
    assert state.rests_until(clock.now) == clock.now + TURN
    state.outcomes.add_of(job(), Release())
    assert state.rests_until(clock.now) is None, "it has an outcome to report"


def test_plain_functions_are_not_prefetched(clock: Clock, table: InflightTable) -> None:
    plain = QueueState(service(size=1, is_async=False), 0, table)
    for _ in range(2):
        clock.now += SHORT_PORTION / 2
        portion(plain)
    assert not plain.portions.prefetches


def test_released_prefetched_jobs_suspend_prefetching_for_a_while(
    state: QueueState, clock: Clock
) -> None:
    prefetch(state, clock)
    served = clock.now
    state.portions.suspend_early_requests()
    assert not state.portions.prefetches
    while clock.now + SHORT_PORTION / 2 <= served + NO_PREFETCH_AFTER_RELEASE:
        clock.now += SHORT_PORTION / 2
        portion(state)
        assert not state.portions.prefetches
    clock.now += SHORT_PORTION / 2
    portion(state)
    assert state.portions.prefetches


# When to poll


def test_queue_without_jobs_is_polled_after_the_wait(state: QueueState, clock: Clock) -> None:
    listen(state)
    state.plan_poll(taken(), 5, WAIT, clock.now)
    assert state.exhausted
    assert state.poll_at == clock.now + WAIT


def test_queue_is_polled_when_its_next_job_is_due_by_the_time_of_sending(
    state: QueueState, clock: Clock
) -> None:
    listen(state)
    state.plan_poll(taken(next_in=3.0), 5, WAIT, clock.now - 1)
    assert state.poll_at == clock.now + 2


def test_workers_that_lost_their_connections_together_do_not_poll_together(
    state: QueueState, clock: Clock
) -> None:
    polls = set[float]()
    for _ in range(20):
        state.lose_connection()
        listen(state)
        state.plan_poll(taken(next_in=100.0), 5, WAIT, clock.now)
        polls.add(state.poll_at - clock.now)
    assert WAIT <= min(polls) < max(polls) <= 100
    assert len(polls) == 20
    assert state.leases.confirmed_until == clock.now + 100 + LEASE
    state.plan_poll(taken(next_in=100.0), 5, WAIT, clock.now)
    assert state.poll_at == clock.now + 100, "only the first rest is shorter"


def test_time_to_poll_that_arrives_before_the_answer_of_a_poll_is_kept(
    state: QueueState, clock: Clock
) -> None:
    """Bug: the answer overwrote it. The job that the server had asked the worker to check waited
    for the safety poll."""
    listen(state)
    state.begin_poll()
    state.poll_within(2.0)
    state.plan_poll(taken(), 5, WAIT, clock.now)
    assert state.poll_at == clock.now + 2
    state.begin_poll()
    state.plan_poll(taken(), 5, WAIT, clock.now)
    assert state.poll_at == clock.now + WAIT, "the poll has answered it"


def test_poll_time_that_has_just_passed_is_kept(state: QueueState, clock: Clock) -> None:
    listen(state)
    state.plan_poll(taken(next_in=0.5), 5, WAIT, clock.now - 1)
    assert state.poll_at == clock.now - 0.5
    state.plan_poll(taken(next_in=0.0), 5, WAIT, clock.now - 1)
    assert state.poll_at == 0.0, "a job is due: at once"


def test_worker_that_gets_no_messages_polls_often(state: QueueState, clock: Clock) -> None:
    state.plan_poll(taken(), 5, WAIT, clock.now)
    assert state.poll_at == clock.now + POLL_WITHOUT_WAKE_UPS


def test_queue_with_jobs_is_polled_at_once(state: QueueState, clock: Clock) -> None:
    state.plan_poll(taken(5), 5, 0.0, clock.now)
    assert not state.exhausted
    assert state.poll_at == 0.0
    state.plan_poll(taken(4), 5, 0.0, clock.now)
    assert state.exhausted
    state.plan_poll(taken(), 0, WAIT, clock.now)
    assert state.exhausted, "a probe takes none"


def test_wake_up_during_a_poll_is_answered_by_another(state: QueueState, clock: Clock) -> None:
    listen(state)
    state.begin_poll()
    state.wake()
    state.plan_poll(taken(), 5, WAIT, clock.now)
    assert state.poll_at == 0.0
    state.begin_poll()
    state.plan_poll(taken(), 5, WAIT, clock.now)
    assert state.poll_at > clock.now


@pytest.mark.parametrize("event", ["stand_down", "lose_connection", "forward_wake_up"])
def test_wake_up_is_over_after(state: QueueState, event: str) -> None:
    state.wake()
    assert state.owes_poll
    getattr(state, event)()
    assert not state.owes_poll


def test_queue_that_may_be_handed_a_job_by_an_answer_is_polled_again(
    state: QueueState, clock: Clock
) -> None:
    listen(state)
    state.begin_poll()
    state.require_forwarding()
    state.plan_poll(taken(), 5, WAIT, clock.now)
    assert state.owes_poll
    assert state.poll_at == 0.0


def test_queue_that_waits_can_be_polled_now(state: QueueState, clock: Clock) -> None:
    listen(state)
    state.plan_poll(taken(), 5, WAIT, clock.now)
    state.poll_now()
    assert state.poll_at == 0.0


def test_lost_connection_makes_leases_stale(state: QueueState) -> None:
    assert not state.leases.stale
    state.lose_connection()
    assert state.leases.stale


def test_worker_that_was_removed_polls_again_after_a_call_in_flight(state: QueueState) -> None:
    state.become_waiter_again()
    assert not state.owes_poll
    assert state.poll_at == 0.0
    state.begin("dequeue", 1, 1)
    state.become_waiter_again()
    assert state.owes_poll


def test_removed_waiter_polls_after_its_pause(state: QueueState, clock: Clock) -> None:
    state.pause()
    state.become_waiter_again(not_before_pause=True)
    assert state.poll_at == clock.now + RETRY_PAUSE
    state.become_waiter_again()
    assert state.poll_at == 0.0


def test_queue_that_skipped_suspects_does_not_rest(state: QueueState, clock: Clock) -> None:
    state.poll_at = clock.now + 60
    call = state.begin("dequeue", 5, 5)
    state.note_answer(call, taken(skipped=3))
    state.end(call)
    assert view(state).skipped == 3
    assert state.rests_until(clock.now) is None
    call = state.begin("dequeue", 5, 5)
    state.note_answer(call, taken())
    state.end(call)
    assert view(state).skipped is None
    assert state.rests_until(clock.now) == clock.now + 60


def test_run_stays_in_the_table_until_its_report_is_answered(
    state: QueueState, table: InflightTable
) -> None:
    """Bug: a job that killed its process just after its handler returned was never a suspect."""
    slot = table.start_run(0, "1", 1, 7.0, 8.0)
    table.end_run(slot)
    state.leases.hold(1)
    state.outcomes.add(RunEnding("1", 1, Release(), slot=slot))
    endings = state.outcomes.take()
    assert len(state.outcomes) == 1
    state.report_failed(endings)
    assert len(state.outcomes) == len(table.entries(unreported=True)) == 1
    state.outcomes.confirm(state.outcomes.take())
    assert len(state.outcomes) == len(table.entries(unreported=True)) == 0
    assert table.held_of(0) == 0


# Leases


def test_probe_that_finds_a_job_does_not_count_as_a_wait(
    state: QueueState, table: InflightTable, clock: Clock
) -> None:
    """Bug: the server extended no lease, and the supervisor sent no bump: the lease ran out."""
    confirmed_until = state.leases.confirmed_until
    state.plan_poll(taken(next_in=0.0), 0, WAIT, clock.now)
    assert state.leases.confirmed_until == confirmed_until
    assert table.idle_until(0) <= clock.now + LEASE


@pytest.mark.parametrize(
    "event", ["pass_over", "stand_down", "forward_wake_up", "become_waiter_again"]
)
def test_worker_that_stops_waiting_is_bumped_soon(
    state: QueueState, table: InflightTable, clock: Clock, event: str
) -> None:
    """Bug: a worker without room made no call for a minute, and a dead host kept its jobs."""
    state.plan_poll(taken(), 5, 60.0, clock.now)
    assert table.idle_until(0) > clock.now + 60
    getattr(state, event)()
    assert table.idle_until(0) == clock.now + LEASE
    state.abandon()
    getattr(state, event)()
    assert table.idle_until(0) == 0, "it does not serve the queue any more"


def test_idle_wait_confirms_the_lease_beyond_the_next_poll(
    state: QueueState, clock: Clock, table: InflightTable
) -> None:
    listen(state)
    state.plan_poll(taken(), 5, WAIT, clock.now - 1)
    until = clock.now - 1 + WAIT + LEASE
    assert state.leases.confirmed_until == until
    assert table.idle_until(0) == until
    assert not state.leases.stale


def test_worker_that_took_jobs_is_bumped_as_soon_as_they_end(
    state: QueueState, clock: Clock, table: InflightTable
) -> None:
    state.plan_poll(taken(2), 5, 0.0, clock.now)
    assert 0 < table.idle_until(0) < clock.now


def test_lease_that_only_the_server_counts_makes_the_ledger_stale(
    state: QueueState, clock: Clock
) -> None:
    listen(state)
    before = state.leases.confirmed_until
    state.plan_poll(taken(held=1), 5, WAIT, clock.now)
    assert state.leases.stale
    assert state.leases.confirmed_until == before


def test_worker_that_holds_jobs_keeps_the_lease_of_its_heartbeat(
    state: QueueState, clock: Clock
) -> None:
    listen(state)
    state.leases.hold(1)
    before = state.leases.confirmed_until
    state.plan_poll(taken(held=1), 5, WAIT, clock.now)
    assert not state.leases.stale
    assert state.leases.confirmed_until == before


def listen(state: QueueState) -> None:
    state.leases.note_connection(object())


# Outcomes


def test_outcomes_are_taken_in_order_and_up_to_the_limit_of_a_call(state: QueueState) -> None:
    for number in range(MAX_ENDINGS_PER_CALL + 1):
        state.outcomes.add_of(job(number), Release())
    first = state.outcomes.take()
    assert [ending.token for ending in first] == list(range(MAX_ENDINGS_PER_CALL))
    assert state.outcomes.some_wait
    assert [ending.token for ending in state.outcomes.take()] == [MAX_ENDINGS_PER_CALL]


def test_failures_of_large_jobs_are_reported_in_several_calls(state: QueueState) -> None:
    """Bug: one call gave up 100 jobs of 1 MB, and the server needed two seconds for it."""
    third = MAX_ENDING_BYTES // 3 + 1
    for token, payload_bytes in enumerate([third] * 4 + [0] * 3 + [5 * third, third]):
        state.outcomes.add(Ending("a", token, Fail(), payload_bytes))
    calls: list[list[int]] = []
    while endings := state.outcomes.take():
        calls.append([ending.token for ending in endings])
    assert calls == [[0, 1, 2], [3, 4, 5, 6, 7], [8]]
    assert not state.outcomes.some_wait


def test_outcomes_that_could_not_be_reported_come_first_after_a_pause(
    state: QueueState, clock: Clock
) -> None:
    early, late = Ending("a", 1, Release()), Ending("b", 2, Release())
    state.outcomes.add(early)
    taken_out = state.outcomes.take()
    state.outcomes.add(late)
    state.report_failed(taken_out)
    assert state.held_leases() == {("a", 1), ("b", 2)}
    assert view(state).paused_until == clock.now + RETRY_PAUSE
    assert state.outcomes.take() == [early, late]
