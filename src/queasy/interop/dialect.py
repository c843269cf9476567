"""What every dialect offers: the verbs of a foreign protocol, as commands and operations.

A dialect has no I/O and knows no client. The pull side (`verbs.py`, `taking.py`) runs its verbs;
a worker that serves foreign queues needs nothing else of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple, get_args

import msgspec

from queasy.errors import InvalidOption
from queasy.operation import Operation, Sleep, Undoable
from queasy.store.command import Command, WaitForItem

__all__ = ["VERBS", "Counts", "Dialect", "Held", "Taken", "Verb"]

Verb = Literal[
    "put", "take", "keep_alive", "finish", "retry", "fail", "give_back", "clean", "counts"
]
VERBS: tuple[Verb, ...] = get_args(Verb)


class Held(msgspec.Struct, frozen=True):
    """An item that was taken."""

    id: str
    """What the protocol identifies it by. Where it has no ids, that is the payload."""
    data: bytes
    token: str
    """Which taking of it this is, where the protocol can say so."""


class Taken(msgspec.Struct, frozen=True):
    """The answer to one attempt to take an item."""

    held: Held | None = None
    more: bool = False
    """Whether to try again at once: the call has dropped entries, and there may be others."""

    @property
    def count(self) -> int:
        """How many items it took: see `Undoable`."""
        return int(self.held is not None)


class Counts(NamedTuple):
    """How many items wait, and how many are being worked on or wait to be cleaned."""

    waiting: int
    active: int


class Dialect:
    """One queue in one foreign protocol. A verb that the protocol does not have is refused."""

    protocol: ClassVar[str]
    """How people call the protocol."""
    lacks: ClassVar[Mapping[Verb, str]] = {}
    """The verbs that the protocol does not have, and what to do instead of each."""

    def __init__(self, queue: str) -> None:
        self.queue = queue

    @classmethod
    def has(cls, verb: Verb) -> bool:
        """Whether the protocol has a verb."""
        return verb not in cls.lacks

    def put(self, id_: str, data: bytes) -> Command[bool]:
        """Add an item; False if there is one with this id."""
        raise self._refused("put")

    def take(self, seconds: float) -> Undoable:
        """One attempt to take the next item; the answer is a `Taken`."""
        raise self._refused("take")

    def wait(self, seconds: float) -> WaitForItem | Sleep:
        """Wait until there may be an item to take."""
        raise self._refused("take")

    def keep_alive(self, held: Held, seconds: float) -> Command[bool]:
        """Hold an item for so many seconds from now; False if it is not held any more."""
        raise self._refused("keep_alive")

    def finish(self, held: Held) -> Command[bool]:
        """End an item as done. True for exactly one caller."""
        raise self._refused("finish")

    def retry(self, held: Held) -> Command[bool]:
        """Put an item back, to run after those that wait; False if it is not held any more."""
        raise self._refused("retry")

    def fail(self, held: Held, error: str) -> Command[bool]:
        """Give an item up, and record why; False if it is not held any more."""
        raise self._refused("fail")

    def give_back(self, held: Held) -> Command[bool]:
        """Put an item that was not begun back to the front; False if it is not held any more."""
        raise self._refused("give_back")

    def clean(self, *, deep: bool, settle: float) -> Operation[int]:
        """Return the items of workers that died; how many. See `workqueue.Queue.light_clean`."""
        raise self._refused("clean")

    def counts(self) -> Command[Counts]:
        """How many items there are."""
        raise self._refused("counts")

    def _refused(self, verb: Verb) -> InvalidOption:
        words = verb.replace("_", " ")
        return InvalidOption(
            f"{self.protocol} queue {self.queue!r}: expected something that this protocol has, got "
            f"{words!r}. {self.lacks.get(verb, 'It has nothing of this kind')}"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.queue}>"
