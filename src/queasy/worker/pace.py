"""How much a worker takes on: as much as it proves to bear.

One number, the pace, between MIN and MAX. At 1 the worker uses its whole capacity, with 10
units for a handler that names no size. Handlers that wait leave the event loop idle: the pace
rises, and such handlers are packed more tightly, up to a hundred. Handlers that compute make
the loop late: the pace falls until one runs at a time, and what this worker does not take is
there for others.
"""

from __future__ import annotations

import time

__all__ = ["Pace"]

MIN, MAX = 0.1, 10.0
TICK = 0.1
# A loop this late is overloaded; one below the second is not.
LATE, PROMPT = 0.05, 0.01
BUSY = 0.9


class Pace:
    """Told at every tick how late it came."""

    def __init__(self) -> None:
        self.value = 1.0
        self._clock = time.monotonic()
        self._cpu = time.process_time()

    def start(self) -> None:
        """Work begins after a rest: what was used in between does not count."""
        self._clock, self._cpu = time.monotonic(), time.process_time()

    def tick(self, late: float, threads: int, *, full: bool) -> None:
        """`threads` plain functions are running; `full`: more jobs would have been taken."""
        now, cpu = time.monotonic(), time.process_time()
        use = (cpu - self._cpu) / max(now - self._clock, 1e-6)
        self._clock, self._cpu = now, cpu
        computing = threads > 1 and use > BUSY  # they share one interpreter
        if late > LATE or computing:
            self.value = max(MIN, self.value / 2)
        elif late < PROMPT and (full or self.value < 1):
            self.value = min(MAX, self.value * 1.5)
