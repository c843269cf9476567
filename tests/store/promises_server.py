"""Promises about the server: full memory, reading, waking, unusual ids, bad records."""

import time
from typing import Any, get_args

import msgspec
import redis
from redis.client import PubSub

from queasy.outcomes import Fail, Finish, RetryLater
from queasy.store.command import Command
from queasy.store.commands import ListState, QueueCommands, version
from queasy.store.keys import QueueKeys
from queasy.store.records import DispatchItem
from tests.store.harness import START, Harness, endings_of, refused, send
from tests.store.promise import promise

STRANGE_IDS = (
    "a:b", ":", "~x:y", "a;b", "'", '"', "}{", "ünï→😀", "line\nbreak", "nul\0nul", "\r\n",
    " ", "%s", "[a", "(a", "-1", "0", "x" * 512, "\udcff",
)  # fmt: skip


@promise
def any_bytes_are_an_id(h: Harness) -> None:
    h.join("c1", lease=5)
    h.dispatch_many(*STRANGE_IDS)
    jobs = h.take("c1", limit=99, lease=5)
    assert [job.id for job in jobs] == list(STRANGE_IDS)
    assert set(h.cancel(*STRANGE_IDS[:9], running=True)) == {"requested"}
    assert len(h.dequeue("c1", limit=0).cancels) == 9
    for id_ in STRANGE_IDS:
        assert h.dispatch(id_, b"held") == "blocked"
        assert set(h.rows(id_)) == {"active", "blocked"}
    h.call(h.commands.settle(endings_of(jobs[:15], Finish())))
    h.call(h.commands.settle(endings_of(jobs[15:], RetryLater(after=0))))
    again = h.take(limit=99)
    assert {job.id for job in again} == set(STRANGE_IDS)
    assert {job.payload for job in again} == {b"held"}


@promise
def payloads_are_opaque_bytes(h: Harness) -> None:
    for payload in (b"", b"\x00", b"\xff\xfe", b"\x81\xa1a\x01", b"x" * 100_000):
        h.dispatch(payload=payload)
        run = h.take_one()
        assert run.payload == payload
        h.dispatch(payload=payload)
        h.end(run, Finish())
        run = h.take_one()
        assert run.payload == payload
        h.end(run, Finish())


@promise
def a_full_server_refuses_dispatch_and_drains(h: Harness) -> None:
    h.join("c1", "dead", lease=5)
    h.dispatch_many(*(f"j{n}" for n in range(40)))
    h.take("dead", limit=3, lease=5)
    h.later(2)
    runs = h.take("c1", limit=9)
    try:
        h.redis.config_set("maxmemory", 1)
        for after in (None, 5):
            with refused("OutOfMemory"):
                h.dispatch("one too many", after=after)
        h.later(4)
        assert h.bump("c1") == ["ok"]
        assert h.sweep() == 0, "expected the bump to sweep"
        assert h.call(h.commands.extend(runs[0].id, runs[0].token, 30)) == "ok"
        taken = h.dequeue("c1", limit=9, endings=endings_of(runs, Finish()))
        assert (len(taken.settled), len(taken.jobs)) == (9, 9)
        assert {h.end(run, Finish()) for run in taken.jobs} == {"finished"}
        assert h.cancel("j39") == ["cancelled"]
        assert h.call(h.commands.evict("c1"))[0] == "gone"
        assert h.call(h.commands.counts()).waiting == 40 - 18 - 1
        assert not h.rows("one too many")
    finally:
        h.redis.config_set("maxmemory", 0)
    assert h.dispatch("one too many") == "created"


@promise
def reading_functions_are_declared_and_write_nothing(h: Harness) -> None:
    h.dispatch_many("a", "b")
    h.take_one()
    before = h.dump()
    commands = h.commands
    reads: list[Command[Any]] = [
        commands.counts(), commands.get("a"), commands.stats(), commands.clients(),
        commands.audit(0, 100), commands.leases("c1", b"", 100), version(),
    ]  # fmt: skip
    pages = [commands.jobs(state, b"", 100) for state in get_args(ListState)]
    for read in reads + pages:
        assert read.read_only
        h.call(read)  # FCALL_RO refuses functions that do not declare no-writes
    assert h.dump() == before


