"""One run: a job from its start to its outcome."""

from __future__ import annotations

import asyncio
import math
from typing import Any, Literal

import msgspec

from queasy.job import Job
from queasy.options import UNLIMITED
from queasy.store.records import Ending
from queasy.worker.execution.thread_pool import InterruptibleCall
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
    ready_at: float
    """When the worker could have called the handler."""
    safe_until: float
    """The lease lasts at least until then, even if the server does not extend it."""
    slot: int = NOT_IN_TABLE
    """Its place in the in-flight table."""
    deadline: float = math.inf
    """Of the run clock, which does not pass while the worker is frozen; so is `interrupt_at`."""
    task: asyncio.Future[Any] | None = None
    call: InterruptibleCall | None = None
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

    def begin(
        self, table: InflightTable, now: float, task: asyncio.Future[Any] | None = None
    ) -> None:
        """The handler is about to be called, an async one in this task. The timeout counts from
        `now`, of the run clock. The run is in the table before anything else happens. If its slot
        is GIVEN_BACK then, it must not begin: the supervisor has given the job back.
        """
        job = self.job
        timeout: Any = job.options.timeout  # as in `timeout`
        if timeout is not None and timeout != UNLIMITED:
            self.deadline = now + timeout
        self.slot = table.start_run(self.queue, job.id, job.token, now, self.deadline)
        self.task = task

    def begin_call(self, call: InterruptibleCall) -> None:
        """A plain function is about to be called."""
        self.call = call

    def enter_thread(self, returned: asyncio.Future[Any]) -> None:
        """A thread calls the plain function; this is done when it returned."""
        self.task = returned

    def report_after(self, ending: RunEnding) -> None:
        self.endings_after += (ending,)

    def request_end(self, reason: EndReason, now: float) -> None:
        """Cancel the task of an async handler, or schedule the interruption of a plain function."""
        self.end_reason = reason
        if self.call is None and self.task is not None:
            self.task.cancel()
        else:
            self.interrupt_at = now + (CANCEL_GRACE if reason == "cancel" else 0.0)

    def interrupt_if_due(self, now: float) -> None:
        if now >= self.interrupt_at and self.call is not None:
            self.call.interrupt()
