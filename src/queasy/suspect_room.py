"""When a worker takes no other jobs, so that a suspect gets its turn.

A suspect may have only so many companions. A worker that always has more jobs would skip it for
ever. So the worker takes no other jobs for a while, until enough of its runs have ended. If they do
not end in that time, other jobs have their turn for at least half as long. Then the worker tries
again, for twice as long: the suspect gets its turn however long runs last. The pauses are random,
so that not all workers of a queue make room at once.
"""

from __future__ import annotations

import random

__all__ = ["SuspectRoom"]

# How long a worker takes no other jobs, at first, in seconds.
FIRST_SECONDS = 2.0
# It begins after a random pause of up to this many seconds. If several workers skipped the suspect,
# most often the first one takes it before the others begin.
BEGIN_WITHIN = 0.5


class SuspectRoom:
    """Decides when a worker makes room for suspects that it had to skip."""

    def __init__(self) -> None:
        self._seconds = FIRST_SECONDS
        self._begin: float | None = None

    def update(self, now: float, *, skipped: bool) -> None:
        """Note the time, and whether the last poll of any queue skipped suspects."""
        if not skipped:
            self._begin, self._seconds = None, FIRST_SECONDS
        elif self._begin is None:
            self._begin = now + random.uniform(0, BEGIN_WITHIN)
        elif now >= self._begin + self._seconds:
            self._begin = now + self._seconds * random.uniform(0.5, 4.0)
            self._seconds *= 2

    def is_made(self, now: float) -> bool:
        """Whether the worker takes no other jobs now."""
        return self._begin is not None and self._begin <= now < self._begin + self._seconds

    def next_change(self, now: float) -> float | None:
        """When to decide again; None for never."""
        if self._begin is None:
            return None
        return self._begin if now < self._begin else self._begin + self._seconds
