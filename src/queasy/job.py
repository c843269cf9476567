"""A job as the server has it: a value, without I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import msgspec

from queasy.codec import Codec, decode
from queasy.options import EARLIEST_EPOCH, LATEST_EPOCH, JobOptions
from queasy.trace import trace_of

__all__ = ["CancelFlag", "Job", "JobError", "State"]

State = Literal["due", "scheduled", "active", "blocked", "failed", "broken"]
ErrorKind = Literal["permanent", "retriable", "stall", "timeout", "broken"]

# Enough to find the fault; a queue is no log store.
MAX_MESSAGE_CHARACTERS = 2_000
MAX_TRACEBACK_CHARACTERS = 8_000
NO_OPTIONS = JobOptions()


@dataclass(frozen=True, slots=True)
class JobError:
    """Why a run did not finish."""

    type: str = ""
    message: str = ""
    kind: ErrorKind = "retriable"
    traceback: str = ""

    @classmethod
    def of(cls, error: object, kind: ErrorKind = "retriable") -> JobError | None:
        """From an exception, a text, another JobError, or nothing."""
        match error:
            case None:
                return None
            case JobError():
                return error.clean()
            case BaseException():
                return cls(type(error).__qualname__, _text(error), kind, trace_of(error)).clean()
            case _:
                return cls(message=_text(error), kind=kind).clean()

    def clean(self) -> JobError:
        """Text that UTF-8 can hold, and not too much of it."""
        return JobError(
            type=_clean(self.type)[:MAX_MESSAGE_CHARACTERS],
            message=_clean(self.message)[:MAX_MESSAGE_CHARACTERS],
            kind=self.kind if self.kind in get_args(ErrorKind) else "retriable",
            traceback=_clean(self.traceback)[-MAX_TRACEBACK_CHARACTERS:],
        )


def _text(value: object) -> str:
    """What it says, if it can say anything: an exception's own `__str__` may raise."""
    try:
        return str(value)
    except BaseException as problem:
        return f"<{type(value).__qualname__} that cannot be shown: {type(problem).__qualname__}>"


def _clean(value: object) -> str:
    """Text that UTF-8 can hold: a message may quote anything."""
    return _text(value).encode("utf-8", "backslashreplace").decode()


@dataclass(slots=True, eq=False)
class CancelFlag:
    """What may be learnt of a run while it runs: that somebody asked to cancel it."""

    on: bool = False

    def __eq__(self, other: object) -> bool:
        """It is no part of what a job is: two that are otherwise the same are."""
        return isinstance(other, CancelFlag)

    def __hash__(self) -> int:
        return 0


NOT_CANCELLED = CancelFlag()
"""Of jobs that do not run here; nobody sets it."""


# A struct, and no dataclass, which would take five times as long to make: a worker makes many.
class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job in one state."""

    id: str
    queue: str
    state: State
    payload: bytes
    """The bytes the caller dispatched (or encoded its data to)."""
    token: int = 0
    """Of the lease that holds it, or held it last; 0 for none. Increasing: fence outside systems
    with it."""
    client: str = ""
    """Who holds it."""
    retry_count: int = 0
    stall_count: int = 0
    timeout_count: int = 0
    options: JobOptions = NO_OPTIONS
    """What this job asked for itself, the rest is as its queue says; of a job that a worker runs,
    what holds for it."""
    error: JobError | None = None
    """Why the last run did not finish."""
    readable: bool = True
    """False when its record on the server cannot be read; `error` says why."""
    suspect: bool = False
    """It was running when a worker died: its next run is alone."""
    flag: CancelFlag = NOT_CANCELLED
    origin: Job | None = None
    """In a fail queue: the job that was given up."""
    run_at_epoch: float = 0.0
    dispatched_at_epoch: float = 0.0
    ended_at_epoch: float = 0.0
    codec: Codec | None = None

    def __repr__(self) -> str:
        """What is worth a look; never the payload, which may be large or secret."""
        shown = {"id": self.id, "queue": self.queue, "state": self.state}
        names = ("token", "retry_count", "stall_count", "timeout_count")
        names += ("suspect", "cancelled", "error")
        shown |= {name: getattr(self, name) for name in names if getattr(self, name)}
        shown |= {"run_at": self.run_at.isoformat()} if self.run_at else {}
        return f"Job({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    @property
    def data(self) -> Any:
        """The payload decoded; raises UndecodablePayload when that fails."""
        if self.codec is None:
            return self.payload
        return decode(self.codec, self.payload, self.queue, self.id)

    @property
    def cancelled(self) -> bool:
        """Somebody asked to cancel this run. May become true while it runs."""
        return self.flag.on

    @property
    def leased_at(self) -> datetime | None:
        """Since when its run holds it, or the last one held it."""
        # Tokens follow the server's clock, in microseconds.
        plausible = EARLIEST_EPOCH * 1e6 <= self.token < LATEST_EPOCH * 1e6
        return _time(self.token / 1e6) if plausible else None

    @property
    def run_at(self) -> datetime | None:
        """When it is, or was, due."""
        return _time(self.run_at_epoch)

    @property
    def dispatched_at(self) -> datetime | None:
        """When the server accepted it first."""
        return _time(self.dispatched_at_epoch)

    @property
    def ended_at(self) -> datetime | None:
        """When it was given up or set aside."""
        return _time(self.ended_at_epoch)


def _time(epoch: float) -> datetime | None:
    # Another program may have put a time that no calendar has.
    return datetime.fromtimestamp(epoch, UTC) if 0 < epoch < LATEST_EPOCH else None
