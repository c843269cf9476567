"""The build of the library for tests: each of its functions takes the time of the call."""

from pathlib import Path
from typing import Any

from queasy.store import library
from queasy.store.command import Command
from queasy.store.records import milliseconds

__all__ = ["PREFIX", "timed_source", "timed_words"]

PREFIX = "queasy_test_"
CLOCK = Path(__file__).parent / "logical_clock.lua"


def timed_source() -> str:
    """The text of the build. It has a name of its own: a server can have both builds."""
    shebang, _, text = library.source(CLOCK).partition("\n")
    assert shebang.endswith(library.LIBRARY)
    return f"#!lua name=queasy_test\n{text}"


def timed_words(command: Command[Any], now: float | None) -> tuple[Any, ...]:
    """A command for this build, at a logical time; None for the server's time."""
    verb = "FCALL_RO" if command.read_only else "FCALL"
    time = "" if now is None else milliseconds(now)
    keys = command.keys
    return (verb, PREFIX + command.function, len(keys), *keys, time, *command.args)
