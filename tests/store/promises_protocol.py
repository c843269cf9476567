"""Promises about the form of calls: keys, arguments, formats."""

from typing import Any

import msgspec
import redis

from queasy.outcomes import Fail
from queasy.store.command import Command
from queasy.store.keys import NAMES
from queasy.store.records import DispatchItem
from tests.store.harness import Harness, refused
from tests.store.promise import promise


def _calls(h: Harness) -> list[Command[Any]]:
    commands = h.commands
    return [
        commands.dispatch([DispatchItem("b", b"1"), DispatchItem("c", b"1")]),
        commands.dispatch([DispatchItem("d", b"1", when="+1000")]),
        commands.cancel(["b"]),
        commands.register("c1", 30),
        commands.dequeue("c1", lease=30, limit=1),
        commands.bump(["c1"], 30),
        commands.counts(),
    ]


@promise
def a_call_with_too_few_keys_is_refused(h: Harness) -> None:
    h.dispatch()
    before = h.dump()
    for command in _calls(h):
        needed = min(len(command.keys), len(NAMES))
        with refused("QUEASYBAD"):
            h.call(msgspec.structs.replace(command, keys=command.keys[: needed - 1]))
    assert h.dump() == before


@promise
def a_call_may_name_more_keys_than_it_needs(h: Harness) -> None:
    h.join("c1")
    for command in _calls(h):
        try:
            h.call(msgspec.structs.replace(command, keys=h.keys.all + h.fail_keys.all))
        except redis.RedisError as error:
            raise AssertionError(command.function) from error
    assert [job.id for job in h.call(h.commands.jobs("active", b"", 9))[0]] == ["c"]


@promise
def a_call_of_a_revision_before_8_is_refused(h: Harness) -> None:
    """Such a call begins with an empty argument. Nothing is written, and the error says why."""
    h.dispatch()
    before = h.dump()
    for command in _calls(h):
        args = command.args[2:] if command.args[:2] == ("", "") else command.args
        with refused("before 8: update its client"):
            h.call(msgspec.structs.replace(command, args=("", *args)))
    assert h.dump() == before


def _packed(**fields: Any) -> bytes:
    return msgspec.msgpack.encode(fields)


@promise
def what_the_library_does_not_know_is_refused_before_anything_is_written(h: Harness) -> None:
    """A later revision may give a meaning to it; to ignore it would not be what was asked for."""
    h.join("c1")
    h.dispatch()
    token = h.take_one("c1").token
    h.dispatch("b")
    before = h.dump()
    job, dequeue = ("", "", "n", b"1", "", ""), ("c1", "1000", "1", "", "", "0", "0")
    for function, args in [
        ("dispatch", (*job, _packed(set={"priority": 1}, update=[]))),
        ("dispatch", (*job, _packed(set={}, update=["priority"]))),
        ("dispatch", (*job, _packed(set={}, update=[], lane="x"))),
        ("dispatch", ("", "", "n", b"1", "", "1t101", "")),
        ("cancel", ("", "", "2", "b")),
        ("settle", ("finish", "a", token, _packed(result=b"1"))),
        ("settle", ("fail", "a", token, _packed(error={"type": "E"}, dispatch=[]))),
        ("settle", ("retry", "a", token, _packed(when="+1") + b"\x01")),
        ("settle", ("retry", "a", token, _packed(when=5))),
        ("settle", ("park", "a", token, "")),
        ("dequeue", (*dequeue, "pass steal", "")),
        ("dequeue", (*dequeue, "", "", "more")),
        ("dequeue", (*dequeue, "")),
        ("configure", (_packed(limits={"priority": 1}),)),
        ("configure", (_packed(colour="red"),)),
        ("register", ("c2", "1000", "", "more")),
        ("extend", ("a", token, "1000", "more")),
        ("evict", ("c1", "park")),
        ("sweep", ("more",)),
        ("trim", ("failed", "0", "more")),
        ("counts", ("more",)),
    ]:
        command = Command(function, h.keys.with_fail_queue, args, lambda reply: reply)
        with refused("QUEASYBAD"):
            h.call(command)
    assert h.dump() == before


@promise
def a_queue_in_a_later_format_is_refused(h: Harness) -> None:
    h.dispatch()
    h.redis.hset(h.keys.base + "meta", "format", "2")
    before = h.dump()
    for command in _calls(h):
        with refused("QUEASYNEW"):
            h.call(command)
    assert h.dump() == before
    h.redis.hset(h.keys.base + "meta", "format", "1")
    assert h.take_one().id == "a"


@promise
def a_job_is_not_given_up_into_a_fail_queue_in_a_later_format(h: Harness) -> None:
    h.call(h.commands.configure(fail_handler=True))
    h.join("c1")
    h.dispatch()
    run = h.take_one("c1")
    h.call(h.fail_commands.configure(paused=False))
    h.redis.hset(h.fail_keys.base + "meta", "format", "2")
    before = h.dump()
    with refused("QUEASYNEW"):
        h.end(run, Fail())
    assert h.dump() == before
    h.redis.hset(h.fail_keys.base + "meta", "format", "1")


@promise
def the_first_write_to_a_queue_records_its_format(h: Harness) -> None:
    h.dispatch()
    assert h.redis.hget(h.keys.base + "meta", "format") == b"1"
