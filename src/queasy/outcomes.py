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
    "Died",
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

    The job runs at a time, after some seconds, or (default) after its backoff. It counts as a
    retry: a job without retries left is given up.

        raise Retry("the mail server is busy", after=30)
    """

    _unrecorded = ("at", "after", "message")  # not attributes of the error

    def __init__(
        self, message: str = "", *, at: When | None = None, after: Seconds | None = None
    ) -> None:
        self.at, self.after = check_retry_time(at, after)
        """Seconds since the epoch, and seconds from the end of the run; at most one is set."""
        super().__init__(message)
        self.message = message
        """Kept with the job, in `Job.error`."""


def check_retry_time(at: When | None, after: Seconds | None) -> tuple[float | None, float | None]:
    """When to retry, as seconds since the epoch or as a delay; raises when both are given."""
    if at is not None and after is not None:
        raise InvalidTime("expected at or after, got both")
    return (
        None if at is None else epoch(at, "at"),
        None if after is None else seconds(after, "after"),
    )


class Failure(Exception):
    """Give the job up, even if it has retries left: a handler may return it or raise it.

    The job goes into the failed record, and to the fail handler if there is one.
    """

    _unrecorded = ("message",)  # not an attribute of the error

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message
        """Kept with the job, in `Job.error`."""


class PermanentError(Failure):
    """The same as `Failure`, under the name that other job queues use."""


class Interrupted(BaseException):
    """Raised inside a plain function to end its run: the run timed out, was cancelled, or the
    worker is stopping.

    Catch it only to clean up, and raise it again. `except Exception` does not catch it.
    """


class Finish(msgspec.Struct, frozen=True):
    """The job is done; its record is deleted."""


class Release(msgspec.Struct, frozen=True):
    """The job goes back to the front of the queue; not counted as an attempt."""


class Cancel(msgspec.Struct, frozen=True):
    """The job was cancelled on request; its record is deleted."""


class RetryLater(msgspec.Struct, frozen=True):
    """The job runs again: at a time (epoch seconds), after some seconds, or after its backoff."""

    error: JobError | None = None
    at: float | None = None
    after: float | None = None


class TimedOut(msgspec.Struct, frozen=True):
    """The run was ended because it took too long; the job is retried until max_timeouts."""

    error: JobError = msgspec.field(default_factory=lambda: JobError(kind="timeout"))


class Fail(msgspec.Struct, frozen=True):
    """The job is given up: it goes into the failed record, and to the fail handler if any."""

    error: JobError | None = None


class Broken(msgspec.Struct, frozen=True):
    """The payload cannot be decoded; the job is set aside in the broken record."""

    error: JobError


class Died(msgspec.Struct, frozen=True):
    """The process in which the job ran has died. The job goes back to the front of the queue, as a
    suspect. If it ran alone, this counts as a stall.
    """

    started: int
    """How many jobs of all queues had started in that process."""


Outcome = Finish | Release | Cancel | RetryLater | TimedOut | Fail | Broken | Died
