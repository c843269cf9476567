"""Bugs the model, or writing it, has found in the Lua: each as the fewest calls that show it."""

from __future__ import annotations

from tests.model.pair import Pair
from tests.model.values import Ending, Item

T = 1_760_000_000_000.0


def dispatch(pair: Pair, now: float, *ids: str) -> None:
    pair.run("dispatch", "main", now, items=[Item(id_, b"1") for id_ in ids])


def take(
    pair: Pair, now: float, client: str, limit: int, *endings: Ending, lease: int = 60_000
) -> list[tuple[str, str]]:
    """Dequeues; the id and the token of each job."""
    reply = pair.run(
        "dequeue", "main", now, client=client, lease=lease, limit=limit, request="",
        waiter="", waits=0, endings=endings,
    )  # fmt: skip
    return [(id_, str(token)) for id_, token, *_ in reply[3]]


def settle(pair: Pair, now: float, *endings: Ending) -> None:
    pair.run("settle", "main", now, endings=endings)


def test_a_broken_job_that_is_requeued_keeps_the_time_of_its_dispatch(pair: Pair) -> None:
    dispatch(pair, T, "a")
    settle(pair, T + 1, *[Ending("broken", *lease) for lease in take(pair, T, "~p", 1)])
    pair.run("requeue", "main", T + 2, kind="broken", ids=["a"])
    assert pair.queues["main"].waiting["a"].dispatched_at == T


def test_records_of_two_calls_at_one_time_are_in_the_order_of_the_calls(pair: Pair) -> None:
    dispatch(pair, T, "a", "b")
    (a, b) = take(pair, T, "~p", 2)
    settle(pair, T, Ending("fail", *b))
    settle(pair, T, Ending("fail", *a))
    assert list(pair.queues["main"].records["failed"]) == ["b", "a"]


def test_records_are_in_order_when_the_clock_went_back(pair: Pair) -> None:
    dispatch(pair, T, "a", "b", "c")
    (a, b, c) = take(pair, T, "~p", 3)
    settle(pair, T, Ending("fail", *b), Ending("fail", *c))
    settle(pair, T - 5_000, Ending("fail", *a))
    assert list(pair.queues["main"].records["failed"]) == ["b", "c", "a"]


def test_records_of_endings_and_sweep_in_one_dequeue_are_in_order(pair: Pair) -> None:
    pair.run("configure", "main", T, limits={"max_stalls": 1})
    dispatch(pair, T, "b", "c", "a")
    (b, c) = take(pair, T, "~p", 2)
    take(pair, T, "~q", 1, lease=1)
    take(pair, T + 5, "~r", 1, Ending("fail", *b), Ending("fail", *c))
    assert list(pair.queues["main"].records["failed"]) == ["b", "c", "a"]


def test_the_record_stays_bounded_when_old_ids_fail_again_beside_a_new_one(pair: Pair) -> None:
    pair.run("configure", "main", T, failed_limit=3)
    for at, ids in enumerate((["a", "b", "c"], ["a", "b", "d"])):
        dispatch(pair, T + at, *ids)
        settle(pair, T + at, *[Ending("fail", *lease) for lease in take(pair, T + at, "~p", 3)])
    assert list(pair.queues["main"].records["failed"]) == ["a", "b", "d"]


def test_a_partly_swept_pull_client_leaves_no_mark_when_its_last_lease_ends(pair: Pair) -> None:
    dispatch(pair, T, *[f"{number:03}" for number in range(101)])
    leases = take(pair, T, "~p", 101, lease=1_000)
    assert pair.run("sweep", "main", T + 2_000) == 100
    settle(pair, T + 2_000, Ending("finish", *leases[100]))
    assert not pair.queues["main"].swept


def test_a_registered_pull_client_leaves_nothing_when_its_last_lease_ends(pair: Pair) -> None:
    dispatch(pair, T, "a")
    (lease,) = take(pair, T, "~p", 1)
    pair.run("register", "main", T, client="~p", lease=60_000, worker=b"host")
    settle(pair, T, Ending("finish", *lease))
    assert not pair.queues["main"].workers


def test_a_partly_swept_pull_client_stays_dead(pair: Pair) -> None:
    dispatch(pair, T, *[f"{number:03}" for number in range(250)])
    take(pair, T, "~p", 250, lease=1_000)
    pair.run("evict", "main", T, client="~p", verb="release", ids=[])
    assert take(pair, T, "~p", 1) == []


def test_a_token_with_the_score_behind_it_is_no_token(pair: Pair) -> None:
    dispatch(pair, T, "a")
    ((id_, token),) = take(pair, T, "~p", 1)
    settle(pair, T, Ending("finish", id_, f"{token}:{T:.0f}"))
    assert "a" in pair.queues["main"].active


def test_a_dead_lease_is_swept_although_those_who_ask_change_nothing(pair: Pair) -> None:
    """Time seen must be kept by calls that find nothing, or every call sees an outage."""
    dispatch(pair, T, "a")
    assert take(pair, T, "~dead", 1, lease=15_000)
    for second in range(1, 120):
        if take(pair, T + second * 1000, "~asks", 1):
            return
    raise AssertionError("the job of a client dead for 105 s was given to nobody")
