"""A job as the server has it: a value without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import msgspec

from queasy.attributes import (
    MAX_CAUSES,
    MAX_TEXT_CHARACTERS,
    Redact,
    attributes_of,
    bounded,
    chain_of,
    has_details,
    redact_secrets,
)
from queasy.codec import Codec
from queasy.errors import UndecodablePayload
from queasy.options import EARLIEST_EPOCH, LATEST_EPOCH, JobOptions
from queasy.trace import trace_of

__all__ = ["CancelFlag", "Job", "JobError", "State"]

State = Literal["due", "scheduled", "active", "blocked", "failed", "broken"]
ErrorKind = Literal["permanent", "retriable", "stall", "timeout", "expiry", "broken"]
ERROR_KINDS = get_args(ErrorKind)

# Enough to find the fault; a queue is not a log store.
MAX_MESSAGE_CHARACTERS = 2_000
MAX_TRACEBACK_CHARACTERS = 8_000
NO_OPTIONS = JobOptions()


# Without defaults on the server: most errors leave out half of their fields.
class JobError(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a run did not finish."""

    type: str = ""
    """The name of the exception's class; empty for an error given as text."""
    message: str = ""
    """At most 2,000 characters."""
    kind: ErrorKind = "retriable"
    """What ended the run: an exception that is final or retried, a stall, a timeout, or a payload
    that cannot be decoded."""
    traceback: str = ""
    """Its last 8,000 characters; empty if there was no exception."""
    attributes: Mapping[str, Any] = {}
    """What the exception carried: its public attributes that JSON has, such as `errno` or `code`.
    At most 20, of 4,000 bytes of JSON together. Values of secrets are "[redacted]"."""
    causes: tuple[JobError, ...] = ()
    """The exceptions that caused it, the direct cause first: at most five. Their tracebacks are in
    that of the error."""

    @classmethod
    def of(
        cls, error: object, kind: ErrorKind = "retriable", redact: Redact | None = None
    ) -> JobError | None:
        """A JobError from an exception, a text or another JobError; None from None.

        `redact` takes the name and the value of each attribute, and returns the value to record.
        None: `redact_secrets`.
        """
        match error:
            case None:
                return None
            case JobError():
                return error.clean()
            case BaseException():
                made = _clean_error(type(error).__qualname__, error, kind, trace_of(error))
                if has_details(error):
                    return _with_details(made, error, redact or redact_secrets)
                return made
            case _:
                return _clean_error("", error, kind, "")

    def clean(self) -> JobError:
        """The same error with text that is valid UTF-8 and not too long."""
        made = _clean_error(self.type, self.message, self.kind, self.traceback)
        if not self.attributes and not self.causes:
            return made
        causes = [cause for cause in self.causes[:MAX_CAUSES] if isinstance(cause, JobError)]  # pyright: ignore[reportUnnecessaryIsInstance]
        return msgspec.structs.replace(
            made,
            attributes=bounded(self.attributes),
            causes=tuple(
                _cause(cause.type, cause.message, made.kind, bounded(cause.attributes))
                for cause in causes
            ),
        )

    def __hash__(self) -> int:
        return hash((self.type, self.message, self.kind, self.traceback))


def _with_details(made: JobError, error: BaseException, redact: Redact) -> JobError:
    """The error with the attributes and causes of its exception."""
    causes = tuple(
        _cause(type(cause).__qualname__, cause, made.kind, attributes_of(cause, redact))
        for cause in chain_of(error)
    )
    return msgspec.structs.replace(made, attributes=attributes_of(error, redact), causes=causes)


def _cause(type_: object, message: object, kind: ErrorKind, attributes: dict[str, Any]) -> JobError:
    text = _clean(message)[:MAX_TEXT_CHARACTERS]
    return JobError(_clean(type_)[:MAX_TEXT_CHARACTERS], text, kind, attributes=attributes)


def _clean_error(type_: object, message: object, kind: ErrorKind, trace: object) -> JobError:
    return JobError(
        _clean(type_)[:MAX_MESSAGE_CHARACTERS],
        _clean(message)[:MAX_MESSAGE_CHARACTERS],
        kind if kind in ERROR_KINDS else "retriable",
        _clean(trace)[-MAX_TRACEBACK_CHARACTERS:],
    )


def _text(value: object) -> str:
    """The text of a value; an exception's own `__str__` may raise."""
    try:
        return str(value)
    except BaseException as problem:
        return f"<{type(value).__qualname__} that cannot be shown: {type(problem).__qualname__}>"


def _clean(value: object) -> str:
    """Text that is valid UTF-8: a message may quote anything."""
    text = _text(value)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


