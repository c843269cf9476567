"""How much a worker takes on: as much as it proves to bear.

Two numbers, one for async handlers and one for plain functions. At 1 they may use the worker's
whole capacity, and a handler that names no size costs 10 units.

Async handlers that wait leave the event loop idle: their pace rises, and those without a size
are packed more tightly, up to a hundred. Those that compute make the loop late: it falls until
one runs at a time, and what this worker does not take is there for others. Plain functions that
compute share one interpreter: more than one at a time makes none of them faster.
"""

from __future__ import annotations

import time

__all__ = ["Pace"]

MIN, MAX = 0.1, 10.0
TICK = 0.1
# A loop this late is overloaded; one below the second is not.
LATE, PROMPT = 0.05, 0.02
BUSY = 0.9
UP, DOWN = 2.0, 0.5


class Pace:
    """Told at every tick how late the event loop is."""

    def __init__(self) -> None:
        self.awaited = 1.0
        self.plain = 1.0
        self.start()

    def start(self) -> None:
        """Work begins after a rest: what was used in between does not count."""
        self._clock, self._cpu = time.monotonic(), time.process_time()

    def of(self, *, is_async: bool) -> float:
        """The part of the capacity that handlers of a kind may use."""
        return min(1.0, self.awaited if is_async else self.plain)

    def hasten(self) -> None:
        """Async handlers have ended before the next jobs came, and there are more: these are short,
        and no tick is needed to see that the worker can bear more of them.
        """
        if self.awaited >= 1:
            self.awaited = min(MAX, self.awaited * UP)

    def tick(self, late: float, threads: int, *, full: bool) -> None:
        """`late`: it, or the start of a job that was there. `threads` plain functions are running;
        `full`: more jobs would have been taken.
        """
        now, cpu = time.monotonic(), time.process_time()
        use = (cpu - self._cpu) / max(now - self._clock, 1e-6)
        self._clock, self._cpu = now, cpu
        if threads and self.plain > MIN and (use > BUSY or late > LATE):
            self.plain = max(MIN, self.plain * DOWN)
        elif late > LATE:  # it is not, or not only, their doing
            self.awaited = max(MIN, self.awaited * DOWN)
        elif late < PROMPT:
            self.plain = min(1.0, self.plain * UP)
            if full or self.awaited < 1:
                self.awaited = min(MAX, self.awaited * UP)
