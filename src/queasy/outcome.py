"""How a run ends: a closed set of values, matched once in the store."""

from __future__ import annotations

import msgspec

from queasy.job import JobError

__all__ = ["Broken", "Cancel", "Fail", "Finish", "Outcome", "Release", "Retry", "TimedOut"]


class Finish(msgspec.Struct, frozen=True):
    """Done: nothing is kept of the job."""


class Release(msgspec.Struct, frozen=True):
    """Not done, and no attempt either: back to the front of the queue."""


class Cancel(msgspec.Struct, frozen=True):
    """Somebody asked to cancel the job: it is gone."""


class Retry(msgspec.Struct, frozen=True):
    """Again: at a time (epoch seconds), after some seconds, or after its backoff."""

    error: JobError | None = None
    at: float | None = None
    after: float | None = None


class TimedOut(msgspec.Struct, frozen=True):
    """The run was ended because it took too long; retried until max_timeouts."""

    error: JobError = msgspec.field(default_factory=lambda: JobError(kind="timeout"))


class Fail(msgspec.Struct, frozen=True):
    """Given up: into the failed record, and to the fail handler if there is one."""

    error: JobError | None = None


class Broken(msgspec.Struct, frozen=True):
    """The payload cannot be decoded: set aside."""

    error: JobError


Outcome = Finish | Release | Cancel | Retry | TimedOut | Fail | Broken
