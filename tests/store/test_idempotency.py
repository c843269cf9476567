"""Numbered calls, by which the server recognises a call that is sent again."""

from contextlib import ExitStack
from typing import Any

from queasy.store.command import Command
from queasy.store.commands import QueueCommands
from queasy.store.idempotency import Callers
from queasy.store.keys import QueueKeys
from queasy.store.records import DispatchItem

COMMANDS = QueueCommands(QueueKeys("p", "q"))
DISPATCH = COMMANDS.dispatch([DispatchItem("a", b"1")])


def number_of(command: Command[Any]) -> tuple[Any, ...]:
    return command.args[:2]


def test_concurrent_calls_have_different_callers() -> None:
    callers = Callers()
    for _ in range(3):
        with ExitStack() as busy:
            calls = [busy.enter_context(callers.number(DISPATCH)) for _ in range(5)]
            assert len({number_of(call)[0] for call in calls}) == 5


def test_consecutive_calls_are_numbered_by_one_caller() -> None:
    callers, numbers = Callers(), list[Any]()
    for _ in range(3):
        with callers.number(DISPATCH) as call:
            numbers.append(number_of(call))
    assert [number for _, number in numbers] == ["1", "2", "3"]
    assert len({caller for caller, _ in numbers}) == 1


def test_the_number_of_a_failed_call_is_not_used_again() -> None:
    callers, numbers = Callers(), list[Any]()
    for _ in range(2):
        try:
            with callers.number(DISPATCH) as call:
                numbers.append(number_of(call))
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass
    (one, first), (same, second) = numbers
    assert one == same
    assert first < second


def test_commands_that_are_safe_to_repeat_have_no_number() -> None:
    counts = COMMANDS.counts()
    with Callers().number(counts) as call:
        assert call is counts
