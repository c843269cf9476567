"""A command is a value: which server function, its keys and arguments, how to read the reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from queasy.errors import ProtocolError
from queasy.store.library import NATIVE, Library

__all__ = ["Argument", "Command", "WaitForItem"]

T = TypeVar("T")
Argument = str | bytes
"""Never a number: if a signal handler raises while hiredis packs one, the process crashes."""


# A struct, because one is made for each call: a frozen dataclass takes ten times as long to make.
class Command(msgspec.Struct, Generic[T], frozen=True):
    """One call of one server function. A store sends it."""

    function: str
    keys: tuple[str, ...]
    args: tuple[Argument, ...]
    read: Callable[[Any], T]
    read_only: bool = False
    needs_number: bool = False
    """Whether the server can recognise a repeated call, by a number that this one does not have
    yet: see `with_number`."""
    unclear_when_repeated: Callable[[T], bool] | None = None
    """Whether the answer to a repeated call leaves open if the first one was carried out."""
    packed: bytes = b""
    """The bytes to send, if they were made beforehand."""
    library: Library = NATIVE
    """The library that has the function."""
    about: str = ""
    """What the caller asked for, for error messages, if it is not the name of the function."""
    alone: ClassVar[bool] = False
    """Whether it waits on the server, and so needs a connection of its own."""

    def with_number(self, caller: str, number: int) -> Command[T]:
        """The same command, numbered: the server carries it out once, however often it is sent."""
        return Command(
            self.function,
            self.keys,
            (caller, str(number), *self.args[2:]),
            self.read,
            self.read_only,
            False,
            self.unclear_when_repeated,
        )

    def words(self) -> tuple[Argument, ...]:
        """The command as the server reads it."""
        keys = self.keys
        fcall = "FCALL_RO" if self.read_only else "FCALL"
        return (fcall, self.library.prefix + self.function, str(len(keys)), *keys, *self.args)

    def answer(self, reply: Any) -> T:
        """The value of a reply; raises a reply that is an error."""
        if isinstance(reply, Exception):
            raise reply
        try:
            return self.read(reply)
        except Exception as problem:
            raise ProtocolError(
                f"{self.title}: the answer cannot be read ({type(problem).__name__}: {problem}). "
                "Does the server have Queasy's library, and does no other program write to its "
                "keys? Run the audit"
            ) from problem

    @property
    def title(self) -> str:
        """What the caller asked for, and of which queue: for error messages."""
        if self.about:
            return self.about
        name = "dispatch" if self.function == "put" else self.function
        queue = self.queue
        return f"{name} of queue {queue!r}" if queue else name

    @property
    def queue(self) -> str:
        """The queue that the keys belong to; empty for a command without keys."""
        key = self.keys[0] if self.keys else ""
        return key.partition("{")[2].partition("}")[0]


class WaitForItem(Command[Any], frozen=True):
    """Waits on the server until the list has an element, at most some seconds. It takes nothing.

    Producers that use other libraries send no message when they push. BLMOVE from the right end of
    a list to the same end leaves the list as it was, so a caller that dies meanwhile loses nothing.
    """

    alone: ClassVar[bool] = True

    @classmethod
    def of(cls, key: str, seconds: float, about: str) -> WaitForItem:
        # BLMOVE takes 0 for "no limit".
        return cls("", (key,), (f"{max(seconds, 0.001):.3f}",), bool, about=about)

    def words(self) -> tuple[Argument, ...]:
        (key,) = self.keys
        return ("BLMOVE", key, key, "RIGHT", "RIGHT", *self.args)
