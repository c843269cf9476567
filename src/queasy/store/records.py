"""The server's records as values, and values as arguments. Milliseconds end here."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, cast

import msgspec

from queasy.codec import Codec
from queasy.job import NOT_CANCELLED, CancelFlag, Job, JobError, State
from queasy.options import DURATION_OPTIONS, OPTION_NAMES, JobOptions
from queasy.outcomes import Broken, Cancel, Fail, Finish, Outcome, Release, RetryLater, TimedOut
from queasy.store.command import Argument

__all__ = ["Cancelled", "Counts", "DispatchItem", "Dispatched", "Ending", "Stat", "Taken"]

DispatchStatus = Literal["created", "updated", "blocked", "unchanged"]
DEFAULT_FLAGS = "1t10"
# The record of a job that was scheduled and is nothing else: when it was dispatched, and a double.
SCHEDULED = b"\x81\xaddispatched_at\xcb"
SCHEDULED_BYTES = len(SCHEDULED) + 8


# Structs, for there is one for each job: a frozen dataclass takes four times as long to make. Both
# hold only text and bytes, so the garbage collector need not look for cycles in them.
class Dispatched(msgspec.Struct, frozen=True, gc=False):
    """What became of a dispatch."""

    id: str
    status: DispatchStatus


class DispatchItem(msgspec.Struct, frozen=True, gc=False):
    """One job as it is sent."""

    id: str
    payload: bytes
    when: str = ""
    flags: str = ""
    options: bytes = b""

    def args(self) -> tuple[Argument, ...]:
        return (encode_id(self.id), self.payload, self.when, self.flags, self.options)


class Ending(msgspec.Struct, frozen=True):
    """How one lease ends."""

    id: str
    token: int
    outcome: Outcome

    def args(self) -> tuple[Argument, ...]:
        verb, when, error = "", "", b""
        match self.outcome:
            case Finish():
                verb = "finish"
            case Release():
                verb = "release"
            case Cancel():
                verb = "cancel"
            case RetryLater(error=why, at=at, after=after):
                verb, error = "retry", pack_error(why)
                when = when_arg(at, after)
            case TimedOut(error=why):
                verb, error = "timeout", pack_error(why)
            case Fail(error=why):
                verb, error = "fail", pack_error(why)
            case Broken(error=why):
                verb, error = "broken", pack_error(why)
        return (verb, encode_id(self.id), self.token, when, error)


class Cancelled(msgspec.Struct, frozen=True):
    """A run somebody asked to cancel."""

    id: str
    token: int


@dataclass(frozen=True)
class Taken:
    """The answer to a dequeue. Its jobs are read when they are first looked at: who knows how many
    there are may have something to send before.
    """

    state: Literal["ok", "lost", "paused", "overtaken"]
    next_in: float | None
    """Seconds until there is a reason to look again."""
    settled: list[str]
    cancels: list[Cancelled]
    count: int
    """How many jobs."""
    held: int
    """How many leases there are, of one who is to wait."""
    read: Callable[[], list[Job]]

    @cached_property
    def jobs(self) -> list[Job]:
        return self.read()


@dataclass(frozen=True, slots=True)
class Counts:
    """How many jobs are in which state."""

    waiting: int
    due: int
    active: int
    blocked: int
    failed: int
    broken: int
    clients: int
    waiters: int
    paused: bool
    latency: float
    """How long, in seconds, the job in front has been due."""

    @property
    def scheduled(self) -> int:
        return self.waiting - self.due


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """One client of a queue: a worker, or a pull lease."""

    id: str
    expires_in: float
    leases: int
    worker: bytes


@dataclass(frozen=True, slots=True)
class Stat:
    """A counter: of all time (minute None), or of one minute (epoch seconds of its start)."""

    kind: str
    minute: float | None
    count: int


@dataclass(frozen=True, slots=True)
class AuditPage:
    problems: list[str]
    tallies: list[int]
    sizes: list[int]


class _Info(msgspec.Struct):
    """The `info` record of a job, as Lua packs it."""

    dispatched_at: float = 0.0
    retry_count: int = 0
    stall_count: int = 0
    timeout_count: int = 0
    options: dict[str, float] = {}
    error: dict[str, str] | None = None
    suspect: bool = False
    origin: _Origin | None = None


class _Origin(msgspec.Struct):
    id: str = ""
    token: str = "0"
    failed_at: float = 0.0
    dispatched_at: float = 0.0
    retry_count: int = 0
    stall_count: int = 0
    timeout_count: int = 0
    error: dict[str, str] | None = None


class _Note(msgspec.Struct):
    cancelled: bool = False
    at: float = 0.0


_info_decoder = msgspec.msgpack.Decoder(_Info)
_note_decoder = msgspec.msgpack.Decoder(_Note)
_encoder = msgspec.msgpack.Encoder()
_double = struct.Struct(">d")
_NO_INFO = _Info()
_NO_NOTE = _Note()
_NO_OPTIONS = JobOptions()


def pack_finishes(finishes: Sequence[Ending]) -> bytes | None:
    """Leases that are finished, as short as can be told; None where an id is no text."""
    words: list[str] = []
    for ending in finishes:
        words += (ending.id, str(ending.token))
    try:
        return _encoder.encode(words)
    except UnicodeEncodeError:
        return None


def encode_id(id_: str) -> bytes:
    # Other programs may have put ids that are no UTF-8: they come and go unchanged.
    return id_.encode("utf-8", "surrogateescape")


def decode_text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def milliseconds(seconds: float) -> str:
    return repr(round(seconds * 1000, 3))


def when_arg(at: float | None, after: float | None) -> str:
    """'' for now (or the backoff), '+ms' for later, 'ms' for a time."""
    if at is not None:
        return milliseconds(at)
    return "" if after is None else f"+{milliseconds(after)}"


def pack_options(options: JobOptions, update: bool | frozenset[str]) -> bytes:
    given = options.given()
    names = frozenset(given) if update is True else update or frozenset()
    if not given and not names:
        return b""
    return _encoder.encode({"set": _to_wire(given), "update": sorted(names)})


def pack_limits(options: JobOptions) -> bytes:
    return _encoder.encode(_to_wire(options.given()))


def pack_error(error: JobError | None) -> bytes:
    if error is None:
        return b""
    fields = {
        "type": error.type,
        "message": error.message,
        "kind": error.kind,
        "traceback": error.traceback,
    }
    return _encoder.encode({name: value for name, value in fields.items() if value})


def _to_wire(given: dict[str, float]) -> dict[str, float]:
    return {
        name: value * 1000 if name in DURATION_OPTIONS else value for name, value in given.items()
    }


def _read_options(wire: dict[str, float], limits: JobOptions) -> JobOptions:
    """What a job asked for; the rest as in `limits`."""
    if not wire:
        return limits
    known: dict[str, Any] = {
        name: value / 1000 if name in DURATION_OPTIONS else int(value)
        for name, value in wire.items()
        if name in OPTION_NAMES
    }
    return replace(limits, **known)


def _read_error(wire: dict[str, str] | None) -> JobError | None:
    if wire is None:
        return None
    return JobError(
        type=wire.get("type", ""),
        message=wire.get("message", ""),
        kind=cast("Any", wire.get("kind", "retriable")),
        traceback=wire.get("traceback", ""),
    )


def _read_origin(
    origin: _Origin | None, queue: str, payload: bytes, codec: Codec | None
) -> Job | None:
    if origin is None:
        return None
    return Job(
        id=origin.id,
        queue=queue,
        state="failed",
        payload=payload,
        token=int(origin.token),
        retry_count=origin.retry_count,
        stall_count=origin.stall_count,
        timeout_count=origin.timeout_count,
        error=_read_error(origin.error),
        dispatched_at_epoch=origin.dispatched_at / 1000,
        ended_at_epoch=origin.failed_at / 1000,
        codec=codec,
    )


class JobReader:
    """Makes jobs of the rows the server sends, for one queue.

    With its `limits`, those just leased carry the options in force, not only their own.
    """

    def __init__(
        self, queue: str, name: str, codec: Codec | None, limits: JobOptions | None = None
    ) -> None:
        self._queue = queue
        self._name = name
        self._codec = codec
        self._limits = limits or _NO_OPTIONS

    def count(self, flat: list[bytes]) -> int:
        """How many jobs just leased are in one flat list: id, token, run_at, data, info of each."""
        count, rest = divmod(len(flat), 5)
        if rest:
            raise ValueError(f"expected five values for each job, got {len(flat)}")
        return count

    def taken(self, flat: list[bytes], client: str) -> list[Job]:
        """The jobs in it."""
        each = iter(flat)
        rows = zip(each, each, each, each, each, strict=True)
        return [self._taken(client, *row) for row in rows]

    def handed(self, message: bytes, client: str) -> Job:
        """The one in it: job:token:run_at:length of the id:length of the info:, id, info, data.
        Anything else, of whoever may publish, is a ValueError.
        """
        _, token, run_at, id_length, info_length, rest = message.split(b":", 5)
        info_at = int(id_length)
        data_at = info_at + int(info_length)
        if not 0 < info_at <= data_at <= len(rest) or int(token) < 1:
            raise ValueError("no job of the server's")
        float(run_at)
        info, payload = rest[info_at:data_at], rest[data_at:]
        return self._taken(client, rest[:info_at], token, run_at, payload, info)

    def _taken(
        self, client: str, id_: bytes, token: bytes, run_at: bytes, payload: bytes, info: bytes
    ) -> Job:
        # Most are one of these: a worker makes many, so as little as possible is done.
        scheduled = len(info) == SCHEDULED_BYTES and info.startswith(SCHEDULED)
        if not info or scheduled:
            try:
                due = put = float(run_at) / 1000
                if scheduled:
                    (milliseconds,) = _double.unpack_from(info, len(SCHEDULED))
                    put = milliseconds / 1000 or due
                return Job(
                    id=id_.decode("utf-8", "surrogateescape"), queue=self._name, state="active",
                    payload=payload, token=int(token), client=client, options=self._limits,
                    flag=CancelFlag(), run_at_epoch=due, dispatched_at_epoch=put, codec=self._codec,
                )  # fmt: skip
            except ValueError:
                pass  # what is wrong with it is said below
        return self._job(
            id_, "active", run_at, token, client, info, payload, b"", self._limits, CancelFlag()
        )

    def row(self, row: list[bytes]) -> Job:
        """A job of a list: id, state, run_at, token, client, info, data, note."""
        id_, state, run_at, token, client, info, payload, note = row
        state_name = cast("State", state.decode())
        return self._job(id_, state_name, run_at, token, decode_text(client), info, payload, note)

    def _job(
        self, id_: bytes, state: State, run_at: bytes, token: bytes, client: str,
        info_raw: bytes, payload: bytes, note_raw: bytes,
        limits: JobOptions = _NO_OPTIONS, flag: CancelFlag = NOT_CANCELLED,
    ) -> Job:  # fmt: skip
        info, note, options, origin, problem = _NO_INFO, _NO_NOTE, limits, None, None
        due, token_number = 0.0, 0
        try:
            token_number = int(token or 0)
            due = float(run_at or 0) / 1000
            info = _info_decoder.decode(info_raw) if info_raw else _NO_INFO
            note = _note_decoder.decode(note_raw) if note_raw else _NO_NOTE
            options = _read_options(info.options, limits)
            origin = _read_origin(info.origin, self._queue, payload, self._codec)
        except Exception as error:
            # Another program wrote it. One bad record, whatever is wrong with it, must not stop
            # whoever reads a page, or has leased a batch.
            problem = JobError("Unreadable", f"the job's record cannot be read: {error}", "broken")
        return Job(
            id=decode_text(id_),
            queue=self._name,
            state=state,
            payload=payload,
            token=token_number,
            client=client,
            retry_count=info.retry_count,
            stall_count=info.stall_count,
            timeout_count=info.timeout_count,
            options=options,
            error=problem or _read_error(info.error),
            readable=problem is None,
            suspect=info.suspect,
            flag=CancelFlag(on=True) if note.cancelled else flag,
            origin=origin,
            run_at_epoch=due,
            dispatched_at_epoch=info.dispatched_at / 1000 or due,
            ended_at_epoch=note.at / 1000,
            codec=self._codec,
        )
