"""How long to wait before the next child starts, after children that failed."""

from __future__ import annotations

import random

__all__ = ["StartBackoff"]

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
# Beyond this the longest pause is reached; and 2**1024 is too large for a float.
MAX_DOUBLINGS = 10


class StartBackoff:
    """Doubles the pause with every failure, until a child that started later works well."""

    def __init__(self) -> None:
        self.failures = 0
        """How many starts failed since a child last worked well."""
        self._failed_at = 0.0

    def failed(self, now: float) -> None:
        """A child could not start, or died for a reason that was not one of its jobs."""
        self.failures += 1
        self._failed_at = now

    def settled(self, born: float) -> None:
        """A child that was started at `born` works well.

        One that had started before the last failure says nothing about those that fail to start.
        """
        if born > self._failed_at:
            self.failures = 0

    def reset(self) -> None:
        """The code has changed: earlier failures say nothing about it."""
        self.failures = 0

    def pause(self) -> float:
        """Seconds to wait before the next start, random within the upper half; 0 if all is well."""
        if not self.failures:
            return 0.0
        doublings = min(self.failures - 1, MAX_DOUBLINGS)
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2**doublings)
        return longest * random.uniform(0.5, 1.0)
