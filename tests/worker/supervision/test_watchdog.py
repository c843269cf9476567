"""What a supervisor decides about a child, without a process or a server."""

from typing import Any

import pytest

from queasy.worker.lease_times import DEFAULT_TIMES
from queasy.worker.liveness.inflight_table import Entry, OnLoop
from queasy.worker.supervision.child_state import ChildSnapshot
from queasy.worker.supervision.watchdog import (
    INTERRUPT_TIMEOUT,
    KILL_AFTER_GRACE,
    LOOK_TIMEOUT,
    Action,
    DrainThenKill,
    Freeze,
    Kill,
    Limits,
    Retire,
    Thaw,
    decide,
    outstays_stop,
)

CUT_OFF = DEFAULT_TIMES.cut_off
LEASE = DEFAULT_TIMES.lease

NOW = 1000.0
GRACE = 30.0
MEMORY = 1_000_000
# Past its deadline, and past the time it has to end after the interrupt.
OVERDUE = NOW - INTERRUPT_TIMEOUT - 0.1


def run(id_: str, deadline: float = NOW + 100, token: int = 1) -> Entry:
    return Entry(0, id_, token, NOW - 10, deadline)


def child(*entries: Entry, **fields: Any) -> ChildSnapshot:
    """A child that runs these, holds nothing else, and has an event loop that turns."""
    fields = {"runs": len(entries), "held": len(entries), "now": NOW, "last_beat": NOW,
              "checked_until": fields.get("last_beat", NOW), **fields}  # fmt: skip
    return ChildSnapshot(entries=entries, **fields)


def decided(snapshot: ChildSnapshot, max_memory: int | None = None) -> list[Action]:
    return decide(snapshot, Limits(GRACE, max_memory))


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
    assert decided(done) == [Kill(reason="overdue", runs=(run("a", OVERDUE),), others=0)]


def test_a_draining_process_is_killed_when_its_time_is_up() -> None:
    overdue = run("a", OVERDUE), run("c", OVERDUE)
    (kill,) = decided(child(overdue[0], run("b"), overdue[1], kill_by=NOW - 0.1))
    assert kill == Kill(reason="overdue", runs=overdue, others=1)
    assert (kill.job, kill.overdue) == ("a", 2)


def test_a_draining_process_lives_on_if_the_overdue_run_ends_after_all() -> None:
    assert decided(child(run("b"), kill_by=NOW - 0.1)) == []


# A blocked event loop


BLOCKED = NOW - 5
"""When the loop last turned."""


def blocked(*entries: Entry, **fields: Any) -> ChildSnapshot:
    return child(*entries, **{"last_beat": BLOCKED, **fields})


def seen(token: int | None, since: float = BLOCKED + 0.5, seen: float = NOW) -> OnLoop:
    return OnLoop((0, token) if token else None, since, seen)


def test_the_process_of_a_run_that_was_overdue_before_the_loop_was_blocked_is_not_drained() -> None:
    """A process with a blocked event loop could not report its other jobs."""
    overdue = run("a", BLOCKED - 2)
    for on_loop in (None, seen(2), seen(None)):
        snapshot = blocked(overdue, run("b", token=2), on_loop=on_loop)
        assert decided(snapshot) == [Kill(reason="overdue", runs=(overdue,), others=1)]


def test_a_run_that_blocks_the_loop_past_its_deadline_is_the_only_guilty_one() -> None:
    waits, blocks = run("a", OVERDUE), run("b", OVERDUE, token=2)
    snapshot = blocked(waits, blocks, on_loop=seen(2))
    assert decided(snapshot) == [Kill(reason="overdue", runs=(blocks,), others=1)]


def test_a_run_may_block_the_loop_until_its_deadline_whatever_waits_for_it() -> None:
    cancels = {(0, "c", 3): OVERDUE}
    waiting = run("a", OVERDUE), run("c", token=3)
    snapshot = blocked(*waiting, run("b", token=2), on_loop=seen(2), cancels=cancels)
    assert decided(snapshot) == []


def test_a_loop_that_several_handlers_block_in_turns_is_left_alone() -> None:
    entries = run("a", OVERDUE), run("b", OVERDUE, token=2)
    assert decided(blocked(*entries, on_loop=seen(2, since=NOW - 0.5))) == []


@pytest.mark.parametrize(
    "on_loop",
    [None, seen(None), seen(2, seen=NOW - LOOK_TIMEOUT - 0.1)],
    ids=["GIL held", "no run", "GIL held later"],
)
def test_all_runs_are_suspects_if_the_one_that_blocks_the_loop_is_not_known(
    on_loop: OnLoop | None,
) -> None:
    entries = run("a", OVERDUE), run("b", OVERDUE, token=2), run("c", token=3)
    assert decided(blocked(*entries, on_loop=on_loop)) == [Kill(reason="overdue", suspects=3)]
    alone = run("a", OVERDUE)
    assert decided(blocked(alone, on_loop=on_loop)) == [
        Kill(reason="overdue", runs=(alone,), others=0)
    ]


