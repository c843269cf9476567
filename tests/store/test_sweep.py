"""Sweeps return every job of a dead client: the smallest case of each bug that was found."""

from queasy.outcomes import Finish
from tests.store.harness import Harness, endings_of


def test_dead_client_is_swept_although_another_polls_an_empty_queue(h: Harness) -> None:
    """Bug: a poll that finds nothing wrote nothing. After 10 s each looked like the first call
    after an outage, which extends every lease.
    """
    h.join("dead", lease=30)
    h.dispatch()
    h.take_one("dead", lease=30)
    for _ in range(20):
        h.later(5)
        h.dequeue(limit=0)
    assert set(h.rows()) == {"due"}


def test_dead_client_is_swept_if_sweeps_are_the_only_calls(h: Harness) -> None:
    """Bug: the lease of the dead client never ended."""
    h.join("dead", lease=30)
    h.dispatch()
    h.take_one("dead", lease=30)
    for _ in range(20):
        h.later(20)
        h.sweep()
    assert set(h.rows()) == {"due"}


def test_sweep_that_returns_0_has_left_no_expired_lease(h: Harness) -> None:
    """Bug: sweeps of many clients without jobs returned 0 while an expired lease was left."""
    h.join(*(f"idle{n}" for n in range(12)), lease=4)
    h.join("dead", lease=5)
    h.dispatch()
    h.take_one("dead", lease=5)
    h.later(6)
    while h.sweep():
        pass
    assert set(h.rows()) == {"due"}


def test_single_lease_client_swept_in_part_leaves_no_request(h: Harness) -> None:
    """Bug: the server kept the request after the remaining jobs had finished."""
    h.dispatch_many(*(f"j{n:03}" for n in range(150)))
    jobs = h.take("~x", limit=150, lease=5)
    h.later(6)
    assert h.sweep() == 100
    h.call(h.commands.settle(endings_of(jobs[100:], Finish())))
    left_over = h.dump().get(":requests")
    h.redis.delete(h.keys.base + "requests")  # or the audit after the test would fail as well
    assert left_over is None
