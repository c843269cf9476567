"""Promises about the record of a waiter: it says what the waiter accepts, and ends with it."""

from typing import Any

import msgspec

from queasy.outcomes import Fail, Release
from tests.store.harness import Harness, problems_of
from tests.store.promise import promise
from tests.store.waiters import Waiter


def _sleep(h: Harness, client: str = "c1", *, seconds: float = 3, **more: Any) -> None:
    """Becomes a waiter that takes hand-offs, unless `more` says otherwise."""
    more = {"accepts_hand_off": True} | more
    taken = h.dequeue(client, lease=5, waiter=client, waits=seconds, **more)
    assert taken.jobs == []


def _records(h: Harness) -> dict[str, Any]:
    raw = h.redis.hgetall(h.keys.base + "waiter_info")
    return {name.decode(): msgspec.msgpack.decode(record) for name, record in raw.items()}


def _is_no_waiter(h: Harness, client: str = "c1") -> bool:
    """Whether neither an entry nor a record of the client is left."""
    entry = h.redis.zscore(h.keys.base + "waiters", client)
    return entry is None and client not in _records(h)


@promise
def the_record_of_a_waiter_says_what_it_accepts(h: Harness) -> None:
    h.join("c1", "c2")
    _sleep(h, beside=3)
    _sleep(h, "c2", beside=1, accepts_hand_off=False)
    assert _records(h) == {"c1": {"beside": 3, "hand": True}, "c2": {"beside": 1}}


