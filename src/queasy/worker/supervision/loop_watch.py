"""Records which run blocks the event loop of a worker, for its supervisor.

Another thread looks at the loop while the loop does not turn. As long as the loop turns, nothing is
recorded, so jobs cost nothing more. If a handler holds the GIL, no other thread can look.
"""

from __future__ import annotations

from collections.abc import Callable

from queasy.worker.liveness.heartbeat import BUSY_LOOP_BLOCKED
from queasy.worker.liveness.inflight_table import InflightTable

__all__ = ["LoopWatch"]

RunId = tuple[int, int]
"""The queue and the token of a run."""


class LoopWatch:
    """Looks at the event loop of this process at each call of `look`."""

    def __init__(self, table: InflightTable) -> None:
        self._table = table
        self._find_run: Callable[[], RunId | None] | None = None
        self._seen: tuple[float, RunId | None] | None = None
        """At the last look: when the loop had last turned, and the run on it."""
        self._since = 0.0
        """When that was first seen."""

    def begin(self, find_run: Callable[[], RunId | None]) -> None:
        """Look from now on: there is a worker. `find_run` returns the run that is on the loop; None
        if there is none. It must be safe to call from any thread.
        """
        self._find_run = find_run

    def look(self, now: float) -> None:
        """Records what is on the event loop if the loop does not turn."""
        turned_at = self._table.loop_turned_at
        if self._find_run is None or now - turned_at < BUSY_LOOP_BLOCKED:
            self._seen = None
            return
        seen = (turned_at, self._find_run())
        if seen != self._seen:
            self._seen, self._since = seen, now
        self._table.set_on_loop(seen[1], self._since, now)
