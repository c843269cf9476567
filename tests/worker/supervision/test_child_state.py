"""The phases of a child process, and what its end says about its runs."""

from typing import Any

import pytest

from queasy.worker.liveness.inflight_table import Entry
from queasy.worker.supervision.child_state import (
    REPEAT_CANCEL_AFTER,
    SETTLED_AFTER,
    ChildState,
    Phase,
)
from queasy.worker.supervision.messages import Planned

NOW = 1000.0
PLANNED = Planned(None, "p", 1.0, None, [("q", False)])


def run(id_: str, token: int = 1) -> Entry:
    return Entry(0, id_, token, NOW - 10, NOW + 100)


def test_a_child_that_is_retired_drained_and_stopped_goes_through_all_phases() -> None:
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
    state.kill("memory")
    state.drain()
    state.stop()
    assert state.phase is Phase.KILLED


def test_a_child_has_settled_when_it_served_and_is_not_new() -> None:
    state, later = ChildState(NOW), NOW + SETTLED_AFTER + 0.1
    assert not state.is_settled(later), "it never served"
    state.began_serving()
    assert not state.is_settled(NOW + SETTLED_AFTER - 0.1)
    assert state.is_settled(later)


def test_the_first_reason_for_a_kill_counts() -> None:
    state = ChildState(NOW)
    runs = frozenset({(0, "a", 1)})
    state.kill("overdue", runs)
    state.kill("stop")
    assert (state.kill_reason, state.timed_out) == ("overdue", runs)


@pytest.mark.parametrize(
    ("reason", "in_order", "suspect"),
    [
        (None, False, True),
        ("memory", False, True),
        ("sigstop", False, True),
        ("overdue", False, True),
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
        state.kill(reason)
    assert (state.ended_in_order, state.runs_are_suspect) == (in_order, suspect)
    state.announce_exit()
    assert (state.ended_in_order, state.runs_are_suspect) == (True, False)


def test_runs_are_not_suspect_if_it_is_known_which_of_them_did_not_end() -> None:
    state = ChildState(NOW)
    state.kill("overdue", frozenset({(0, "a", 1)}))
    assert not state.runs_are_suspect


def test_a_cancelled_run_is_forgotten_when_it_has_ended() -> None:
    """If it were kept until nothing runs at all, a busy child would keep it for ever."""
    state, busy, asked = ChildState(NOW), run("busy"), run("asked", token=2)
    state.cancel_requested((0, "asked", 2), NOW)
    state.cancel_requested((0, "not begun", 3), NOW)
    state.observed_runs(2, [busy, asked], 2, NOW, NOW + 0.5)
    assert len(state.cancels) == 2
    state.observed_runs(1, [busy], 1, NOW, NOW + REPEAT_CANCEL_AFTER / 2)
    assert len(state.cancels) == 2
    state.observed_runs(1, [busy], 1, NOW, NOW + REPEAT_CANCEL_AFTER + 1)
    assert state.cancels == {}


def test_all_cancelled_runs_are_forgotten_when_nothing_runs() -> None:
    state = ChildState(NOW)
    state.cancel_requested((0, "a", 1), NOW)
    state.observed_runs(0, [], 0, NOW, NOW)
    assert state.cancels == {}


@pytest.mark.parametrize("reports", [True, False])
def test_a_process_has_a_lease_to_report_the_run_that_blocked_it(reports: bool) -> None:
    """Bug: a run blocked the event loop for longer than a lease. The process was killed after that
    run had ended, before the loop could report it. The job was done, and ran again.
    """
    state, entry, beat = ChildState(NOW), run("a"), NOW
    state.observed_runs(1, [entry], 1, beat, NOW + REPEAT_CANCEL_AFTER + 5)
    assert state.cannot_report_since is None, "a run blocks it"
    state.observed_runs(0, [], 1, beat, NOW + REPEAT_CANCEL_AFTER + 5.1)
    if reports:
        state.observed_runs(
            0, [], 1, NOW + REPEAT_CANCEL_AFTER + 6.5, NOW + REPEAT_CANCEL_AFTER + 6.6
        )
    assert state.cannot_report_since == (None if reports else NOW + REPEAT_CANCEL_AFTER + 5.1)


def test_a_process_that_runs_again_does_not_count_as_stopped() -> None:
    state = ChildState(NOW)
    for stopped, at, since in ((True, 1.0, 1.0), (True, 2.0, 1.0), (False, 3.0, None)):
        state.observed_stopped(stopped, at)
        assert state.stopped_since == since
