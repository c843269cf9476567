"""The job that runs here: in this task, in the tasks it started, or in this thread."""

from __future__ import annotations

from contextvars import ContextVar

import msgspec

from queasy.job import Job
from queasy.store.keys import QueueKeys

__all__ = ["RUNNING", "current_job", "is_current", "job_for_handler"]

RUNNING: ContextVar[tuple[QueueKeys, Job] | None] = ContextVar("queasy_running", default=None)
"""The queue and the job of the run that this code belongs to. Only the executor sets it."""


def current_job() -> Job | None:
    """The job whose handler runs here; None outside of a run.

    Tasks that the handler starts belong to its run, and so does `asyncio.to_thread`. A thread that
    it starts by itself does not, unless it runs in a copy of the context.
    """
    running = RUNNING.get()
    return None if running is None else job_for_handler(running[1])


def is_current(keys: QueueKeys, id_: str) -> bool:
    """Whether the job of this id in this queue runs here. Servers are not compared."""
    running = RUNNING.get()
    return running is not None and running[1].id == id_ and running[0] == keys


def job_for_handler(job: Job) -> Job:
    """The job as its handler gets it. A fail handler gets the job that was given up, not the fail
    queue's copy of it.
    """
    return job if job.origin is None else msgspec.structs.replace(job.origin, flag=job.flag)
