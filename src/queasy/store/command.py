"""A command is a value: which function, on what, and how to read the reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

__all__ = ["Argument", "Command"]

T = TypeVar("T")
Argument = str | bytes | int | float


# A struct, for there is one for each call: a frozen dataclass takes ten times as long to make.
class Command(msgspec.Struct, Generic[T], frozen=True):
    """One call of one server function. Runners send it; nothing else does."""

    function: str
    keys: tuple[str, ...]
    args: tuple[Argument, ...]
    read: Callable[[Any], T]
    read_only: bool = False
    call_keys: tuple[str, ...] = ()
    """Keys by which the server knows a call that is sent again, if it must: see `with_number`."""
    unclear_when_repeated: Callable[[T], bool] | None = None
    """Whether the answer to a repeat leaves open if the first try had happened."""
    packed: bytes = b""
    """What is sent, if it was made beforehand."""

    def with_number(self, caller: str, number: int) -> Command[T]:
        """One call of a caller, however often it is sent."""
        return Command(
            self.function,
            self.keys + self.call_keys,
            (*self.args, caller, number),
            self.read,
            self.read_only,
            (),
            self.unclear_when_repeated,
        )
