"""The outcomes of one queue's runs that the server has not confirmed."""

from __future__ import annotations

import time
from itertools import accumulate
from operator import attrgetter

from queasy.job import Job
from queasy.outcomes import Outcome
from queasy.store.records import LeaseKey
from queasy.worker.execution.run import RunEnding
from queasy.worker.intake.activity import Activity
from queasy.worker.intake.lease_ledger import LeaseLedger
from queasy.worker.intake.turnover import Turnover
from queasy.worker.liveness.inflight_table import InflightTable

__all__ = ["Unreported"]

MAX_ENDINGS_PER_CALL = 1000
MAX_ENDING_BYTES = 2 * 1024 * 1024
PAYLOAD_BYTES = attrgetter("payload_bytes")


class Unreported:
    """Each outcome waits, is sent with a call, and is confirmed or comes back."""

    def __init__(
        self,
        queue: int,
        table: InflightTable,
        leases: LeaseLedger,
        activity: Activity,
        turnover: Turnover,
    ) -> None:
        self._queue = queue
        self._table = table
        self._leases = leases
        self._activity = activity
        self._turnover = turnover
        self._waiting: list[RunEnding] = []
        self._sent = 0
        """How many outcomes are being reported."""

    def __len__(self) -> int:
        return len(self._waiting) + self._sent

    @property
    def some_wait(self) -> bool:
        """Whether there are outcomes to report with the next call."""
        return bool(self._waiting)

    @property
    def waiting_leases(self) -> set[LeaseKey]:
        """The leases whose outcomes wait."""
        return {(ending.id, ending.token) for ending in self._waiting}

    def add(self, ending: RunEnding) -> None:
        """Add an outcome, to be reported with the next call."""
        if not self._waiting:
            self._activity.awake.add(self._queue)
            self._activity.unreported.add(self._queue)
        self._waiting.append(ending)

    def add_of(self, job: Job, outcome: Outcome) -> None:
        """Add the outcome of a job that did not run."""
        self.add(RunEnding(job.id, job.token, outcome))

    def take(self) -> list[RunEnding]:
        """Remove and return as many outcomes as one call may report: at least one, if there is one.

        A job that is given up is copied into the failed record and the fail queue. So the bytes of
        the payloads are bounded, too.
        """
        endings, count = self._waiting, MAX_ENDINGS_PER_CALL
        if sum(map(PAYLOAD_BYTES, endings)) >= MAX_ENDING_BYTES:  # rare, and slower to find where
            sizes = enumerate(accumulate(map(PAYLOAD_BYTES, endings)), 1)
            count = min(count, next(n for n, size in sizes if size >= MAX_ENDING_BYTES))
        endings, self._waiting = endings[:count], endings[count:]
        self._sent += len(endings)
        self._turnover.note_ended(len(endings), time.monotonic())
        return endings

    def confirm(self, endings: list[RunEnding]) -> None:
        """The server has confirmed these outcomes: their runs leave the table."""
        self._leases.drop(len(endings))
        self._sent -= len(endings)
        if not self:
            self._activity.unreported.discard(self._queue)
        self._table.free([ending.slot for ending in endings if ending.slot >= 0])
        self._activity.note_reported(self._queue, endings)

    def give_back(self, endings: list[RunEnding]) -> None:
        """These outcomes could not be reported: they wait again, before the others."""
        self._sent -= len(endings)
        self._waiting = endings + self._waiting
