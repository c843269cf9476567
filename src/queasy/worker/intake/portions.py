"""How early to request the next jobs of a queue, and how tightly to pack them.

A portion is what one call brings. Where jobs are short, the worker requests more of them before
those it has are over: see `Portions.prefetches` and `Portions.turnover_units`.
"""

from __future__ import annotations

import time

from queasy.handler import HandlerOptions
from queasy.worker.execution.pace import MAX_PACE, Pace
from queasy.worker.intake.activity import Activity
from queasy.worker.intake.turnover import Turnover
from queasy.worker.plan import DEFAULT_SIZE

__all__ = ["Portions"]

# Jobs count as short only if less time than this passes between two portions, in seconds.
SHORT_PORTION = 0.01
# How long a queue does not prefetch after prefetched jobs did not fit, in seconds.
NO_PREFETCH_AFTER_RELEASE = 1.0
# How long a queue takes no turns after its jobs were not short, in seconds.
NO_TURNS_AFTER_LONG_JOBS = 1.0


class Portions:
    """Decides from the last portions of one queue how to request the next one."""

    def __init__(
        self, queue: int, options: HandlerOptions, activity: Activity, *, is_async: bool
    ) -> None:
        self.prefetches = False
        """The next dequeue prefetches: jobs are short, each portion ends before the next starts."""
        self.has_more = False
        """The last dequeue brought as many jobs as it requested, so more are likely."""
        self.last_served = 0.0
        """When a dequeue of the queue was last answered, on the monotonic clock."""
        self.turnover = Turnover()
        self._queue = queue
        self._options = options
        self._activity = activity
        self._is_async = is_async
        self._drained_at = 0.0
        """When the worker last saw that no run of the queue was left."""
        self._no_prefetch_until = 0.0
        self._no_turns_until = 0.0

    # How tightly jobs are packed

    def size(self, pace: Pace) -> int:
        """The units of capacity that a job costs at this pace."""
        if self._options.size is not None:
            return self._options.size
        return max(1, round(DEFAULT_SIZE / max(1.0, self._density(pace))))

    def usable(self, pace: Pace) -> float:
        """The part of the worker's capacity that the queue may use at this pace."""
        return min(1.0, self._density(pace))

    def _density(self, pace: Pace) -> float:
        """How much of the worker's capacity the queue may use. Above 1, jobs are packed tighter."""
        if self._is_async:
            return pace.awaited
        if self._options.size is not None:
            return pace.plain
        ahead = self.turnover.ending_soon(time.monotonic()) * DEFAULT_SIZE / self._activity.capacity
        return min(MAX_PACE, pace.plain + ahead)

    def turnover_units(self, pace: Pace) -> int:
        """Units that may be held ready beyond the capacity. 0 if the queue prefetches, or if its
        jobs can be packed more tightly instead.
        """
        is_sized = self._options.size is not None
        is_tightest = is_sized or (self._is_async and pace.awaited >= MAX_PACE)
        if self.prefetches or not is_tightest:
            return 0
        most = self._activity.capacity // 2
        return min(most, self.turnover.ending_soon(time.monotonic()) * self.size(pace))

    # Answers

    def note_answer(self, *, limit: int, count: int) -> None:
        """A call that requested `limit` jobs brought `count`."""
        # A full answer to a request for one job says little: perhaps a suspect limited the request.
        self.has_more = limit > 1 and count == limit
        if not self.has_more:
            self._activity.end_sharing(self._queue)

    def note_arrival(self, *, full: bool, fits_many: bool, drained: bool) -> bool:
        """A dequeue was answered. Set whether to prefetch the next ones, and whether to take turns.

        `full`: as many as requested. `drained`: nothing of the queue was left before them. Returns
        whether a full portion came after all jobs of the previous one had ended.
        """
        now, before = time.monotonic(), self.last_served
        self.last_served = now
        # The queue may have waited for its turn since its last jobs ended.
        ended_at = self._drained_at if self._drained_at > before else now
        soon = ended_at - before < SHORT_PORTION
        ended_first = full and bool(before) and drained and self._is_async
        may_prefetch = full and soon and fits_many and now > self._no_prefetch_until
        self.prefetches = may_prefetch and (self.prefetches or ended_first)
        if before and not soon:
            self._no_turns_until = now + NO_TURNS_AFTER_LONG_JOBS
        may_be_short = self._is_async and fits_many and now > self._no_turns_until
        if self.has_more and (self.prefetches or may_be_short):
            self._activity.sharing.add(self._queue)
        else:
            self._activity.end_sharing(self._queue)
        return ended_first

    def note_drained(self) -> None:
        """No run of the queue is left. The first time after a portion counts."""
        if self._drained_at <= self.last_served:
            self._drained_at = time.monotonic()

    def suspend_early_requests(self) -> None:
        """Jobs did not fit or begin in time: hold none ready, and do not prefetch for a while."""
        self.prefetches = False
        self._activity.end_sharing(self._queue)
        self._no_prefetch_until = self.last_served + NO_PREFETCH_AFTER_RELEASE
        self.turnover.forget()

    def give_up(self) -> None:
        """A call was not answered, and is not repeated."""
        self.has_more = False
        self._activity.end_sharing(self._queue)
