"""The known defects of the library of Queasy for Node, which this one does not have."""

import pytest

from tests.interop.node.harness import LATER, NodeQueue


@pytest.fixture
def swept(q: NodeQueue) -> NodeQueue:
    """A queue whose job `a` client `late` lost and client `c` holds."""
    q.dispatch()
    q.dequeue("late", now=0, expiry=1)
    assert q.ids("c", now=1) == ["a"]
    return q


def test_finish_by_a_client_that_does_not_hold_the_job_changes_nothing(swept: NodeQueue) -> None:
    before = swept.keys()
    assert swept.finish("a", "late") == 0
    assert swept.finish("a", "stranger") == 0
    assert swept.keys() == before
    assert swept.finish("a", "c") == 1
    assert swept.finish("a", "c") == 0


def test_retry_by_a_client_that_does_not_hold_the_job_changes_nothing(swept: NodeQueue) -> None:
    before = swept.keys()
    assert swept.retry("a", "late", at=5) == 0
    assert swept.keys() == before
    assert swept.retry("a", "c", at=5) == 1
    after = swept.keys()
    assert swept.retry("a", "c", at=9) == 0
    assert swept.keys() == after


def test_fail_by_a_client_that_does_not_hold_the_job_changes_nothing(swept: NodeQueue) -> None:
    before = swept.keys()
    assert swept.fail("a", "late") == 0
    assert swept.keys() == before
    assert swept.fail_queue.keys() == {}


def test_repeated_fail_makes_one_fail_job(q: NodeQueue) -> None:
    q.dispatch()
    q.dequeue()
    assert q.fail("a", "c", "f1") == 1
    assert q.fail("a", "c", "f1") == 0
    assert q.fail("a", "c", "f2") == 0
    assert q.fail_queue.ids(now=1) == ["f1"]
    assert q.fail_queue.finish("f1") == 1
    assert q.fail("a", "c", "f1") == 0
    assert q.fail_queue.ids(now=1) == []


@pytest.mark.parametrize("run_at", [0, -0.0, 0.25, 0.5, -1])
def test_blocked_job_with_run_at_0_is_not_dequeued(q: NodeQueue, run_at: float) -> None:
    q.dispatch("a", 0, "first")
    q.dequeue()
    q.dispatch("a", run_at, "second")
    q.dispatch("a", run_at, "third")
    score = q.score()
    assert score is not None
    assert score < 0
    assert -score <= 1  # a library that flips the sign makes it due at once
    assert q.ids("d", now=LATER - 1) == []
    assert q.finish() == 1
    assert q.score() == 0
    assert [job["data"] for job in q.dequeue("d")] == ["third"]


def test_blocked_job_that_another_library_left_at_0_is_not_dequeued(damaged: NodeQueue) -> None:
    q = damaged
    q.dispatch("a", 0, "first")
    q.dequeue()
    q.dispatch("a", 0, "second")
    q.redis.zadd(q.key, {"a": -0.0})
    q.dispatch("b", 0)
    assert q.ids("d", limit=1) == ["b"]
    assert q.audit().problems() == []
    assert q.finish() == 1
    assert q.ids("d") == ["a"]


@pytest.mark.parametrize("update_run_at", [False, True, "ifLater", "ifEarlier"])
@pytest.mark.parametrize("ends", ["finish", "retry", "fail", "stall"])
def test_blocked_job_is_never_stranded_by_update_run_at(
    q: NodeQueue, update_run_at: bool | str, ends: str
) -> None:
    q.dispatch("a", 0, "first")
    q.dequeue("c", now=0, expiry=5)
    q.dispatch("a", 3, "second", update_run_at=update_run_at)
    q.dispatch("a", 4, "third", update_data=False, update_run_at=update_run_at)
    if ends == "stall":
        q.dequeue("d", now=5, limit=0)
    else:
        assert getattr(q, ends)() == 1
    (job,) = q.dequeue("d", now=5)
    assert job["data"] == "second"


def test_blocked_job_is_never_stranded_by_a_cancel_and_another_dispatch(q: NodeQueue) -> None:
    q.dispatch("a")
    q.dequeue()
    q.dispatch("a", 3, "second")
    q.cancel()
    q.dispatch("a", 2, "third", update_data=False, update_run_at=False)
    assert q.finish() == 1
    assert [job["data"] for job in q.dequeue("d", now=2)] == ["third"]


def test_job_stranded_by_another_library_is_freed_by_the_next_dispatch(damaged: NodeQueue) -> None:
    q = damaged
    q.dispatch("a", 5, "data")
    q.redis.zadd(q.key, {"a": -5})
    q.dispatch("a", 9, "new", update_data=False, update_run_at=False)
    assert q.score() == 5
    assert [job["data"] for job in q.dequeue(now=5)] == ["data"]