@promise
def without_a_logical_time_the_clock_of_the_server_decides(h: Harness) -> None:
    seconds, micros = h.redis.time()
    commands = QueueCommands(h.keys)
    h.time = seconds + micros / 1e6
    send(h.redis, commands.register("c1", 60))
    assert 59 < send(h.redis, commands.clients())[0].expires_in <= 60
    h.dispatch("a")
    [job] = send(h.redis, commands.dequeue("c1", lease=60, limit=1)).jobs
    assert 0 <= job.run_at_epoch - h.time < 5
    assert time.time() > START


def _listen(h: Harness, *clients: str) -> PubSub:
    ears = h.redis.pubsub()
    for client in clients:
        ears.ssubscribe(h.keys.channel(client))
        assert ears.get_sharded_message(timeout=5)["type"] == "ssubscribe"
    return ears


@promise
def a_dispatch_wakes_one_waiter_that_is_subscribed(h: Harness) -> None:
    h.join("gone", "c1", "c2")
    for client in ("gone", "c1", "c2"):
        assert h.dequeue(client, waiter=client, waits=True).jobs == []
        h.later(0.001)
    with _listen(h, "c1", "c2") as ears:
        h.dispatch("a")
        message = ears.get_sharded_message(timeout=5)
        assert (message["channel"], message["data"]) == (h.keys.channel("c1").encode(), b"wake")
        assert ears.get_sharded_message(timeout=0) is None
    assert h.call(h.commands.counts()).waiters == 1, "the other waiter is not woken"


@promise
def a_cancel_request_is_sent_to_the_holder_at_once(h: Harness) -> None:
    h.join("c1")
    h.dispatch("a:b")
    run = h.take_one("c1")
    with _listen(h, "c1") as ears:
        h.cancel("a:b", running=True)
        message = ears.get_sharded_message(timeout=5)
        assert message["data"] == f"cancel:{run.token}:a:b".encode()


@promise
def an_unreadable_record_does_not_stop_other_jobs(h: Harness) -> None:
    h.dispatch_many("bad", "gone", "good")
    h.redis.hset(h.keys.base + "info", "bad", b"\xc1")
    h.redis.hdel(h.keys.base + "data", "gone")
    assert [job.id for job in h.take(limit=9)] == ["good"]
    assert {job.id for job in h.records("broken")} == {"bad", "gone"}


@promise
def bad_arguments_are_refused_before_anything_is_written(h: Harness) -> None:
    h.dispatch()
    before = h.dump()
    too_many = msgspec.msgpack.encode(["a", "1"] * 1001)
    for function, args in [
        ("dispatch", ("", "", "", "b", "", "", "")),
        ("dispatch", ("", "", "", "b", "x", "nan", "", "")),
        ("dispatch", ("", "", "", "b", "x", "inf", "", "")),
        ("dispatch", ("", "", "", "b", "x", "", "9t10", "")),
        ("dispatch", ("", "", "", "b", "x", "", "", "junk")),
        ("dispatch", ("", "", "", "", "x", "", "", "")),
        ("dispatch", ("", "", "", "b", "x", "", "", "", "", "x", "", "", "")),
        ("put", ("", "", "")),
        ("put", ("", "", "", "b")),
        ("put", ("", "", "", "", "x")),
        ("put", ("", "", "", "b", "x", "")),
        ("settle", ("", "explode", "a", "1", "")),
        ("settle", ("", "stall", "a", "1", "")),
        ("settle", ("", "death", "a", "1", "")),
        ("settle", ("", "death", "a", "1", b"\x81\xa7started\x00")),
        ("settle", ("", "death", "a", "1", b"\x81\xa7started\xa11")),
        ("settle", ("", "finish", "a", "1", b"\x81\xa7started\x01")),
        ("evict", ("", "no:colons")),
        ("register", ("", "no:colons", "1000", "")),
        ("dequeue", ("", "", "", "c1", "1000", "-1", "", "", "0", "0", "", "")),
        ("dequeue", ("", "", "", "~c2", "1000", "1", "", "no:colons", "0", "0", "", "")),
        ("dequeue", ("", "", "", "c1", "1000", "1", "", "", "0", "0", "", "junk")),
        ("dequeue", ("", "", "", "c1", "1000", "1", "", "", "0", "0", "", b"\x91\xa1a")),
        ("dequeue", ("", "", "", "c1", "1000", "1", "", "", "0", "0", "", b"\x92\xa1a\x01")),
        ("dequeue", ("", "", "", "c1", "1000", "1", "", "", "0", "0", "", b"\x81\xa1a\x01")),
        ("dequeue", ("", "", "", "c1", "1000", "1", "", "", "0", "0", "", too_many)),
        ("configure", ("", "junk")),
        ("configure", ("", msgspec.msgpack.encode({"colour": 1}))),
        ("configure", ("", msgspec.msgpack.encode({"paused": 1}))),
        ("configure", ("", msgspec.msgpack.encode({"failed_limit": "many"}))),
        ("list", ("", "nonsense", "0", "10")),
    ]:
        puts = function in ("dispatch", "put")
        keys = h.keys.for_dispatch if puts else h.keys.with_fail_queue
        with refused("QUEASYBAD"):
            h.redis.execute_command("FCALL", f"queasy_test_{function}", len(keys), *keys, *args)
    assert h.dump() == before


