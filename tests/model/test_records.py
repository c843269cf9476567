"""The failed and the broken record: their order, their bounds, and requeues from them."""

from __future__ import annotations

from tests.model.calls import T, dequeue, dispatch, settle
from tests.model.pair import Pair
from tests.model.values import Ending


def test_requeued_broken_job_keeps_the_time_of_its_dispatch(pair: Pair) -> None:
    dispatch(pair, T, "a")
    settle(pair, T + 1, *[Ending("broken", *lease) for lease in dequeue(pair, T, "~p", 1)])
    pair.run("requeue", "main", T + 2, kind="broken", ids=["a"])
    assert pair.queues["main"].waiting["a"].dispatched_at == T


def test_records_of_two_calls_at_the_same_time_have_the_order_of_the_calls(pair: Pair) -> None:
    dispatch(pair, T, "a", "b")
    (a, b) = dequeue(pair, T, "~p", 2)
    settle(pair, T, Ending("fail", *b))
    settle(pair, T, Ending("fail", *a))
    assert list(pair.queues["main"].records["failed"]) == ["b", "a"]


def test_records_stay_in_order_when_the_clock_is_set_back(pair: Pair) -> None:
    dispatch(pair, T, "a", "b", "c")
    (a, b, c) = dequeue(pair, T, "~p", 3)
    settle(pair, T, Ending("fail", *b), Ending("fail", *c))
    settle(pair, T - 5_000, Ending("fail", *a))
    assert list(pair.queues["main"].records["failed"]) == ["b", "c", "a"]


def test_records_of_outcomes_precede_those_of_the_sweep_in_the_same_dequeue(pair: Pair) -> None:
    pair.run("configure", "main", T, limits={"max_expiries": 1})
    dispatch(pair, T, "b", "c", "a")
    (b, c) = dequeue(pair, T, "~p", 2)
    dequeue(pair, T, "~q", 1, lease=1)
    dequeue(pair, T + 5, "~r", 1, Ending("fail", *b), Ending("fail", *c))
    assert list(pair.queues["main"].records["failed"]) == ["b", "c", "a"]


def test_record_stays_within_its_limit_when_known_ids_fail_with_a_new_one(pair: Pair) -> None:
    pair.run("configure", "main", T, failed_limit=3)
    for at, ids in enumerate((["a", "b", "c"], ["a", "b", "d"])):
        dispatch(pair, T + at, *ids)
        settle(pair, T + at, *[Ending("fail", *lease) for lease in dequeue(pair, T + at, "~p", 3)])
    assert list(pair.queues["main"].records["failed"]) == ["a", "b", "d"]