def test_job_freed_by_another_library_is_dequeued_without_its_flags(damaged: NodeQueue) -> None:
    q = damaged
    q.dispatch("a", 0, "first")
    q.dequeue()
    q.dispatch("a", 3, "second", update_run_at=False)
    q.redis.delete(f"{q.key}:active_job:a", f"{q.key}:checkouts:c")
    q.redis.zadd(q.key, {"a": 3})
    (job,) = q.dequeue("d", now=3)
    assert job == {"id": "a", "data": "second", "retry_count": "0", "stall_count": "0"}


def test_entries_that_cannot_be_taken_do_not_count_towards_the_limit(damaged: NodeQueue) -> None:
    q = damaged
    for id_ in "abcdef":
        q.dispatch(id_)
    for id_ in "ab":
        q.redis.delete(f"{q.key}:waiting_job:{id_}")
    assert q.ids(limit=3) == ["c", "d", "e"]
    assert q.ids(limit=3) == ["f"]


BROKEN = {
    "no record": lambda q: q.redis.delete(f"{q.key}:active_job:b"),
    "text for a record": lambda q: q.redis.set(f"{q.key}:active_job:b", "text"),
    "list for a record": lambda q: (
        q.redis.delete(f"{q.key}:active_job:b"),
        q.redis.rpush(f"{q.key}:active_job:b", "x"),
    ),
    "no fields but one": lambda q: (
        q.redis.delete(f"{q.key}:active_job:b"),
        q.redis.hset(f"{q.key}:active_job:b", "data", "1"),
    ),
    "text for counts": lambda q: q.redis.hset(
        f"{q.key}:active_job:b", mapping={"stall_count": "many", "retry_count": "-1"}
    ),
    "text for a blocked record": lambda q: (
        q.dispatch("b", 3, reset_counts=False),
        q.redis.set(f"{q.key}:waiting_job:b", "text"),
    ),
    "nonsense for the flags": lambda q: (
        q.dispatch("b", 3, reset_counts=False),
        q.redis.hset(f"{q.key}:waiting_job:b", mapping={"update_run_at": "x", "update_data": "x"}),
    ),
    "text for the checkouts of another": lambda q: (
        q.dequeue("e", now=0, expiry=1, limit=0),
        q.redis.set(f"{q.key}:checkouts:e", "text"),
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_record_does_not_wedge_sweep(damaged: NodeQueue, what: str) -> None:
    q = damaged
    for id_ in "abc":
        q.dispatch(id_)
    q.dequeue("late", now=0, expiry=1)
    BROKEN[what](q)
    taken = {job["id"]: job for job in q.dequeue("d", now=5)}
    assert {"a", "c"} <= taken.keys()
    for id_ in taken:
        assert taken[id_]["stall_count"] == "1"
        assert taken[id_]["retry_count"] == "0" or id_ == "b"
        assert q.finish(id_, "d") == 1
    assert "b" in taken or what in ("no record", "text for a record", "list for a record")
    assert q.audit().problems() == []
    assert q.keys()[":expiry"].keys() == {"d"}
    assert bool(q.audit().broken) == what.startswith(("text for a", "list", "text for the check"))


@pytest.mark.parametrize("what", ["text", "nothing", "fields"])
def test_broken_waiting_record_does_not_wedge_dequeue(damaged: NodeQueue, what: str) -> None:
    q = damaged
    for id_ in "abc":
        q.dispatch(id_)
    q.redis.delete(f"{q.key}:waiting_job:b")
    if what == "text":
        q.redis.set(f"{q.key}:waiting_job:b", "text")
    elif what == "fields":
        q.redis.hset(f"{q.key}:waiting_job:b", "data", "2")
    taken = {job["id"]: job for job in q.dequeue()}
    assert {"a", "c"} <= taken.keys()
    assert q.audit().problems() == []
    if what == "fields":
        assert taken["b"] == {"id": "b", "data": "2", "retry_count": "0", "stall_count": "0"}
    q.dispatch("b", 0, "again")
    assert "b" in taken or q.ids() == ["b"]


def test_record_left_without_a_score_does_not_give_its_data_to_a_new_job(
    damaged: NodeQueue,
) -> None:
    q = damaged
    q.redis.hset(f"{q.key}:waiting_job:a", mapping={"data": "old", "retry_count": "7"})
    q.dispatch("a", 0, "new", update_data=False)
    assert q.dequeue() == [{"id": "a", "data": "new", "retry_count": "0", "stall_count": "0"}]
