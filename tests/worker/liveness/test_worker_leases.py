"""When the leases of a worker are bumped, and what its table says about them, without a server."""

import pytest

from queasy.store.commands import QueueCommands
from queasy.store.keys import QueueKeys
from queasy.store.records import Cancelled
from queasy.worker.lease_times import DEFAULT_TIMES
from queasy.worker.liveness.heartbeat import (
    BUSY_LOOP_BLOCKED,
    STAND_DOWN_AT_MOST_EVERY,
    WorkerLeases,
)
from queasy.worker.liveness.inflight_table import InflightTable

BUMP_EVERY = DEFAULT_TIMES.bump_every
IDLE_LEASE = DEFAULT_TIMES.idle_lease
LEASE = DEFAULT_TIMES.lease
IDLE_MARGIN = DEFAULT_TIMES.idle_margin

NOW = 1000.0


class Leases(WorkerLeases):
    """The leases of a worker with one queue. Counts how often the worker was declared dead."""

    def __init__(self) -> None:
        self.losses = 0
        queues = [QueueCommands(QueueKeys("p", "q"))]
        super().__init__("c", queues, InflightTable(1, 1), self._count, _no_cancel)
        self.table.set_idle_until(0, NOW)
        self.table.loop_turned(NOW)

    def _count(self) -> None:
        self.losses += 1


def _no_cancel(queue: int, cancelled: Cancelled) -> None:
    raise AssertionError((queue, cancelled))


@pytest.fixture
def leases() -> Leases:
    return Leases()


def test_a_queue_of_which_the_worker_holds_jobs_is_bumped_every_second(leases: Leases) -> None:
    leases.table.add_held(0, 1)
    assert leases.lease_due(0, NOW) is None, "the dequeue itself has set the lease"
    for second in (NOW, NOW + BUMP_EVERY):
        assert leases.lease_due(0, second + BUMP_EVERY / 2) is None
        assert leases.lease_due(0, second + BUMP_EVERY) == LEASE
        leases.bump_sent(0, second + BUMP_EVERY)


def test_a_poll_that_is_answered_soon_causes_no_bump(leases: Leases) -> None:
    """Bug: a bump was sent for each idle poll that was in flight when the heartbeat looked."""
    leases.table.set_idle_until(0, NOW + 60)
    for second in range(4):
        leases.table.add_held(0, 1)
        assert leases.lease_due(0, NOW + second) is None
        leases.table.add_held(0, -1)
        assert leases.lease_due(0, NOW + second + 0.2) is None


def test_an_idle_worker_is_bumped_only_when_its_lease_is_about_to_end(leases: Leases) -> None:
    leases.table.set_idle_until(0, NOW + IDLE_MARGIN + 1)
    assert leases.lease_due(0, NOW) is None
    assert leases.lease_due(0, NOW + 2) == IDLE_LEASE
    leases.bump_sent(0, NOW + 2)
    leases.answered(0, IDLE_LEASE, NOW + 2, "ok", None)
    assert leases.lease_due(0, NOW + 2 + IDLE_LEASE - IDLE_MARGIN - 1) is None
    assert leases.lease_due(0, NOW + 2 + IDLE_LEASE - IDLE_MARGIN + 1) == IDLE_LEASE


def _bump(leases: Leases, next_in: float | None) -> None:
    leases.bump_sent(0, NOW)
    leases.answered(0, IDLE_LEASE, NOW, "ok", next_in)


def test_a_worker_without_room_calls_when_a_lease_of_another_may_expire(leases: Leases) -> None:
    """Bug: no worker called while all were full, and a dead host kept its jobs."""
    _bump(leases, next_in=4.0)
    assert leases.lease_due(0, NOW + 3.9) is None
    assert leases.lease_due(0, NOW + 4) == IDLE_LEASE


def test_a_worker_without_room_calls_before_its_silence_looks_like_an_outage(
    leases: Leases,
) -> None:
    """A job may have been taken, and its host may have died, right after the last call."""
    _bump(leases, next_in=None)
    assert leases.lease_due(0, NOW + 8) is None
    assert leases.lease_due(0, NOW + 9.1) == IDLE_LEASE


def test_a_worker_that_waits_for_jobs_is_not_bumped(leases: Leases) -> None:
    _bump(leases, next_in=4.0)
    leases.table.set_idle_until(0, NOW + 8 + LEASE)
    assert leases.lease_due(0, NOW + 9) is None, "its own dequeue is a second late"
    leases.table.set_stood_down()
    assert leases.lease_due(0, NOW + 9) == IDLE_LEASE, "its loop is blocked: it is not a waiter"


def test_a_queue_that_is_not_served_is_not_bumped(leases: Leases) -> None:
    leases.table.set_idle_until(0, 0.0)
    leases.table.add_held(0, 1)
    assert leases.lease_due(0, NOW) is None


def test_the_table_says_since_when_leases_were_not_confirmed(leases: Leases) -> None:
    leases.publish(NOW)
    assert leases.table.confirmed_at(0) == 0.0, "it holds nothing"
    leases.table.add_held(0, 1)
    leases.publish(NOW + 0.2)
    leases.publish(NOW + 5)
    assert leases.table.unconfirmed_for(0, NOW + 5) == 5, (
        "requested after the last time it held none"
    )
    leases.confirmed(0, NOW + 4)
    leases.confirmed(0, NOW + 3)  # an earlier call that was answered later
    leases.publish(NOW + 5)
    assert leases.table.unconfirmed_for(0, NOW + 5) == 1
    leases.table.set_requested_at(0, NOW + 5)
    assert leases.table.unconfirmed_for(0, NOW + 5) == 0
    leases.table.add_held(0, -1)
    leases.publish(NOW + 6)
    assert leases.table.confirmed_at(0) == 0.0


def test_a_worker_that_the_server_declared_dead_is_lost_unless_it_left(leases: Leases) -> None:
    leases.answered(0, LEASE, NOW, "ok", None)
    assert leases.losses == 0
    leases.answered(0, LEASE, NOW, "lost", None)
    assert leases.losses == 1
    leases.table.set_idle_until(0, 0.0)  # it left the queue while the call was in flight
    leases.answered(0, LEASE, NOW, "lost", None)
    assert leases.losses == 1


def test_a_worker_stands_down_once_for_each_time_its_loop_is_blocked(leases: Leases) -> None:
    late = NOW + BUSY_LOOP_BLOCKED + 0.1
    assert not leases.should_stand_down(late), "nothing runs"
    slot = leases.table.start_run(0, "a", 1, NOW, NOW + 100)
    assert not leases.should_stand_down(NOW + BUSY_LOOP_BLOCKED / 2)
    assert leases.should_stand_down(late)
    leases.standing_down(late)
    assert not leases.should_stand_down(late + 10), "it did already"
    leases.table.loop_turned(late + 0.1)
    assert not leases.should_stand_down(late + STAND_DOWN_AT_MOST_EVERY - 0.1), "just now"
    assert leases.should_stand_down(late + STAND_DOWN_AT_MOST_EVERY + 0.1)
    leases.table.end_run(slot)
    assert not leases.should_stand_down(late + 10)
