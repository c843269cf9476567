"""What a supervisor decides about a child, without a process or a server."""

from typing import Any

import pytest

from queasy.worker.liveness.inflight_table import Entry
from queasy.worker.plan import LEASE
from queasy.worker.supervision.child_state import ChildSnapshot, ChildState, Phase
from queasy.worker.supervision.messages import Planned
from queasy.worker.supervision.start_backoff import FIRST_PAUSE, LONGEST_PAUSE, StartBackoff
from queasy.worker.supervision.suspect_policy import Candidate, choose_suspect_takers
from queasy.worker.supervision.watchdog import (
    INTERRUPT_TIMEOUT,
    KILL_AFTER_GRACE,
    Action,
    DrainThenKill,
    Kill,
    Limits,
    Retire,
    decide,
    outstays_stop,
)

NOW = 1000.0
GRACE = 30.0
MEMORY = 1_000_000
# Past its deadline, and past the time it has to end after the interrupt.
OVERDUE = NOW - INTERRUPT_TIMEOUT - 0.1


def run(id_: str, deadline: float = NOW + 100, token: int = 1) -> Entry:
    return Entry(0, id_, token, NOW - 10, deadline)


def child(*entries: Entry, **fields: Any) -> ChildSnapshot:
    """A child that runs these, holds nothing else, and has an event loop that turns."""
    fields = {"runs": len(entries), "held": len(entries), "last_beat": NOW, **fields}
    return ChildSnapshot(entries=entries, **fields)


def decided(snapshot: ChildSnapshot, max_memory: int | None = None) -> list[Action]:
    return decide(snapshot, NOW, Limits(GRACE, max_memory))


# Runs that do not end


def test_a_run_before_its_deadline_is_left_alone() -> None:
    assert decided(child(run("a"))) == []


def test_a_run_just_past_its_deadline_has_time_to_end() -> None:
    assert decided(child(run("a", NOW - INTERRUPT_TIMEOUT / 2))) == []


def test_the_process_of_an_overdue_run_is_drained_for_the_grace_time() -> None:
    snapshot = child(run("a", OVERDUE), run("b"))
    assert decided(snapshot) == [DrainThenKill(job="a", kill_by=NOW + GRACE)]


def test_a_cancelled_run_that_does_not_end_is_overdue_before_its_deadline() -> None:
    cancels = {(0, "a", 1): OVERDUE}
    assert decided(child(run("a"), run("b"), cancels=cancels)) == [
        DrainThenKill(job="a", kill_by=NOW + GRACE)
    ]
    assert decided(child(run("a", token=2), run("b"), cancels=cancels)) == []


def test_a_draining_process_is_killed_when_its_other_jobs_are_reported() -> None:
    waiting = child(run("a", OVERDUE), kill_by=NOW + 1, held=2)
    assert decided(waiting) == []
    done = child(run("a", OVERDUE), kill_by=NOW + 1, held=1)
    assert decided(done) == [Kill(reason="overdue", job="a", overdue=1, others=0)]


def test_a_draining_process_is_killed_when_its_time_is_up() -> None:
    snapshot = child(run("a", OVERDUE), run("b"), run("c", OVERDUE), kill_by=NOW - 0.1)
    assert decided(snapshot) == [Kill(reason="overdue", job="a", overdue=2, others=1)]


def test_a_draining_process_lives_on_if_the_overdue_run_ends_after_all() -> None:
    assert decided(child(run("b"), kill_by=NOW - 0.1)) == []


def test_a_blocked_event_loop_is_not_drained_but_killed() -> None:
    """It could not report the other jobs."""
    snapshot = child(run("a", OVERDUE), run("b"), last_beat=NOW - 2)
    assert decided(snapshot) == [Kill(reason="overdue", job="a", overdue=1, others=1)]


def test_a_blocked_event_loop_without_an_overdue_run_is_left_alone() -> None:
    assert decided(child(run("a"), last_beat=NOW - 100)) == []


# Processes that do not run


def test_a_process_frozen_for_longer_than_a_lease_is_killed() -> None:
    assert decided(child(frozen_since=NOW - LEASE + 1)) == []
    assert decided(child(frozen_since=NOW - LEASE - 1)) == [Kill(reason="frozen")]


def test_a_blocked_loop_that_keeps_outcomes_unreported_is_killed_after_a_lease() -> None:
    assert decided(child(held=1, blocked_since=NOW - LEASE + 1)) == []
    assert decided(child(held=1, blocked_since=NOW - LEASE - 1)) == [Kill(reason="blocked")]


