"""The protocol of redis-work-queue, as commands."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, TypeVar

from queasy.interop.dialect import Counts, Dialect, Held, Taken, Verb
from queasy.interop.library import LIBRARY
from queasy.operation import Operation, Sleep, Undoable
from queasy.store.command import Argument, Command, WaitForItem
from queasy.store.records import decode_text, encode_id

__all__ = ["Layout", "WorkQueueDialect"]

T = TypeVar("T")
Layout = Literal["document", "published"]
"""How the lease key is called, and which completion counts as the first: as the document of the
protocol says, or as the packages do that are published."""

# One call looks at no more suspects: each of them may need a search of both lists.
RESTORE_IDS = 100


class WorkQueueDialect(Dialect):
    """One work queue, by the prefix of its keys."""

    protocol: ClassVar[str] = "redis-work-queue"
    lacks: ClassVar[Mapping[Verb, str]] = {
        "fail": "It keeps no record of failures: store the error where your results are, and then "
        "complete the item"
    }

    def __init__(self, prefix: str, layout: Layout = "document") -> None:
        super().__init__(prefix)
        self._keys = (f"{prefix}:queue", f"{prefix}:processing")
        self._layout: Layout = layout

    def put(self, id_: str, data: bytes) -> Command[bool]:
        return self._command("add", bool, encode_id(id_), data, unclear=lambda added: not added)

    def take(self, seconds: float) -> Undoable:
        # Each attempt is a session of its own, so that what it took can be found again if the
        # answer is lost.
        session = str(uuid.uuid4())

        def read(reply: list[bytes]) -> Taken:
            match reply:
                case [b"taken", id_, data]:
                    return Taken(Held(decode_text(id_), data, session))
                case [b"empty"]:
                    return Taken()
                case [b"more"]:
                    return Taken(more=True)
                case _:
                    raise ValueError(f"expected taken, empty or more, got {reply!r}")

        take = self._command(
            "take", read, self._layout, session, _ms(seconds), unclear=lambda _: True,
            about="lease",
        )  # fmt: skip
        return Undoable(take, self._undo(session), seconds)

    def _undo(self, session: str) -> Command[tuple[str, int]]:
        def read(count: int) -> tuple[str, int]:
            return ("gone" if count else "absent"), count

        return self._command("undo", read, session)

    def wait(self, seconds: float) -> WaitForItem:
        return WaitForItem.of(self._keys[0], seconds, f"lease of {self._title}")

    def keep_alive(self, held: Held, seconds: float) -> Command[bool]:
        return self._command("extend", bool, encode_id(held.id), held.token, _ms(seconds))

    def finish(self, held: Held) -> Command[bool]:
        return self._command(
            "finish", bool, self._layout, encode_id(held.id), unclear=lambda done: not done,
            about="complete",
        )  # fmt: skip

    def retry(self, held: Held) -> Command[bool]:
        return self._put_back(held, "back")

    def give_back(self, held: Held) -> Command[bool]:
        return self._put_back(held, "front")

    def _put_back(self, held: Held, place: str) -> Command[bool]:
        return self._command(
            "put_back", bool, encode_id(held.id), held.token, place, unclear=lambda done: not done
        )

    def counts(self) -> Command[Counts]:
        return self._read_only("counts", lambda reply: Counts(*reply))

    def clean(self, *, deep: bool, settle: float) -> Operation[int]:
        """Returns items that exist, have no lease and are not in the queue; how many.

        A worker or cleaner of another library needs several calls for a step, and between two of
        them its item looks abandoned. So an item must look so twice, `settle` seconds apart.
        """
        suspects = yield from self._unleased()
        if deep:
            suspects |= yield from self._stray()
        if not suspects:
            return 0
        yield Sleep(settle)
        return (yield from self._restore(list(suspects)))

    def _unleased(self) -> Operation[set[bytes]]:
        """The ids in the processing list that have no lease."""
        found: set[bytes] = set()
        offset = 0
        while True:
            seen, ids = yield self._read_only("unleased", tuple, str(offset), about="clean")
            if not seen:
                return found
            offset += seen
            found.update(ids)

    def _stray(self) -> Operation[set[bytes]]:
        """The ids that have data and no lease, and are not in the queue."""
        found: set[bytes] = set()
        cursor = b"0"
        while True:
            cursor, ids = yield self._read_only("scan", tuple, cursor, about="clean")
            found.update(ids)
            if cursor == b"0":
                break
        # What was met by the scan and is queued now needs nothing. Most items are.
        offset = 0
        while found:
            ids = yield self._read_only("queued", tuple, str(offset), about="clean")
            if not ids:
                break
            offset += len(ids)
            found.difference_update(ids)
        return found

    def _restore(self, ids: list[bytes]) -> Operation[int]:
        total = 0
        while ids:
            restored, handled = yield self._command(
                "restore", tuple, *ids[:RESTORE_IDS], about="clean"
            )
            total += restored
            ids = ids[handled:]
        return total

    def _read_only(
        self, function: str, read: Callable[[Any], T], *args: Argument, about: str = ""
    ) -> Command[T]:
        return self._command(function, read, *args, about=about, read_only=True)

    def _command(
        self,
        function: str,
        read: Callable[[Any], T],
        *args: Argument,
        unclear: Callable[[T], bool] | None = None,
        about: str = "",
        read_only: bool = False,
    ) -> Command[T]:
        return Command(
            f"workqueue_{function}",
            self._keys,
            args,
            read,
            read_only=read_only,
            unclear_when_repeated=unclear,
            library=LIBRARY,
            about=f"{about or function} of {self._title}",
        )

    @property
    def _title(self) -> str:
        return f"work queue {self.queue!r}"


def _ms(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))
