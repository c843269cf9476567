"""One run: a job from its start to its outcome."""

from __future__ import annotations

import asyncio
import math
from typing import Any, Literal, cast

import msgspec

from queasy.job import Job
from queasy.store.records import Ending
from queasy.worker.execution.thread_pool import InterruptibleCall
from queasy.worker.plan import Service

__all__ = ["NOT_IN_TABLE", "EndReason", "Run"]

EndReason = Literal["timeout", "cancel", "stop"]
NOT_IN_TABLE = -1
# A plain function that polls `job.cancelled` has this long to end by itself before the worker
# interrupts it, in seconds.
CANCEL_GRACE = 0.5


class Run(msgspec.Struct, eq=False):
    """One job, from its start to its outcome. Only its own methods change it."""

    queue: int
    """The index of its queue in the worker's plan."""
    service: Service
    job: Job
    size: int
    ready_at: float
    """When the worker could have called the handler."""
    slot: int = NOT_IN_TABLE
    """Its place in the in-flight table."""
    deadline: float = math.inf
    task: asyncio.Future[Any] | None = None
    call: InterruptibleCall | None = None
    end_reason: EndReason | None = None
    """Why it was asked to end, if it was."""
    interrupt_at: float = math.inf
    endings_after: list[Ending] = []
    """Endings of other leases of the same id that the server still remembers. They are reported
    after this run has ended: earlier, another worker could start the job beside it."""

    @property
    def timeout(self) -> float | None:
        # Seconds: a job's options are validated when they are read.
        return cast("float | None", self.job.options.timeout)

    def begin(self, now: float) -> None:
        """The handler is about to be called: its timeout counts from now."""
        if self.timeout is not None:
            self.deadline = now + self.timeout

    def enter_table(self, slot: int) -> None:
        self.slot = slot

    def enter_task(self, task: asyncio.Future[Any]) -> None:
        """The task of an async handler, or the future of a plain function's result."""
        self.task = task

    def enter_thread(self, call: InterruptibleCall) -> None:
        """The handler is a plain function; a thread makes this call."""
        self.call = call

    def report_after(self, ending: Ending) -> None:
        self.endings_after.append(ending)

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
