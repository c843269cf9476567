"""Taking jobs, keeping them, and ending them."""

import json

import pytest
import redis

from tests.interop.node.harness import NodeQueue
from tests.servers import Server


def test_due_jobs_leave_by_run_at_up_to_the_limit(q: NodeQueue) -> None:
    for id_, run_at in (("c", 1), ("a", 2), ("b", 0), ("later", 3)):
        q.dispatch(id_, run_at)
    assert q.ids(now=2, limit=2) == ["b", "c"]
    assert q.ids(now=2, limit=2) == ["a"]
    assert q.ids(now=2) == []
    assert q.ids(now=3) == ["later"]


def test_limit_of_zero_takes_nothing_and_a_high_one_a_thousand(q: NodeQueue) -> None:
    with q.redis.pipeline(transaction=False) as pipeline:
        for number in range(1001):
            pipeline.fcall("queasy_dispatch", 1, q.key, f"{number:04}", 0, "1")
        pipeline.execute()
    assert q.ids(limit=0) == []
    assert len(q.ids(limit=10**9)) == 1000
    assert q.ids(limit=10**9) == ["1000"]


def test_dequeued_job_is_a_map_or_a_flat_list_as_the_client_speaks(
    q: NodeQueue, server: Server
) -> None:
    q.dispatch("a", 0, '["ü"]')
    q.dispatch("b", 0, '["ü"]')
    flat = q.call("dequeue", "c", 0, 100, 1)[0]
    assert dict(zip(flat[::2], flat[1::2], strict=True))["data"] == '["ü"]'
    with server.client(protocol=3) as resp3:
        (job,) = NodeQueue(resp3, q.key[1:-1]).call("dequeue", "c", 0, 100, 1)
    assert job == {"id": "b", "data": '["ü"]', "retry_count": "0", "stall_count": "0"}


def test_record_is_moved_to_the_holder_and_removed_by_finish(q: NodeQueue) -> None:
    q.dispatch()
    q.dequeue("c", now=1, expiry=11)
    assert set(q.keys()) == {":active_job:a", ":checkouts:c", ":expiry"}
    assert q.keys()[":expiry"] == {"c": 11}
    assert q.keys()[":checkouts:c"] == {"a"}
    assert q.finish() == 1
    assert set(q.keys()) == {":expiry"}


def test_retry_counts_and_waits_until_its_time(q: NodeQueue) -> None:
    q.dispatch()
    for count in range(3):
        (job,) = q.dequeue(now=10 * count)
        assert (job["retry_count"], job["stall_count"]) == (str(count), "0")
        assert q.retry(at=10 * count + 10) == 1
        assert q.ids(now=10 * count + 9) == []


def test_fail_makes_a_job_of_the_fail_queue_and_ends_this_one(q: NodeQueue) -> None:
    q.dispatch("a", 0, '{"to":1}')
    q.dequeue()
    data = json.dumps(["a", '{"to":1}', {"message": "no"}])
    q.dispatch("a", 5, "2")
    assert q.fail("a", "c", "f", data) == 1
    assert q.score("a") == 5  # the blocked dispatch runs
    (failed,) = q.fail_queue.dequeue("d", now=1)
    assert (failed["id"], failed["data"]) == ("f", data)
    assert q.fail_queue.finish("f", "d") == 1
    q.cancel()


def test_fail_without_a_fail_queue_is_refused_and_changes_nothing(q: NodeQueue) -> None:
    q.dispatch()
    q.dequeue()
    with pytest.raises(redis.ResponseError, match="expected the key of a queue"):
        q.call("fail", "a", "c", "f", "[]", 0)
    assert q.finish() == 1


def test_bump_extends_the_expiry_of_a_client_that_dequeued(q: NodeQueue) -> None:
    assert q.bump("stranger") == 0
    q.dispatch()
    q.dequeue("c", now=0, expiry=10)
    assert q.bump("c", now=9, expiry=19) == 1
    assert q.ids("d", now=10) == []
    assert q.bump("c", now=18, expiry=28) == 1
    assert q.ids("d", now=27) == []
    assert q.finish() == 1


def test_client_that_expires_at_once_is_swept_by_the_next_call(q: NodeQueue) -> None:
    q.dispatch()
    assert q.ids("c", now=5, expiry=5) == ["a"]
    assert q.keys()[":expiry"] == {"c": 5}
    assert q.ids("d", now=5) == ["a"]
    assert q.ids("d", now=6, expiry=5) == ["a"]
    assert q.finish("a", "d") == 1


def test_idle_client_is_alive_after_a_dequeue_without_jobs(q: NodeQueue) -> None:
    assert q.ids("c", now=0, expiry=10) == []
    assert q.bump("c", now=5) == 1


def test_jobs_of_a_silent_client_return_with_a_stall(q: NodeQueue) -> None:
    q.dispatch("a")
    q.dispatch("b")
    assert q.ids("c", now=0, expiry=10) == ["a", "b"]
    assert q.ids("d", now=9) == []
    jobs = q.dequeue("d", now=10)
    assert [(job["id"], job["stall_count"], job["retry_count"]) for job in jobs] == [
        ("a", "1", "0"), ("b", "1", "0"),
    ]  # fmt: skip
    assert q.bump("c", now=10) == 0
    assert q.keys()[":expiry"].keys() == {"d"}


def test_heartbeat_of_another_client_sweeps(q: NodeQueue) -> None:
    q.dispatch()
    q.dequeue("c", now=0, expiry=10)
    q.dequeue("d", now=5, expiry=100)
    assert q.bump("d", now=10) == 1
    assert q.score() == 10
    assert q.waiting()["stall_count"] == "1"


def test_late_heartbeat_keeps_the_jobs_if_nobody_has_swept(q: NodeQueue) -> None:
    q.dispatch()
    q.dequeue("c", now=0, expiry=10)
    assert q.bump("c", now=50) == 1
    assert q.ids("d", now=50) == []
    assert q.finish() == 1


def test_stalled_job_receives_the_dispatch_that_it_blocked(q: NodeQueue) -> None:
    q.dispatch("a", 0, "first")
    q.dequeue("c", now=0, expiry=10)
    q.dispatch("a", 50, "second", update_run_at=False, reset_counts=False)
    (job,) = q.dequeue("d", now=10)
    assert (job["data"], job["stall_count"]) == ("second", "1")


def test_full_server_drains_and_refuses_dispatches(own_server: Server) -> None:
    from queasy.interop.node_library import NODE

    with own_server.client() as connection:
        connection.function_load(NODE.source())
        q = NodeQueue(connection)
        for id_ in "abcd":
            q.dispatch(id_)
        connection.config_set("maxmemory", 1)
        with pytest.raises(redis.ResponseError, match=r"OOM|maxmemory"):
            q.dispatch("e")
        assert q.ids() == list("abcd")
        assert (q.bump(), q.finish("a"), q.retry("b"), q.fail("c"), q.cancel("b")) == (1,) * 5
        connection.config_set("maxmemory", 0)
        assert q.audit().problems() == []
