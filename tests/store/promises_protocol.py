"""Promises about the form of calls: keys, arguments, formats."""

from typing import Any

import msgspec
import redis

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