@promise
def the_entry_of_a_waiter_is_only_a_time(h: Harness) -> None:
    """Whatever it accepts, it is to poll at the same time."""
    h.later(0.000_9)
    for client, beside, hand in (("c1", 0, False), ("c2", 0, True), ("c3", 1, False)):
        h.join(client)
        _sleep(h, client, beside=beside, accepts_hand_off=hand)
    entries = h.redis.zrange(h.keys.base + "waiters", 0, -1, withscores=True)
    assert {at for _, at in entries} == {(h.time * 1000 + 3000) // 1}


@promise
def a_waiter_that_has_no_other_jobs_any_more_is_recorded_as_such(h: Harness) -> None:
    h.join("c1")
    _sleep(h, beside=3)
    _sleep(h, beside=2)
    assert _records(h) == {"c1": {"beside": 2, "hand": True}}
    _sleep(h)
    assert _records(h) == {"c1": {"hand": True}}
    _sleep(h, accepts_hand_off=False)
    assert _records(h) == {}


@promise
def a_call_with_a_limit_of_0_records_what_the_waiter_accepts(h: Harness) -> None:
    h.join("c1")
    _sleep(h, limit=0, beside=3)
    assert _records(h) == {"c1": {"beside": 3, "hand": True}}


@promise
def the_record_of_a_waiter_that_is_woken_is_removed(h: Harness) -> None:
    waiter = Waiter(h, "c1", host=1)
    _sleep(h, waiter.name, beside=1)
    h.dispatch_many("a", "b")
    assert waiter.heard() == b"wake"
    assert _is_no_waiter(h, waiter.name)


@promise
def the_record_of_a_waiter_that_hears_no_wake_up_is_removed(h: Harness) -> None:
    h.join("c1")
    _sleep(h)
    h.dispatch()
    assert _is_no_waiter(h)


@promise
def the_record_of_a_waiter_that_receives_a_job_is_removed(h: Harness) -> None:
    waiter = Waiter(h, "c1", host=1)
    _sleep(h, waiter.name)
    h.dispatch()
    assert waiter.heard().startswith(b"job:")
    assert _is_no_waiter(h, waiter.name)


@promise
def the_record_of_a_waiter_that_cannot_be_asked_to_poll_is_removed(h: Harness) -> None:
    h.join("c1")
    _sleep(h, seconds=8)
    h.dispatch(after=1)
    assert _is_no_waiter(h)


@promise
def the_record_of_a_client_that_takes_a_job_is_removed(h: Harness) -> None:
    h.dispatch(after=1)
    h.join("c1")
    _sleep(h)
    h.later(1)
    assert h.take("c1", waiter="c1", waits=3)
    assert _is_no_waiter(h)


@promise
def the_record_of_a_client_that_stops_waiting_is_removed(h: Harness) -> None:
    h.join("c1")
    _sleep(h)
    h.dequeue(limit=0, waiter="c1")
    assert _is_no_waiter(h)


@promise
def the_record_of_an_evicted_waiter_is_removed(h: Harness) -> None:
    h.join("c1")
    _sleep(h)
    h.call(h.commands.evict("c1"))
    assert _is_no_waiter(h)


@promise
def the_record_of_a_waiter_that_is_swept_is_removed(h: Harness) -> None:
    h.join("c1")
    _sleep(h)
    h.later(3 + 5)
    h.sweep()
    assert _is_no_waiter(h)


@promise
def the_record_of_a_waiter_that_is_gone_is_removed(h: Harness) -> None:
    """A pull client that ended without a word: no sweep removes it."""
    h.join("c1")
    _sleep(h, "~c2", beside=1)
    _sleep(h)
    h.later(70)
    h.join("c1")
    _sleep(h)
    assert _is_no_waiter(h, "~c2")


@promise
def a_destroyed_queue_has_no_record_of_a_waiter(h: Harness) -> None:
    h.join("c1")
    _sleep(h)
    h.redis.zrem(h.keys.base + "waiters", "c1")
    h.call(h.commands.destroy(force=True))
    assert _records(h) == {}


@promise
def the_records_of_the_waiters_of_a_fail_queue_are_its_own(h: Harness) -> None:
    """A job that is given up wakes a waiter of the fail queue."""
    h.call(h.commands.configure(fail_handler=True))
    h.call(h.fail_commands.register("f1", 30))
    h.join("c1")
    dequeue = h.fail_commands.dequeue
    h.call(dequeue("f1", lease=5, limit=1, waiter="f1", waits=3, accepts_hand_off=True))
    h.dispatch()
    job = h.take_one("c1", lease=5)
    h.redis.hset(h.keys.base + "waiter_info", "f1", b"not of the fail queue")
    assert h.end(job, Fail()) == "failed"
    assert h.redis.hgetall(h.fail_keys.base + "waiter_info") == {}
    assert h.redis.hdel(h.keys.base + "waiter_info", "f1") == 1


@promise
def a_waiter_whose_record_cannot_be_read_is_woken_like_one_without(h: Harness) -> None:
    """Another program wrote it."""
    waiter = Waiter(h, "c1", host=1)
    for record in (b"\xc1", b"", msgspec.msgpack.encode({"beside": "x", "hand": True})):
        _sleep(h, waiter.name)
        h.redis.hset(h.keys.base + "waiter_info", waiter.name, record)
        h.dispatch()
        assert waiter.heard() == b"wake"
        assert h.end(h.take_one(waiter.name), Release()) == "released"
        assert h.cancel("a") == ["cancelled"]


@promise
def a_field_of_a_later_revision_leaves_the_others_as_they_are(h: Harness) -> None:
    waiter = Waiter(h, "c1", host=1)
    _sleep(h, waiter.name)
    record = msgspec.msgpack.encode({"hand": True, "room": 5})
    h.redis.hset(h.keys.base + "waiter_info", waiter.name, record)
    h.dispatch()
    assert waiter.heard().startswith(b"job:")


@promise
def the_audit_reports_waiters_that_break_the_invariants(h: Harness) -> None:
    h.join("c1")
    _sleep(h)
    assert problems_of(h.redis, h.keys) == []
    records, entries = h.keys.base + "waiter_info", h.keys.base + "waiters"
    h.redis.hset(records, "c1", b"\xc1")
    assert problems_of(h.redis, h.keys) == ["q: the record of waiter c1 cannot be read"]
    h.redis.hdel(records, "c1")
    h.redis.zincrby(entries, 0.5, "c1")
    what = "q: the time of waiter c1 is not in whole milliseconds"
    assert problems_of(h.redis, h.keys) == [what]
    h.redis.zrem(entries, "c1")
    h.redis.hset(records, "c1", b"\x80")
    what = "q: waiter_info: 0 entries have an owner, 1 exist"
    assert problems_of(h.redis, h.keys) == [what]
    h.redis.hdel(records, "c1")
