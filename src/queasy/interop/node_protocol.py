"""The protocol of Queasy for Node, as commands. Times are milliseconds of the caller's clock."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import msgspec

from queasy.dispatch import new_client_id
from queasy.interop.dialect import Counts, Dialect, Held, Taken, Verb
from queasy.interop.library import LIBRARY
from queasy.interop.node_library import NODE
from queasy.operation import Sleep, Undoable
from queasy.options import UpdateRunAt
from queasy.store.command import Argument, Command
from queasy.store.records import decode_text, encode_id

__all__ = ["Batch", "JobCounts", "NodeDialect", "Record", "Update"]

T = TypeVar("T")
POLL_SECONDS = 0.1
LONG_AGO_MS = "1"
RUN_AT_WORDS = {True: "true", False: "false", "if_later": "ifLater", "if_earlier": "ifEarlier"}
log = logging.getLogger("queasy")


class Update(NamedTuple):
    """What a dispatch changes of a job of the same id that waits or is blocked."""

    data: bool = True
    run_at: UpdateRunAt = True
    reset_counts: bool = True


class Record(msgspec.Struct, frozen=True):
    """A job that was dequeued, as its record says. Fields that are missing have their defaults."""

    id: str
    payload: bytes
    retry_count: int
    stall_count: int
    client_id: str
    """The client that holds it."""


class Batch(msgspec.Struct, frozen=True):
    """The answer to one dequeue."""

    jobs: list[Record]
    more: ClassVar[bool] = False

    @property
    def count(self) -> int:
        """How many jobs it took: see `Undoable`."""
        return len(self.jobs)


class JobCounts(NamedTuple):
    """How many jobs wait (due or scheduled), are blocked, and are active."""

    waiting: int
    blocked: int
    active: int


class NodeDialect(Dialect):
    """One queue of Queasy for Node, by its key: `{emails}`, or `{emails}-fail`."""

    protocol: ClassVar[str] = "Queasy for Node"
    lacks: ClassVar[Mapping[Verb, str]] = {
        "give_back": "Retry the job: that is the only way to return one, and it counts",
        "clean": "Every dequeue and every bump returns the jobs of clients that died",
    }

    def __init__(self, key: str) -> None:
        super().__init__(key)
        # The functions use keys that calls need not declare. While a cluster moves a slot, a node
        # with a part of them would run a function as if the others did not exist. So each call also
        # declares a key that never exists: then nodes answer TRYAGAIN until the move is over.
        absent = f"{key}:none"
        self._keys = (key, absent)
        self._fail_keys = (key, f"{key}-fail", absent)

    # The functions of the protocol

    def dispatch(self, id_: str, data: bytes, run_at: float, update: Update) -> Command[str]:
        flags = (_flag(update.data), RUN_AT_WORDS[update.run_at], _flag(update.reset_counts))
        return self._command("dispatch", lambda _: id_, encode_id(id_), _ms(run_at), data, *flags)

    def dequeue(self, limit: int, expires_in: float) -> Undoable:
        """Take due jobs, as a client of their own; the answer is a `Batch`.

        The client has no other jobs. So if the answer is lost, the client can be made to expire,
        and what it took returns at once.
        """
        client = new_client_id()

        def read(reply: list[Any] | None) -> Batch:
            found = [_record(one, client) for one in reply or ()]
            return Batch([one for one in found if one is not None])

        now = time.time()
        times = (_ms(now), _ms(now + expires_in))
        take = self._command("dequeue", read, client, *times, str(limit), unclear=lambda _: True)
        return Undoable(take, self._undo(client), expires_in)

    def _undo(self, client: str) -> Command[tuple[str, int]]:
        def read(was_alive: Any) -> tuple[str, int]:
            return ("gone" if was_alive else "absent"), 0

        return self._command("bump", read, client, _ms(time.time()), LONG_AGO_MS)

    def bump(self, client: str, expires_in: float) -> Command[bool]:
        now = time.time()
        return self._command("bump", bool, client, _ms(now), _ms(now + expires_in))

    def cancel(self, id_: str) -> Command[bool]:
        return self._command("cancel", bool, encode_id(id_), unclear=_not_done)

    def finish_job(self, id_: str, client: str) -> Command[bool]:
        return self._end("finish", id_, client)

    def retry_job(self, id_: str, client: str, at: float) -> Command[bool]:
        return self._end("retry", id_, client, _ms(at))

    def fail_job(self, id_: str, client: str, payload: bytes, error: Any) -> Command[bool]:
        data = fail_data(id_, payload, error)
        command = self._end("fail", id_, client, str(uuid.uuid4()), data)
        return msgspec.structs.replace(command, keys=self._fail_keys)

    def _end(self, function: str, id_: str, client: str, *more: Argument) -> Command[bool]:
        args = (encode_id(id_), client, *more, _ms(time.time()))
        return self._command(function, bool, *args, unclear=_not_done)

    def job_counts(self) -> Command[JobCounts]:
        return Command(
            "node_counts", self._keys, (), lambda reply: JobCounts(*reply), read_only=True,
            library=LIBRARY, about=f"counts of {self._title}",
        )  # fmt: skip

    # The same as verbs that every dialect has

    def put(self, id_: str, data: bytes) -> Command[bool]:
        """Add an item. The protocol does not say if there is one with this id: always True."""
        command = self.dispatch(id_, data, 0.0, Update(False, False, False))
        return cast("Command[bool]", msgspec.structs.replace(command, read=_accepted))

    def take(self, seconds: float) -> Undoable:
        step = self.dequeue(1, seconds)
        read_batch = step.command.read

        def read(reply: Any) -> Taken:
            for one in read_batch(reply).jobs:
                return Taken(Held(one.id, one.payload, one.client_id))
            return Taken()

        command = msgspec.structs.replace(step.command, read=read)
        return msgspec.structs.replace(step, command=command)

    def wait(self, seconds: float) -> Sleep:
        return Sleep(min(seconds, POLL_SECONDS))

    def keep_alive(self, held: Held, seconds: float) -> Command[bool]:
        return self.bump(held.token, seconds)

    def finish(self, held: Held) -> Command[bool]:
        return self.finish_job(held.id, held.token)

    def retry(self, held: Held) -> Command[bool]:
        return self.retry_job(held.id, held.token, time.time())

    def fail(self, held: Held, error: str) -> Command[bool]:
        return self.fail_job(held.id, held.token, held.data, {"message": error})

    def counts(self) -> Command[Counts]:
        def read(reply: list[int]) -> Counts:
            waiting, blocked, active = reply
            return Counts(waiting + blocked, active)

        return cast("Command[Counts]", msgspec.structs.replace(self.job_counts(), read=read))

    def _command(
        self,
        function: str,
        read: Callable[[Any], T],
        *args: Argument,
        unclear: Callable[[T], bool] | None = None,
    ) -> Command[T]:
        return Command(
            function, self._keys, args, read, unclear_when_repeated=unclear, library=NODE,
            about=f"{function} of {self._title}",
        )  # fmt: skip

    @property
    def _title(self) -> str:
        return f"Node queue {self.queue!r}"


def fail_data(id_: str, payload: bytes, error: Any) -> bytes:
    """The data of a job in a fail queue: a JSON array of the id, the data and the error.

    If the data is not JSON, it is there as text.
    """
    try:
        msgspec.json.decode(payload)
        data: Any = msgspec.Raw(payload)
    except ValueError:
        data = payload.decode(errors="replace")
    readable_id = encode_id(id_).decode(errors="replace")
    return msgspec.json.encode([readable_id, data, error])


def _record(reply: Any, client: str) -> Record | None:
    """A job as the server sends it: as a map, or as a list of fields and values.

    A job without an id cannot be ended, so it is left to expire.
    """
    fields: dict[bytes, Any]
    if isinstance(reply, dict):
        fields = cast("dict[bytes, Any]", reply)
    else:
        fields = dict(zip(reply[::2], reply[1::2], strict=True))
    if b"id" not in fields:
        log.warning("dequeued a job without an id; its fields are %s", sorted(fields))
        return None
    return Record(
        decode_text(fields[b"id"]),
        fields.get(b"data", b"null"),
        _count(fields.get(b"retry_count")),
        _count(fields.get(b"stall_count")),
        client,
    )


def _count(text: bytes | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0


def _accepted(_: Any) -> bool:
    return True


def _not_done(done: bool) -> bool:
    return not done


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _ms(seconds: float) -> str:
    return str(round(seconds * 1000))
