"""The values that commands take and return, and how they are written for the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import msgspec

from queasy.job import Job, JobError
from queasy.options import (
    DURATION_OPTIONS,
    MAX_COUNT,
    MAX_DURATION_SECONDS,
    UNLIMITED,
    JobOptions,
    Unlimited,
)
from queasy.outcomes import (
    Broken,
    Cancel,
    Died,
    Fail,
    Finish,
    Outcome,
    Release,
    RetryLater,
    TimedOut,
)
from queasy.store.command import Argument

__all__ = [
    "Bumped",
    "CancelStatus",
    "Cancellation",
    "Cancelled",
    "Counts",
    "DispatchItem",
    "Dispatched",
    "Ending",
    "LeaseKey",
    "MadeDue",
    "Stat",
    "Taken",
]

DispatchStatus = Literal["created", "updated", "blocked", "unchanged", "exists"]
MadeDueStatus = Literal["due", "already_due", "active", "absent"]
CancelStatus = Literal["cancelled", "requested", "active", "absent"]
LeaseKey = tuple[str, int]
"""A job's id, and the token of its lease."""
DEFAULT_FLAGS = "1t10"


# Structs, because one is made for each job: a frozen dataclass takes four times as long to make.
# Both hold only text and bytes, so the garbage collector need not look for cycles in them.
class Dispatched(msgspec.Struct, frozen=True, gc=False):
    """The result of a dispatch: the job's id, and whether it was created, updated, blocked (its id
    is running), unchanged, or skipped because it exists.
    """

    id: str
    """The job's id, as given or as generated."""
    status: DispatchStatus


class MadeDue(msgspec.Struct, frozen=True, gc=False):
    """The result of `run_now`: true if the job waits and is due."""

    id: str
    """The job's id."""
    status: MadeDueStatus
    """`due`: it waited for a later time, and is due now. `already_due`, `active`, `absent`: what it
    was; nothing was changed."""

    def __bool__(self) -> bool:
        return self.status in ("due", "already_due")


class Cancellation(msgspec.Struct, frozen=True):
    """The result of a cancel: the job's id, and what became of it.

    It is true if something was cancelled or will be: for `cancelled` and `requested`.
    """

    id: str
    """The id that was given."""
    status: CancelStatus
    """cancelled: a waiting job, or a blocked dispatch, was removed. requested: its run was asked to
    end. active: it runs, and was not asked to end. absent: there is nothing to cancel."""

    def __bool__(self) -> bool:
        return self.status in ("cancelled", "requested")


class DispatchItem(msgspec.Struct, frozen=True, gc=False):
    """One job to dispatch, as the server reads it."""

    id: str
    payload: bytes
    when: str = ""
    flags: str = ""
    options: bytes = b""

    def args(self) -> tuple[Argument, ...]:
        return (encode_id(self.id), self.payload, self.when, self.flags, self.options)


class Ending(msgspec.Struct, frozen=True):
    """The outcome reported for one lease."""

    id: str
    token: int
    outcome: Outcome
    payload_bytes: int = 0
    """How large the payload is that the server may have to copy; 0 for a job that finished."""

    def args(self) -> tuple[Argument, ...]:
        if isinstance(self.outcome, Finish):  # most of them
            return ("finish", encode_id(self.id), str(self.token), b"")
        verb, when, error = "", "", None
        match self.outcome:
            case RetryLater(error=why, at=at, after=after):
                verb, error = "retry", why
                when = when_arg(at, after)
            case Fail(error=why):
                verb, error = "fail", why
            case TimedOut(error=why):
                verb, error = "timeout", why
            case Release():
                verb = "release"
            case Cancel():
                verb = "cancel"
            case Broken(error=why):
                verb, error = "broken", why
            case Died(started=started):
                return ("death", encode_id(self.id), str(self.token), pack_death(started))
        return (verb, encode_id(self.id), str(self.token), pack_ending(when, error))


class Cancelled(msgspec.Struct, frozen=True):
    """A run to cancel, on request."""

    id: str
    token: int


@dataclass(frozen=True, slots=True)
class Bumped:
    """The answer to a bump."""

    clients: list[tuple[str, list[Cancelled]]]
    """For each client ok, lost or destroyed (its queue was), and the runs to cancel."""
    next_in: float | None
    """Seconds until a lease of any client may have expired, and a call is needed; None if no job is
    leased, 0 if dead clients are left."""


@dataclass(frozen=True)
class Taken:
    """The answer to a dequeue. Its jobs are decoded at the first access: a worker needs only their
    `count` to send its next call, and does that first.
    """

    state: Literal["ok", "lost", "destroyed", "paused", "overtaken"]
    """What the server says about the client or the queue. After `destroyed` the client has lost its
    jobs as after `lost`, but may register again."""
    next_in: float | None
    """For a client that waits: the seconds after which the server expects it to dequeue. Otherwise
    the seconds until the next job is due or a lease of a job expires; None if there is neither."""
    settled: list[str]
    cancels: list[Cancelled]
    count: int
    """How many jobs were taken."""
    held: int
    """How many leases the client holds; only counted if it waits for a wake-up."""
    read: Callable[[], list[Job]]
    skipped: int | None = None
    """How many companions a suspect that was due and skipped may have: the most of any. None if
    none was skipped."""

    @cached_property
    def jobs(self) -> list[Job]:
        return self.read()


