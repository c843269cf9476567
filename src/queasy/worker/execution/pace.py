"""How many handlers a worker runs at once: as many as it proves able to run promptly.

Two numbers, one for async handlers and one for plain functions. At 1 they may use the worker's
whole capacity, and a handler that names no size costs 10 units.

Async handlers that await leave the event loop idle. Their pace rises, and handlers without a size
are packed more tightly, up to a hundred at once. Handlers that compute make the event loop late.
Their pace falls until one runs at a time, and the jobs this worker does not take are left for other
workers. Plain functions that compute share one interpreter: running several at once makes none of
them faster, so their pace falls too.
"""

from __future__ import annotations

import time

__all__ = ["MAX_PACE", "PACE_TICK", "Pace"]

MIN, MAX_PACE = 0.1, 10.0
PACE_TICK = 0.1
# An event loop later than LATE is overloaded. One less late than PROMPT has time to spare.
LATE, PROMPT = 0.05, 0.02
# The share of one core above which plain functions count as computing.
BUSY = 0.9
UP, DOWN = 2.0, 0.5


class Pace:
    """Adjusted at every tick by how late the event loop is."""

    def __init__(self) -> None:
        self.awaited = 1.0
        self.plain = 1.0
        self.start()

    def start(self) -> None:
        """Begin to measure after an idle time, whose CPU use must not count."""
        self._clock, self._cpu = time.monotonic(), time.process_time()

    def hasten(self) -> None:
        """Raise the pace at once: before the next jobs arrived, all async handlers had ended, or
        had begun and awaited something.

        So no tick is needed to see that the worker can run more of them.
        """
        if self.awaited >= 1:
            self.awaited = min(MAX_PACE, self.awaited * UP)

    def tick(self, late: float, threads: int, *, wanted_more: bool) -> None:
        """Adjust both numbers.

        `late` is how late the event loop was, or how late a job started. `threads` is the number
        of plain functions that run. `wanted_more`: the worker would have taken more jobs.
        """
        now, cpu = time.monotonic(), time.process_time()
        use = (cpu - self._cpu) / max(now - self._clock, 1e-6)
        self._clock, self._cpu = now, cpu
        if threads and self.plain > MIN and (use > BUSY or late > LATE):
            self.plain = max(MIN, self.plain * DOWN)
        elif late > LATE:  # plain functions are not the cause, or not the only one
            self.awaited = max(MIN, self.awaited * DOWN)
        elif late < PROMPT:
            self.plain = min(1.0, self.plain * UP)
            if wanted_more or self.awaited < 1:
                self.awaited = min(MAX_PACE, self.awaited * UP)
