"""How many jobs of a queue end in this worker within `HELD_READY_SECONDS`.

A worker that holds this many more jobs than it runs at once seldom waits for the server between two
of them. They begin within about that time, unless jobs become slower.
"""

from __future__ import annotations

__all__ = ["HELD_READY_SECONDS", "Turnover"]

# In seconds. A job that is held ready begins within about this time.
HELD_READY_SECONDS = 0.002
# The rate is measured over at least this time, in seconds.
WINDOW = 0.001
# After this time, in seconds, an earlier rate says nothing about the present one.
FORGET_AFTER = 0.1


class Turnover:
    """The rate at which jobs of one queue end."""

    def __init__(self) -> None:
        self._rate = self._rate_before = 0.0
        self._ended = 0
        self._since = 0.0

    def note_ended(self, jobs: int, now: float) -> None:
        """The outcomes of this many more jobs are about to be reported, releases included."""
        self._ended += jobs
        seconds = now - self._since
        if seconds >= WINDOW:
            rate = self._ended / seconds
            self._rate_before = rate if seconds > FORGET_AFTER else self._rate
            self._rate = rate
            self._ended, self._since = 0, now

    def forget(self) -> None:
        """The rate has changed: jobs take longer now."""
        self._rate, self._ended = 0.0, 0

    def ending_soon(self, now: float) -> int:
        """How many jobs end within `HELD_READY_SECONDS`, if they go on as they did.

        The lower of the last two rates counts. Two long jobs that happen to end together are no
        sign of many short ones.
        """
        if now - self._since > FORGET_AFTER:
            return 0
        return int(min(self._rate, self._rate_before) * HELD_READY_SECONDS)
