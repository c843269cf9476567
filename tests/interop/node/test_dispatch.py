"""What a dispatch does to a job that is new, waits, or is active."""

import pytest
import redis

from tests.interop.node.harness import NodeQueue


def test_new_job_waits_with_its_data_and_counts_of_zero(q: NodeQueue) -> None:
    assert q.dispatch("a", 5, '{"to":1}') == "a"
    assert q.score() == 5
    assert q.waiting() == {"id": "a", "data": '{"to":1}', "retry_count": "0", "stall_count": "0"}


def test_second_dispatch_of_an_id_updates_what_its_flags_say(q: NodeQueue) -> None:
    q.dispatch("a", 5, "old")
    q.dispatch("a", 7, "new", update_data=False, update_run_at=False)
    assert (q.waiting()["data"], q.score()) == ("old", 5)
    q.dispatch("a", 7, "new", update_data=True, update_run_at=False)
    assert (q.waiting()["data"], q.score()) == ("new", 5)
    q.dispatch("a", 7, "newer", update_data=False, update_run_at=True)
    assert (q.waiting()["data"], q.score()) == ("new", 7)


@pytest.mark.parametrize("spelling", ["if{}", "if_{}"])
def test_run_at_can_be_moved_in_one_direction_only(q: NodeQueue, spelling: str) -> None:
    camel = spelling == "if{}"
    later = spelling.format("Later" if camel else "later")
    earlier = spelling.format("Earlier" if camel else "earlier")
    q.dispatch("a", 5)
    steps = [(4, later, 5), (6, later, 6), (7, earlier, 6), (1, earlier, 1)]
    for run_at, update, expected in steps:
        q.dispatch("a", run_at, update_run_at=update)
        assert q.score() == expected


def test_reset_counts_sets_both_counts_to_zero_and_is_update_data_by_default(q: NodeQueue) -> None:
    q.dispatch()
    q.dequeue()
    q.retry()
    assert q.waiting()["retry_count"] == "1"
    q.dispatch("a", 0, "2", reset_counts=False)
    assert q.waiting()["retry_count"] == "1"
    q.call("dispatch", "a", 0, "3", "false")
    assert q.waiting()["retry_count"] == "1"
    q.call("dispatch", "a", 0, "3", "true")
    assert q.waiting()["retry_count"] == "0"


def test_flags_that_are_absent_are_true(q: NodeQueue) -> None:
    q.dispatch("a", 5, "old")
    q.call("dispatch", "a", 7, "new")
    assert (q.waiting()["data"], q.score()) == ("new", 7)


def test_further_arguments_and_keys_are_ignored(q: NodeQueue) -> None:
    keys = (q.key, q.fail_key, f"{q.key}:more")
    q.call("dispatch", "a", 0, "1", "true", "true", "true", "more", "and more", keys=keys)
    assert len(q.call("dequeue", "c", 1, 100, 10, "more", keys=keys)) == 1
    assert q.call("bump", "c", 1, 100, "more", keys=keys) == 1
    assert q.call("retry", "a", "c", 1, 1, "more", keys=keys) == 1
    assert q.call("cancel", "a", "more", keys=keys) == 1


def test_dispatch_of_an_active_id_is_blocked_until_the_run_ends(q: NodeQueue) -> None:
    q.dispatch("a", 1, "first")
    assert q.ids(now=1) == ["a"]
    q.dispatch("a", 2, "second")
    assert q.score() == -2
    assert q.ids("d", now=50) == []
    assert q.waiting()["update_run_at"] == "true"
    assert q.finish() == 1
    assert q.score() == 2
    (job,) = q.dequeue("d", now=50)
    assert job == {"id": "a", "data": "second", "retry_count": "0", "stall_count": "0"}
    assert q.finish("a", "d") == 1


def test_retry_applies_the_blocked_dispatch_as_its_flags_say(q: NodeQueue) -> None:
    cases = [
        (True, True, True, ("second", 20, "0")),
        (False, True, False, ("first", 20, "1")),
        (True, False, False, ("second", 10, "1")),
        (False, "ifLater", False, ("first", 20, "1")),
        (False, "ifEarlier", True, ("first", 10, "0")),
    ]
    for number, (data, run_at, reset, expected) in enumerate(cases):
        id_ = f"job-{number}"
        q.dispatch(id_, 0, "first")
        assert q.ids() == [id_]
        q.dispatch(id_, 20, "second", data, run_at, reset)
        assert q.retry(id_, at=10) == 1
        record = q.waiting(id_)
        assert (record["data"], q.score(id_), record["retry_count"]) == expected
        assert "update_data" not in record
        q.cancel(id_)


def test_second_blocked_dispatch_does_not_undo_the_flags_of_the_first(q: NodeQueue) -> None:
    q.dispatch("a", 0, "first")
    q.dequeue()
    q.dispatch("a", 20, "second", True, True, True)
    q.dispatch("a", 30, "third", False, False, False)
    q.retry(at=10)
    assert (q.waiting()["data"], q.score(), q.waiting()["retry_count"]) == ("second", 20, "0")


def test_times_that_are_no_numbers_are_refused_and_nothing_is_written(q: NodeQueue) -> None:
    for time in ("", "soon", "nan", "inf", "-inf"):
        with pytest.raises(redis.ResponseError, match="expected a number for run_at"):
            q.dispatch("a", time)
    with pytest.raises(redis.ResponseError, match="update_run_at"):
        q.dispatch("a", update_run_at="sometimes")
    with pytest.raises(redis.ResponseError, match="expected data"):
        q.call("dispatch", "a", 0)
    with pytest.raises(redis.ResponseError, match="expected a number for limit"):
        q.call("dequeue", "c", 0, 1)
    assert q.keys() == {}


def test_negative_run_at_is_due_at_once_and_not_blocked(q: NodeQueue) -> None:
    q.dispatch("a", -5)
    assert q.ids() == ["a"]


def test_cancel_removes_a_waiting_or_blocked_job_and_not_the_active_one(q: NodeQueue) -> None:
    assert q.cancel() == 0
    q.dispatch()
    assert (q.cancel(), q.cancel()) == (1, 0)
    q.dispatch()
    q.dequeue()
    assert q.cancel() == 0
    q.dispatch("a", 0, "2")
    assert q.cancel() == 1
    assert q.active()["data"] == "1"
    assert q.finish() == 1
    assert set(q.keys()) == {":expiry"}


def test_version_is_the_one_of_the_reference_table(q: NodeQueue) -> None:
    assert q.redis.fcall("queasy_version", 0) == 1
    assert q.redis.fcall_ro("queasy_version", 0) == 1
