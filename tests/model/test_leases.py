"""Leases and their clients: tokens, sweeps, and what is left of a client without leases."""

from __future__ import annotations

from tests.model.calls import T, dequeue, dispatch, settle
from tests.model.pair import Pair
from tests.model.values import Ending


def test_partly_swept_pull_client_is_forgotten_when_its_last_lease_ends(pair: Pair) -> None:
    dispatch(pair, T, *[f"{number:03}" for number in range(101)])
    leases = dequeue(pair, T, "~p", 101, lease=1_000)
    assert pair.run("sweep", "main", T + 2_000) == 100
    settle(pair, T + 2_000, Ending("finish", *leases[100]))
    assert not pair.queues["main"].swept


def test_registered_pull_client_is_forgotten_when_its_last_lease_ends(pair: Pair) -> None:
    dispatch(pair, T, "a")
    (lease,) = dequeue(pair, T, "~p", 1)
    pair.run("register", "main", T, client="~p", lease=60_000, worker=b"host")
    settle(pair, T, Ending("finish", *lease))
    assert not pair.queues["main"].workers


def test_partly_evicted_pull_client_gets_no_more_jobs(pair: Pair) -> None:
    dispatch(pair, T, *[f"{number:03}" for number in range(250)])
    dequeue(pair, T, "~p", 250, lease=1_000)
    pair.run("evict", "main", T, client="~p")
    assert dequeue(pair, T, "~p", 1) == []


def test_token_followed_by_the_score_cannot_finish_a_job(pair: Pair) -> None:
    dispatch(pair, T, "a")
    ((id_, token),) = dequeue(pair, T, "~p", 1)
    settle(pair, T, Ending("finish", id_, f"{token}:{T:.0f}"))
    assert "a" in pair.queues["main"].active


def test_expired_lease_is_swept_although_no_other_call_changes_anything(pair: Pair) -> None:
    """Calls that find nothing must record the time too, or every call detects an outage."""
    dispatch(pair, T, "a")
    assert dequeue(pair, T, "~dead", 1, lease=15_000)
    for second in range(1, 120):
        if dequeue(pair, T + second * 1000, "~polls", 1):
            return
    raise AssertionError("the job of a client that died 105 s ago was not handed out again")


def test_one_sweep_ends_at_most_ten_clients(pair: Pair) -> None:
    for number in range(11):
        pair.run("register", "main", 1000.0, client=f"w{number}", lease=5, worker=b"")
    for left in (1, 0):
        pair.run("sweep", "main", 2000.0)
        assert len(pair.queues["main"].clients) == left
