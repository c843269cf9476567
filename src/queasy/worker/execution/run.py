"""One run: a job from its start to its outcome."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any, Literal

import msgspec

from queasy.job import Job
from queasy.options import UNLIMITED
from queasy.store.records import Ending
from queasy.worker.execution.interruptible import Interruptible
from queasy.worker.liveness.inflight_table import GIVEN_BACK, NOT_IN_TABLE, InflightTable
from queasy.worker.plan import Service

__all__ = ["EndReason", "Run", "RunEnding"]

EndReason = Literal["timeout", "cancel", "stop"]
# A plain function that polls `job.cancelled` has this long to end by itself before the worker
# interrupts it, in seconds.
CANCEL_GRACE = 0.5


class RunEnding(Ending, frozen=True):
    """The outcome of a job in a worker, with what the worker does once it is reported."""

    slot: int = NOT_IN_TABLE
    """The run's place in the in-flight table. It is freed when the outcome is reported."""

    @property
    def given_back(self) -> bool:
        """Whether the supervisor gave the job back before the handler was called."""
        return self.slot == GIVEN_BACK


class Run(msgspec.Struct, eq=False):
    """One job, from its start to its outcome. Only its own methods change it."""

    queue: int
    """The index of its queue in the worker's plan."""
    service: Service
    is_async: bool
    job: Job
    size: int
    """Units of capacity that it occupies here, from its arrival to its end: fewer than `units`
    while the functions of its queue are short."""
    units: int
    """Units that it occupies while a thread runs it: more than `size` if jobs are short."""
    ready_at: float
    """When the worker could have called the handler, on the monotonic clock."""
    safe_until: float
    """The lease lasts at least until then, even if the server does not extend it."""
    waited: float = 0.0
    """For how many seconds it was ready before it began."""
    slot: int = NOT_IN_TABLE
    """Its place in the in-flight table."""
    deadline: float = math.inf
    """Of the run clock, which does not pass while the worker is frozen; so is `interrupt_at`."""
    task: asyncio.Future[Any] | None = None
    calls: Interruptible | None = None
    """Where a plain function runs, so that it can be interrupted."""
    end_reason: EndReason | None = None
    """Why it was asked to end, if it was."""
    interrupt_at: float = math.inf
    endings_after: tuple[RunEnding, ...] = ()
    """Endings of other leases of the same id that the server still remembers. They are reported
    after this run has ended: earlier, another worker could start the job beside it."""

    @property
    def timeout(self) -> float | None:
        """Seconds; None for no limit."""
        # A job's options are validated when they are read.
        timeout: Any = self.job.options.timeout
        return None if timeout == UNLIMITED else timeout

    def begin(self, table: InflightTable, task: asyncio.Task[Any] | None = None) -> bool:
        """Whether the handler may be called now, an async one in this task.

        The run is in the table before anything else happens. Its timeout counts from now on. It may
        not begin if it was asked to end, if its lease may be over, or if the supervisor has given
        the job back: the slot is GIVEN_BACK then.
        """
        # In this order: a freeze between the two makes the deadline later, never earlier.
        frozen, now = table.frozen_seconds, time.monotonic()
        if now > self.safe_until and self._lease_may_be_over(table, now):
            self.end_reason = self.end_reason or "stop"
        if self.end_reason is not None:
            return False
        job = self.job
        timeout: Any = job.options.timeout  # as in `timeout`
        if timeout is not None and timeout != UNLIMITED:
            self.deadline = now - frozen + timeout
        self.slot = table.start_run(self.queue, job.id, job.token, now - frozen, self.deadline)
        if self.slot == GIVEN_BACK:
            self.end_reason = "stop"
            return False
        self.task = task
        self.waited = now - self.ready_at
        return True

    def _lease_may_be_over(self, table: InflightTable, now: float) -> bool:
        """Whether another client may have the job by now.

        True if the server has not confirmed the lease by the cut-off: the process was frozen after
        it received the job, and before the run began.
        """
        cut_off = table.times.cut_off
        if now - table.requested_at(self.queue) <= cut_off:
            return False
        return now - table.confirmed_at(self.queue) > cut_off

    def charge_in_full(self) -> None:
        """It is not short."""
        self.size = self.units

    def enter_thread(self, calls: Interruptible) -> None:
        """A thread is about to call the plain function."""
        self.calls = calls

    def report_after(self, ending: RunEnding) -> None:
        self.endings_after += (ending,)

    def request_end(self, reason: EndReason, now: float) -> None:
        """Cancel the task of an async handler, or schedule the interruption of a plain function."""
        self.end_reason = reason
        if self.task is not None:
            self.task.cancel()
        else:
            self.interrupt_at = now + (CANCEL_GRACE if reason == "cancel" else 0.0)

    def interrupt_if_due(self, now: float) -> None:
        if now >= self.interrupt_at and self.calls is not None:
            self.calls.interrupt(self)