def test_the_supervisor_waits_until_a_thread_has_had_time_to_look() -> None:
    entries = run("a", OVERDUE), run("b", OVERDUE, token=2)
    assert decided(child(*entries, last_beat=NOW - 1.1, checked_until=NOW - 2)) == []


def test_a_cancelled_run_is_killed_if_it_may_be_the_one_that_blocks_the_loop() -> None:
    cancelled = run("a", token=2)
    snapshot = blocked(cancelled, run("b", OVERDUE), cancels={(0, "a", 2): OVERDUE})
    assert decided(snapshot) == [Kill(reason="overdue", runs=(cancelled,), others=1)]


def test_a_run_that_the_worker_has_not_asked_to_end_is_not_overdue() -> None:
    """The loop was blocked past its deadline, and turns again."""
    assert decided(child(run("a", OVERDUE), run("b"), checked_until=OVERDUE - 0.1)) == []


def test_a_blocked_event_loop_without_an_overdue_run_is_left_alone() -> None:
    assert decided(child(run("a"), last_beat=NOW - 100)) == []


# Processes that do not run


def test_a_process_that_another_program_stopped_for_longer_than_a_lease_is_killed() -> None:
    assert decided(child(stopped_since=NOW - LEASE + 1)) == []
    assert decided(child(stopped_since=NOW - LEASE - 1)) == [Kill(reason="sigstop")]


def test_a_blocked_loop_that_keeps_outcomes_unreported_is_killed_after_a_lease() -> None:
    assert decided(child(held=1, cannot_report_since=NOW - LEASE + 1)) == []
    assert decided(child(held=1, cannot_report_since=NOW - LEASE - 1)) == [Kill(reason="blocked")]


def test_nothing_is_done_about_a_child_that_was_killed() -> None:
    snapshot = child(run("a", OVERDUE), killed=True, memory=9 * MEMORY, stopped_since=0.0)
    assert decided(snapshot, MEMORY) == []


# Leases in doubt


IN_DOUBT = CUT_OFF + 0.1


def test_a_process_is_frozen_when_the_lease_of_a_run_is_not_confirmed_until_the_cut_off() -> None:
    assert decided(child(run("a"), unconfirmed=CUT_OFF - 0.1)) == []
    assert decided(child(run("a"), unconfirmed=IN_DOUBT)) == [Freeze(unconfirmed=IN_DOUBT)]


def test_a_frozen_process_is_stopped_again_while_its_leases_are_in_doubt() -> None:
    """Another program may have continued it."""
    snapshot = child(run("a"), unconfirmed=2 * IN_DOUBT, is_frozen=True)
    assert decided(snapshot) == [Freeze(unconfirmed=2 * IN_DOUBT)]


def test_a_frozen_process_is_thawed_when_its_leases_are_confirmed() -> None:
    assert decided(child(run("a"), unconfirmed=0.5, is_frozen=True)) == [Thaw()]


@pytest.mark.parametrize("unconfirmed", [0.5, IN_DOUBT])
def test_a_frozen_process_is_not_blamed_for_what_it_had_no_time_to_do(unconfirmed: float) -> None:
    snapshot = child(
        run("a", OVERDUE), run("b"), unconfirmed=unconfirmed, is_frozen=True, last_beat=NOW - 100,
        kill_by=NOW - 1, memory=9 * MEMORY,
    )  # fmt: skip
    (action,) = decided(snapshot, MEMORY)
    assert isinstance(action, (Freeze, Thaw))


def test_a_process_that_was_killed_is_not_frozen() -> None:
    assert decided(child(run("a"), unconfirmed=IN_DOUBT, killed=True)) == []


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
        assert outstays_stop(turning, late) == turning_goes
        assert outstays_stop(blocked, late) == blocked_goes


def test_a_frozen_child_is_killed_soon_after_the_grace_time_of_a_stop() -> None:
    frozen = child(run("a"), is_frozen=True)
    assert not outstays_stop(frozen, INTERRUPT_TIMEOUT - 0.1)
    assert outstays_stop(frozen, INTERRUPT_TIMEOUT + 0.1)


def test_a_child_that_runs_nothing_is_not_killed_before_it_could_report() -> None:
    silent = child(held=1, last_beat=NOW - 5)
    assert not outstays_stop(silent, INTERRUPT_TIMEOUT + 0.1)
