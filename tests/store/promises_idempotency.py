"""Promises about repeated calls: each is carried out once."""

import itertools
from typing import Any

from queasy.outcomes import Fail, Finish
from queasy.store.records import Cancellation, DispatchItem
from tests.store.harness import Harness, problems_of, refused
from tests.store.promise import promise


def _call(h: Harness, caller: str, number: int, *ids: str, payload: bytes = b"1") -> list[str]:
    items = [DispatchItem(id_, payload) for id_ in ids or ("a",)]
    command = h.commands.dispatch(items).with_number(caller, number)
    return [done.status for done in h.call(command)]


def _is_refused(h: Harness, caller: str, number: int, *ids: str) -> None:
    before = h.dump()
    with refused("expected a number higher than"):
        _call(h, caller, number, *ids)
    assert h.dump() == before


def _callers(h: Harness) -> set[Any]:
    return set(h.dump().get(":callers", {}))


@promise
def a_repeated_dispatch_of_a_finished_job_does_not_run_it_again(h: Harness) -> None:
    assert _call(h, "p", 1) == ["created"]
    h.end(h.take_one(), Finish())
    h.later(1)
    assert _call(h, "p", 1) == ["created"]
    assert h.take() == []
    assert h.left() == set()


@promise
def a_repeated_dispatch_gets_the_same_reply_and_changes_nothing(h: Harness) -> None:
    h.dispatch_many("active", "there")
    assert [job.id for job in h.take()] == ["active"]
    ids = ("new", "new", "active", "there")
    answer = _call(h, "p", 1, *ids)
    assert answer == ["created", "updated", "blocked", "updated"]
    before = h.dump()
    h.later(1)
    assert _call(h, "p", 1, *ids) == answer
    assert h.dump() == before, "expected no change, not even of the counters"


@promise
def the_next_dispatch_of_a_caller_is_carried_out(h: Harness) -> None:
    _call(h, "p", 1, payload=b"1")
    assert _call(h, "p", 2, payload=b"2") == ["updated"]
    h.end(h.take_one(), Finish())
    assert _call(h, "p", 9) == ["created"], "the numbers between belong to other queues"


@promise
def a_dispatch_older_than_the_last_of_its_caller_is_refused(h: Harness) -> None:
    _call(h, "p", 9)
    h.end(h.take_one(), Finish())
    _call(h, "p", 10, "b", "c")
    _is_refused(h, "p", 9)
    _is_refused(h, "p", 10, "b")  # the same number, another call
    assert h.waiting() == ["b", "c"]


@promise
def callers_with_the_same_numbers_are_kept_apart(h: Harness) -> None:
    assert _call(h, "p", 7, "a") == ["created"]
    assert _call(h, "q", 7, "b") == ["created"]
    assert _call(h, "p", 7, "a") == ["created"]
    assert h.waiting() == ["a", "b"]


@promise
def callers_that_are_gone_are_forgotten(h: Harness) -> None:
    for number in range(150):
        _call(h, f"c{number}", 1)
    h.later(601)
    _call(h, "p", 1)
    assert len(_callers(h)) == 51, "expected a hundred to be removed at a time"
    h.later(61)
    _call(h, "p", 2)
    assert _callers(h) == {b"p"}
    h.audit()


@promise
def a_caller_that_keeps_calling_is_not_forgotten(h: Harness) -> None:
    for number in range(1, 20):
        _call(h, "p", number)
        h.later(59)
    for number in range(20):
        _call(h, f"c{number}", 1)
    assert b"p" in _callers(h)
    _is_refused(h, "p", 18)


@promise
def a_call_is_remembered_for_nine_minutes(h: Harness) -> None:
    _call(h, "p", 1)
    h.later(59)
    _call(h, "p", 2, "b")
    h.later(9 * 60)
    _call(h, "q", 1, "c")
    h.end(h.take_one(), Finish())
    h.end(h.take_one(), Finish())
    assert _call(h, "p", 2, "b") == ["created"]
    assert h.waiting() == ["c"]


@promise
def a_client_without_call_numbers_is_served_as_before(h: Harness) -> None:
    _call(h, "p", 1)
    assert h.dispatch(payload=b"2") == "updated"
    assert h.dispatch(payload=b"2", flags="0f00") == "unchanged"


