"""How a run ends: what a handler may return or raise, and what the store records.

`Retry` and `Failure` are for handlers. The other classes form the closed set `Outcome`, which the
store matches in one place.
"""

from __future__ import annotations

import msgspec

from queasy.errors import InvalidTime
from queasy.job import JobError
from queasy.options import Seconds, When, epoch, seconds

__all__ = [
    "Broken",
    "Cancel",
    "Fail",
    "Failure",
    "Finish",
    "Interrupted",
    "Outcome",
    "PermanentError",
    "Release",
    "Retry",
    "RetryLater",
    "TimedOut",
]


class Retry(Exception):
    """Run the job again: a handler may return it or raise it.

    At a time, after some seconds, or (default) after its backoff. It counts as a retry: a job
    that has none left is given up.

        raise Retry("the mail server is busy", after=30)
    """

    def __init__(
        self, message: str = "", *, at: When | None = None, after: Seconds | None = None
    ) -> None:
        if at is not None and after is not None:
            raise InvalidTime("expected at or after, got both")
        super().__init__(message)
        self.message = message
        self.at = None if at is None else epoch(at, "at")
        """Seconds since the epoch."""
        self.after = None if after is None else seconds(after, "after")
        """Seconds from when the run ended."""


class Failure(Exception):
    """Give the job up, whatever retries it has left: a handler may return it or raise it.

    The job goes into the failed record, and to the fail handler if there is one.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message


class PermanentError(Failure):
    """The same as `Failure`, by the name other queues use."""


class Interrupted(BaseException):
    """Raised inside a plain function whose run must end: it timed out, was cancelled, or the
    worker is stopping.

    Catch it only to clean up, and raise it again. `except Exception` does not catch it.
    """


class Finish(msgspec.Struct, frozen=True):
    """Done: nothing is kept of the job."""


class Release(msgspec.Struct, frozen=True):
    """Not done, and no attempt either: back to the front of the queue."""


class Cancel(msgspec.Struct, frozen=True):
    """Somebody asked to cancel the job: it is gone."""


class RetryLater(msgspec.Struct, frozen=True):
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


Outcome = Finish | Release | Cancel | RetryLater | TimedOut | Fail | Broken