@dataclass(frozen=True, slots=True)
class Counts:
    """How many jobs are in each state."""

    waiting: int
    """Jobs that are due or scheduled."""
    due: int
    """Waiting jobs whose time has come."""
    active: int
    """Jobs that are leased."""
    blocked: int
    """Dispatches that are held until the active run of the same id ends."""
    failed: int
    """Entries of the failed record."""
    broken: int
    """Entries of the broken record."""
    clients: int
    """Workers and pull leases; a dead one counts until it is swept."""
    waiters: int
    """Clients that wait for a job."""
    paused: bool
    """Whether `pause` was called, and not `resume`."""
    latency: float
    """Seconds since the first waiting job was due; 0 if none is due."""

    @property
    def scheduled(self) -> int:
        """Waiting jobs whose time has not come."""
        return self.waiting - self.due


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """One client of a queue: a worker, or a pull lease."""

    id: str
    """The id of a pull lease begins with "~", that of a consumer with "~~"."""
    expires_in: float
    """Seconds until it counts as dead; negative if it is dead and not yet swept."""
    leases: int
    """How many jobs of this queue it holds."""
    worker: bytes
    """What a worker or a consumer says about itself, as JSON; empty for a pull lease."""


@dataclass(frozen=True, slots=True)
class Stat:
    """A counter: of all time (minute None), or of one minute (epoch seconds of its start)."""

    kind: str
    """The event that is counted, as in "finished"."""
    minute: float | None
    """When the minute began, in seconds since the epoch; None for the total of all time."""
    count: int


@dataclass(frozen=True, slots=True)
class AuditPage:
    problems: list[str]
    tallies: list[int]
    sizes: list[int]


_encoder = msgspec.msgpack.Encoder()


def pack_finishes(finishes: Sequence[Ending]) -> bytes | None:
    """Finished leases in the shortest form; None when an id is not valid text."""
    if not finishes:
        return b""
    # The text of all tokens at once: `str` of each would take twice as long.
    tokens = msgspec.json.encode([ending.token for ending in finishes])[1:-1].decode()
    words = [""] * (2 * len(finishes))
    words[::2] = [ending.id for ending in finishes]
    words[1::2] = tokens.split(",")
    try:
        return _encoder.encode(words)
    except UnicodeEncodeError:
        return None


def encode_id(id_: str) -> bytes:
    # Other programs may have dispatched ids that are not UTF-8: they are passed on unchanged.
    return id_.encode("utf-8", "surrogateescape")


def decode_text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def milliseconds(seconds: float) -> str:
    return repr(round(seconds * 1000, 3))


def when_arg(at: float | None, after: float | None) -> str:
    """'' for now (or the backoff), '+ms' for a delay, 'ms' for a time."""
    if at is not None:
        return milliseconds(at)
    return "" if after is None else f"+{milliseconds(after)}"


def pack_options(options: JobOptions, update: bool | frozenset[str]) -> bytes:
    given = options.given()
    names = frozenset(given) if update is True else update or frozenset()
    if not given and not names:
        return b""
    return _encoder.encode({"set": _to_wire(given), "update": sorted(names)})


def options_on_wire(options: JobOptions) -> dict[str, float]:
    return _to_wire(options.given())


def pack_given(fields: Mapping[str, object]) -> bytes:
    """A map of the fields that are not None."""
    return _encoder.encode({name: value for name, value in fields.items() if value is not None})


class _ErrorRecord(msgspec.Struct, omit_defaults=True):
    """An error with details. These are JSON, because a client of revision 9 reads an error as a map
    of texts, and refuses the job if one of them is not.
    """

    type: str = ""
    message: str = ""
    kind: str = "retriable"
    traceback: str = ""
    attributes: str = ""
    causes: str = ""


# The error comes first: the server reads such a record faster.
class _EndingRecord(msgspec.Struct, omit_defaults=True):
    error: JobError | _ErrorRecord | None = None
    when: str = ""


def pack_ending(when: str, error: JobError | None) -> bytes:
    """The record of an ending; empty if it says nothing."""
    if error is None:
        return _encoder.encode(_EndingRecord(None, when)) if when else b""
    if error.attributes or error.causes:
        return _encoder.encode(_EndingRecord(_with_details(error), when))
    return _encoder.encode(_EndingRecord(error, when))


def _with_details(error: JobError) -> _ErrorRecord:
    attributes = _as_json(error.attributes) if error.attributes else ""
    causes = _as_json(error.causes) if error.causes else ""
    return _ErrorRecord(error.type, error.message, error.kind, error.traceback, attributes, causes)


def _as_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def pack_death(started: int) -> bytes:
    """The record of a death: how many jobs had started in the process."""
    return _encoder.encode({"started": started})


def _to_wire(given: Mapping[str, float | Unlimited]) -> dict[str, float]:
    """Options as numbers; durations in milliseconds. "unlimited" is the largest that a client of
    revision 9 accepts.
    """
    return {name: _number(name, value) for name, value in given.items()}


def _number(name: str, value: float | Unlimited) -> float:
    if name in DURATION_OPTIONS:
        return (MAX_DURATION_SECONDS if value == UNLIMITED else value) * 1000
    return MAX_COUNT if value == UNLIMITED else value