@promise
def an_invalid_call_number_is_refused(h: Harness) -> None:
    keys, job = h.keys.for_dispatch, ("b", "x", "", "", "")
    before = h.dump()
    for args in [
        (), ("p",), ("p", 1), job, ("no:colons", 1, *job), ("p", "1.5", *job), ("p", -1, *job),
        ("p", "", *job), ("p", 1, "b", "x", "nan", "", ""),
    ]:  # fmt: skip
        with refused("QUEASYBAD"):
            h.redis.fcall("queasy_test_dispatch", len(keys), *keys, "", *args)
    assert h.dump() == before


@promise
def a_repeated_cancel_does_not_remove_a_job_dispatched_since(h: Harness) -> None:
    h.dispatch("a")
    cancel = h.commands.cancel(["a", "b"]).with_number("p", 1)
    both = [Cancellation("a", "cancelled"), Cancellation("b", "absent")]
    assert h.call(cancel) == both
    h.dispatch_many("a", "b")
    assert h.call(cancel) == both
    assert h.waiting() == ["a", "b"]
    run = h.take_one()
    stop = h.commands.cancel(["a"], running=True).with_number("p", 2)
    assert h.call(stop) == [Cancellation("a", "requested")]
    h.end(run, Finish())
    h.dispatch("a")
    assert [h.take_one().id, h.take_one().id] == ["b", "a"]
    assert h.call(stop) == [Cancellation("a", "requested")]
    assert not h.row("active").cancelled


@promise
def a_repeated_requeue_does_not_run_a_job_that_failed_since(h: Harness) -> None:
    h.dispatch("a")
    h.end(h.take_one(), Fail())
    requeue = h.commands.requeue("failed", ["a", "b"]).with_number("p", 1)
    assert h.call(requeue) == ["requeued", "absent"]
    h.end(h.take_one(), Fail())
    assert h.call(requeue) == ["requeued", "absent"]
    assert (h.waiting(), [job.id for job in h.records()]) == ([], ["a"])


@promise
def a_stored_call_that_cannot_be_read_counts_as_absent(h: Harness) -> None:
    _call(h, "p", 5)
    h.redis.hset(h.keys.base + "calls", "p", b"junk")
    h.end(h.take_one(), Finish())
    assert _call(h, "p", 1) == ["created"]
    h.end(h.take_one(), Finish())
    assert _call(h, "p", 1) == ["created"]
    assert h.waiting() == []


@promise
def the_audit_reports_callers_without_a_call_and_calls_without_a_caller(h: Harness) -> None:
    _call(h, "p", 1)
    h.redis.hdel(h.keys.base + "calls", "p")
    found = problems_of(h.redis, h.keys)
    assert any("the last call of caller p cannot be read" in text for text in found), found
    _call(h, "p", 2)
    h.redis.delete(h.keys.base + "callers")
    assert problems_of(h.redis, h.keys) == ["q: calls: 0 entries have an owner, 1 exist"]
    h.redis.delete(h.keys.base + "calls")


@promise
def a_late_copy_of_a_dequeue_takes_no_job(h: Harness) -> None:
    """Bug: it took another job, which no client held, and which stalled."""
    for prepare in (lambda: h.dispatch("a"), lambda: None, lambda: _pause(h)):
        prepare()
        number = next(_numbers)
        take = h.commands.dequeue(f"~x{number}", lease=30, limit=1).with_number("p", number)
        jobs = h.call(take).jobs
        assert [job.id for job in h.call(take).jobs] == [job.id for job in jobs]
        for job in jobs:
            assert h.end(job, Finish()) == "finished"
        h.call(h.commands.configure(paused=False))
        h.dispatch("b")
        late = h.call(take)
        assert (late.state, late.jobs) == ("overtaken", [])
        earlier = h.commands.dequeue("~y", lease=30, limit=1).with_number("p", number - 1)
        assert h.call(earlier).jobs == []
        assert h.cancel("b") == ["cancelled"]
    h.dispatch("b")
    following = h.commands.dequeue("~z", lease=30, limit=1).with_number("p", next(_numbers))
    assert [job.id for job in h.call(following).jobs] == ["b"]


_numbers = itertools.count(10)


def _pause(h: Harness) -> None:
    h.dispatch("b")
    h.call(h.commands.configure(paused=True))
