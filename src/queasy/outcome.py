"""How a run ends: a closed set of values, matched once in the store."""

from __future__ import annotations

from dataclasses import dataclass, field

from queasy.job import JobError

__all__ = ["Broken", "Cancel", "Fail", "Finish", "Outcome", "Release", "Retry", "TimedOut"]


@dataclass(frozen=True, slots=True)
class Finish:
    """Done: nothing is kept of the job."""


@dataclass(frozen=True, slots=True)
class Release:
    """Not done, and no attempt either: back to the front of the queue."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Somebody asked to cancel the job: it is gone."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Again: at a time (epoch seconds), after some seconds, or after its backoff."""

    error: JobError | None = None
    at: float | None = None
    after: float | None = None


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The run was ended because it took too long; retried until max_timeouts."""

    error: JobError = field(default_factory=lambda: JobError(kind="timeout"))


@dataclass(frozen=True, slots=True)
class Fail:
    """Given up: into the failed record, and to the fail handler if there is one."""

    error: JobError | None = None


@dataclass(frozen=True, slots=True)
class Broken:
    """The payload cannot be decoded: set aside."""

    error: JobError


Outcome = Finish | Release | Cancel | Retry | TimedOut | Fail | Broken