def test_nothing_is_done_about_a_child_that_was_killed() -> None:
    snapshot = child(run("a", OVERDUE), killed=True, memory=9 * MEMORY, frozen_since=0.0)
    assert decided(snapshot, MEMORY) == []


# Memory


@pytest.mark.parametrize("is_settled", [True, False])
def test_a_child_above_its_memory_limit_is_retired_once_it_has_settled(is_settled: bool) -> None:
    snapshot = child(memory=MEMORY + 1, is_settled=is_settled)
    assert decided(snapshot, MEMORY) == ([Retire(why="memory")] if is_settled else [])


def test_a_child_far_above_its_memory_limit_is_killed_even_if_it_has_just_started() -> None:
    assert decided(child(memory=2 * MEMORY), MEMORY) == [Kill(reason="memory", bytes=2 * MEMORY)]


def test_a_child_below_its_memory_limit_or_without_one_is_left_alone() -> None:
    assert decided(child(memory=MEMORY, is_settled=True), MEMORY) == []
    assert decided(child(memory=9 * MEMORY, is_settled=True)) == []


def test_nothing_follows_a_kill_but_memory_is_checked_while_draining() -> None:
    overdue = run("a", OVERDUE)
    blocked = child(overdue, last_beat=NOW - 2, memory=9 * MEMORY)
    assert [type(action) for action in decided(blocked, MEMORY)] == [Kill]
    turning = child(overdue, run("b"), memory=9 * MEMORY)
    assert [type(action) for action in decided(turning, MEMORY)] == [DrainThenKill, Kill]


# Stopping


def test_a_child_that_stays_after_the_grace_time_of_a_stop_is_killed() -> None:
    turning, blocked = child(run("a")), child(run("a"), last_beat=NOW - 5)
    for late, turning_goes, blocked_goes in (
        (0.5, False, False),  # it may just have been interrupted
        (INTERRUPT_TIMEOUT + 0.1, False, True),
        (KILL_AFTER_GRACE, True, True),
    ):
        assert outstays_stop(turning, NOW, NOW - late) == turning_goes
        assert outstays_stop(blocked, NOW, NOW - late) == blocked_goes


# The state of a child

PLANNED = Planned(None, "p", 1.0, None, [("q", False)])


def test_a_child_goes_through_its_phases() -> None:
    state = ChildState(NOW)
    assert (state.phase, state.is_working, state.takes_jobs) == (Phase.STARTING, True, False)
    state.imported(PLANNED)
    state.began_serving()
    assert (state.phase, state.is_working, state.takes_jobs) == (Phase.SERVING, True, True)
    state.retire()
    assert (state.phase, state.is_working, state.takes_jobs) == (Phase.RETIRING, False, True)
    state.drain()
    assert (state.phase, state.is_ending, state.takes_jobs) == (Phase.DRAINING, True, False)
    state.stop()
    assert state.phase is Phase.STOPPING
    state.announce_exit()
    state.exited()
    assert (state.phase, state.ended_in_order) == (Phase.GONE, True)


def test_a_child_that_is_retired_while_it_starts_stays_so_when_it_serves() -> None:
    state = ChildState(NOW)
    state.retire()
    state.began_serving()
    assert (state.phase, state.takes_jobs) == (Phase.RETIRING, True)


def test_a_child_that_is_ending_is_not_retired_and_one_that_is_killed_not_drained() -> None:
    state = ChildState(NOW)
    state.drain()
    state.retire()
    assert state.phase is Phase.DRAINING
    state.kill("memory", NOW)
    state.drain()
    state.stop()
    assert state.phase is Phase.KILLED


def test_the_first_reason_for_a_kill_counts() -> None:
    state = ChildState(NOW)
    state.kill("overdue", NOW)
    state.kill("stop", NOW + 1)
    assert (state.killed, state.killed_at) == ("overdue", NOW)


@pytest.mark.parametrize(
    ("reason", "in_order", "suspect"),
    [
        (None, False, True),
        ("memory", False, True),
        ("frozen", False, True),
        ("overdue", False, False),
        ("blocked", False, False),
        ("lost", False, False),
        ("stop", True, False),
    ],
)
def test_runs_are_suspect_if_one_may_have_caused_the_end(
    reason: Any, in_order: bool, suspect: bool
) -> None:
    state = ChildState(NOW)
    if reason is not None:
        state.kill(reason, NOW)
    assert (state.ended_in_order, state.runs_are_suspect) == (in_order, suspect)
    state.announce_exit()
    assert (state.ended_in_order, state.runs_are_suspect) == (True, False)


