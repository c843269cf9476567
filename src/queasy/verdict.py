"""What a handler may say of its job, instead of finishing it."""

from __future__ import annotations

from queasy.errors import InvalidTime
from queasy.options import Seconds, When, epoch, seconds

__all__ = ["Failure", "PermanentError", "Retry"]


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