@promise
def a_client_that_waits_again_after_a_long_time_is_still_woken(h: Harness) -> None:
    """It used to remove its own old entry with those of waiters that were gone."""
    h.join("c1")
    h.dequeue("c1", waiter="c1", waits=3)
    h.later(400)
    h.join("c1")
    h.dequeue("c1", waiter="c1", waits=3)
    assert h.call(h.commands.counts()).waiters == 1


@promise
def waiters_that_are_gone_are_removed(h: Harness) -> None:
    for n in range(20):
        h.join(f"c{n}")
        h.dequeue(f"c{n}", waiter=f"c{n}", waits=3)
        h.later(100)
    assert h.call(h.commands.counts()).waiters <= 1


@promise
def a_token_is_not_issued_again_after_the_server_lost_its_state(h: Harness) -> None:
    h.join("c1")
    h.dispatch("a")
    before = h.take_one("c1")
    h.redis.delete(*h.keys.all)
    h.later(1)
    h.join("c1")
    h.dispatch("a")
    assert h.take_one("c1").token > before.token


@promise
def a_fail_job_does_not_overwrite_a_job_with_its_id(h: Harness) -> None:
    h.call(h.commands.configure(fail_handler=True))
    h.join("c1")
    fail_queue = QueueCommands(QueueKeys(h.keys.prefix, h.keys.queue, fail=True))
    for number, client in enumerate(("c1", "~c2"), 1):  # in bulk, and one by one
        h.dispatch("a")
        run = h.take_one(client)
        h.call(fail_queue.dispatch([DispatchItem(f"a:{run.token}", b"mine")]))
        h.end(run, Fail())
        jobs, _ = h.call(fail_queue.jobs("waiting", b"", 10))
        assert [job.payload for job in jobs if job.origin is None] == [b"mine"] * number
        assert len(jobs) == 2 * number


@promise
def unreadable_settings_and_clocks_count_as_not_set(h: Harness) -> None:
    h.join("c1")
    for name in ("time", "token", "limits", "failed_limit", "broken_limit", "grace_until", "heard"):
        for value in ("junk", "nan", "inf", "-1", "1e300"):
            h.redis.hset(h.keys.base + "meta", name, value)
            h.later(1)
            try:
                assert h.dispatch("a") == "created"
                assert h.end(h.take_one("c1"), RetryLater(after=0)) == "retried"
                assert h.end(h.take_one("c1"), Fail()) == "failed"
            except redis.RedisError as error:
                raise AssertionError(f"{name}={value}") from error
            h.redis.hdel(h.keys.base + "meta", name)


@promise
def an_unreadable_held_dispatch_is_quarantined_when_the_run_ends(h: Harness) -> None:
    h.join("c1")
    h.dispatch("a")
    run = h.take_one("c1")
    h.redis.hset(h.keys.base + "blocked", "a", b"\x81\xa6run_at\xa1xpayload")
    try:
        assert {"active", "blocked"} == set(h.rows("a"))
        assert h.end(run, Finish()) == "finished"
    except redis.RedisError as error:
        raise AssertionError("the run cannot end") from error
    assert [job.id for job in h.records("broken")] == ["a"]


@promise
def a_job_that_waits_and_is_active_is_not_leased_again(h: Harness) -> None:
    h.join("c1")
    h.dispatch_many("a", "b")
    run, _ = h.take("c1", limit=2)
    h.redis.zadd(h.keys.base + "waiting", {"a": 1})
    assert h.take(limit=9) == []
    assert h.end(run, Finish()) == "finished"
    assert [job.id for job in h.records("broken")] == ["a"]


@promise
def an_error_names_the_key_of_the_wrong_type(h: Harness) -> None:
    h.redis.set(h.keys.base + "waiting", "junk")
    with refused(f"key {h.keys.base}waiting is a string, expected a zset"):
        h.dispatch()
    h.redis.delete(h.keys.base + "waiting")