def test_a_cancelled_run_is_forgotten_when_it_has_ended() -> None:
    """It was kept until nothing ran at all, which in a busy child is never."""
    state, busy, asked = ChildState(NOW), run("busy"), run("asked", token=2)
    state.cancel_requested((0, "asked", 2), NOW)
    state.cancel_requested((0, "not begun", 3), NOW)
    state.observed_runs(2, [busy, asked], 2, NOW, NOW + 0.5)
    assert len(state.cancels) == 2
    state.observed_runs(1, [busy], 1, NOW, NOW + LEASE / 2)
    assert len(state.cancels) == 2
    state.observed_runs(1, [busy], 1, NOW, NOW + LEASE + 1)
    assert state.cancels == {}


def test_all_cancelled_runs_are_forgotten_when_nothing_runs() -> None:
    state = ChildState(NOW)
    state.cancel_requested((0, "a", 1), NOW)
    state.observed_runs(0, [], 0, NOW, NOW)
    assert state.cancels == {}


@pytest.mark.parametrize("reports", [True, False])
def test_a_process_has_a_lease_to_report_the_run_that_blocked_it(reports: bool) -> None:
    """It was killed between the end of a run that had blocked it for longer than a lease and the
    next turn of its event loop; and the job, which was done, ran again.
    """
    state, entry, beat = ChildState(NOW), run("a"), NOW
    state.observed_runs(1, [entry], 1, beat, NOW + LEASE + 5)
    assert state.blocked_since is None, "a run blocks it"
    state.observed_runs(0, [], 1, beat, NOW + LEASE + 5.1)
    if reports:
        state.observed_runs(0, [], 1, NOW + LEASE + 6.5, NOW + LEASE + 6.6)
    assert state.blocked_since == (None if reports else NOW + LEASE + 5.1)


def test_a_thawed_process_is_not_frozen_any_more() -> None:
    state = ChildState(NOW)
    for frozen, at, since in ((True, 1.0, 1.0), (True, 2.0, 1.0), (False, 3.0, None)):
        state.observed_frozen(frozen, at)
        assert state.frozen_since == since


# Starts that fail


def test_the_pause_before_a_start_doubles_up_to_a_limit() -> None:
    backoff = StartBackoff()
    assert backoff.pause() == 0.0
    for longest in (FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE):
        backoff.failed(NOW)
        assert longest / 2 <= backoff.pause() <= longest
    for _ in range(10):
        backoff.failed(NOW)
    assert LONGEST_PAUSE / 2 <= backoff.pause() <= LONGEST_PAUSE


def test_the_pause_stays_bounded_after_thousands_of_failures() -> None:
    """It overflowed a float after 1,025 failures, and the supervisor started no more children."""
    backoff = StartBackoff()
    for _ in range(5000):
        backoff.failed(NOW)
    assert LONGEST_PAUSE / 2 <= backoff.pause() <= LONGEST_PAUSE


def test_only_a_child_that_started_after_the_last_failure_ends_the_pauses() -> None:
    backoff = StartBackoff()
    backoff.failed(NOW)
    backoff.settled(NOW - 1)
    assert backoff.pause() > 0
    backoff.settled(NOW + 1)
    assert backoff.pause() == 0


# Suspects


def candidate(*, takes: bool = False, declined: bool = False, runs: int = 0) -> Candidate:
    return Candidate(takes, declined, True, runs)


@pytest.mark.parametrize(("processes", "takers"), [(1, 1), (2, 1), (3, 2), (4, 2)])
def test_half_of_the_children_take_suspects(processes: int, takers: int) -> None:
    assert sum(choose_suspect_takers([candidate()] * processes, processes)) == takers


def test_the_children_with_the_fewest_runs_are_chosen_and_started_ones_first() -> None:
    starting = Candidate(False, False, False, 0)
    candidates = [candidate(runs=3), starting, candidate(runs=1), candidate(runs=2)]
    assert choose_suspect_takers(candidates, 4) == [False, False, True, True]


def test_a_child_that_declined_is_relieved_by_one_with_fewer_runs() -> None:
    busy = candidate(takes=True, declined=True, runs=3)
    assert choose_suspect_takers([busy, candidate(runs=1)], 2) == [False, True]
    assert choose_suspect_takers([busy, candidate(runs=3)], 2) == [True, False]
    assert choose_suspect_takers([busy, Candidate(False, False, False, 0)], 2) == [True, False]


def test_a_chosen_child_stays_chosen() -> None:
    candidates = [candidate(takes=True, runs=9), candidate(runs=0)]
    assert choose_suspect_takers(candidates, 2) == [True, False]