# A struct, as `Job`: one is made for each job that runs.
class CancelFlag(msgspec.Struct, eq=False, gc=False):
    """Whether the cancellation of a run was requested. It may be set while the job runs."""

    on: bool = False

    def raise_flag(self) -> None:
        self.on = True

    def __eq__(self, other: object) -> bool:
        """All flags are equal: two jobs that differ only in this are the same job."""
        return isinstance(other, CancelFlag)

    def __hash__(self) -> int:
        return 0


NOT_CANCELLED = CancelFlag()
"""The flag of jobs that do not run in this process. It is never set."""


# A struct, because a worker makes many: a dataclass takes five times as long to make.
class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job in one state."""

    id: str
    queue: str
    """The name of its queue; `{name}-fail` for a fail queue."""
    state: State
    """Where it was when it was read. The value does not change afterwards."""
    payload: bytes
    """The bytes that were dispatched: the encoded data."""
    token: int = 0
    """The token of its lease or, if it failed, of its last lease; otherwise 0. Tokens increase: use
    them to fence outside systems."""
    client: str = ""
    """The id of the client that holds its lease; empty if it is not active."""
    retry_count: int = 0
    """How often it was retried."""
    stall_count: int = 0
    """How often its client died or froze."""
    timeout_count: int = 0
    """How often a run took too long."""
    expiry_count: int = 0
    """How often its pull lease ran out."""
    options: JobOptions = NO_OPTIONS
    """The job's own options; the rest are those of its queue. For a job that a handler runs: all
    options in force. For a job that was given up: all options in force at that time."""
    error: JobError | None = None
    """Why the last run did not finish; None if no run failed, or no error was given."""
    readable: bool = True
    """False when its record on the server cannot be decoded; `error` says why."""
    companions: int | None = None
    """For a suspect: how many other jobs may run in its process. None if it is not a suspect."""
    flag: CancelFlag = msgspec.field(default_factory=lambda: NOT_CANCELLED)
    """Set by the worker that runs it; read `cancelled` instead."""
    origin: Job | None = None
    """In a fail queue: the job that was given up."""
    run_at_epoch: float = 0.0
    """`run_at` as seconds since the epoch; 0 for none."""
    dispatched_at_epoch: float = 0.0
    """`dispatched_at` as seconds since the epoch; 0 for none."""
    ended_at_epoch: float = 0.0
    """`ended_at` as seconds since the epoch; 0 for none."""
    codec: Codec | None = None
    """Decodes the payload; None: `data` is the payload."""

    def __repr__(self) -> str:
        """The fields that are set; never the payload, which may be large or secret."""
        shown = {"id": self.id, "queue": self.queue, "state": self.state}
        names = ("token", "retry_count", "stall_count", "timeout_count", "expiry_count")
        names += ("suspect", "cancelled", "error")
        shown |= {name: getattr(self, name) for name in names if getattr(self, name)}
        shown |= {"run_at": self.run_at.isoformat()} if self.run_at else {}
        return f"Job({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    @property
    def data(self) -> Any:
        """The payload decoded; raises UndecodablePayload when that fails."""
        if self.codec is None:
            return self.payload
        try:
            return self.codec.decode(self.payload)
        except Exception as error:
            # A codec is the user's code: any exception means that the payload cannot be decoded.
            why = f"job {self.id!r} of queue {self.queue!r}: {error}"
            raise UndecodablePayload(why) from error

    @property
    def cancelled(self) -> bool:
        """Whether the cancellation of this run was requested. May become True while it runs."""
        return self.flag.on

    @property
    def suspect(self) -> bool:
        """Whether it ran in a process that died: it next runs alone, or with fewer other jobs."""
        return self.companions is not None

    @property
    def leased_at(self) -> datetime | None:
        """When its lease began or, if it failed, its last lease; otherwise None."""
        # Tokens follow the server's clock, in microseconds.
        plausible = EARLIEST_EPOCH * 1e6 <= self.token < LATEST_EPOCH * 1e6
        return _time(self.token / 1e6) if plausible else None

    @property
    def run_at(self) -> datetime | None:
        """When it is, or was, due; None for a failed or broken job."""
        return _time(self.run_at_epoch)

    @property
    def dispatched_at(self) -> datetime | None:
        """When the server accepted it first."""
        return _time(self.dispatched_at_epoch)

    @property
    def ended_at(self) -> datetime | None:
        """When it was given up or set aside as broken; None for other jobs."""
        return _time(self.ended_at_epoch)


def _time(epoch: float) -> datetime | None:
    # Another program may have written a time that is not a valid date.
    return datetime.fromtimestamp(epoch, UTC) if 0 < epoch < LATEST_EPOCH else None
