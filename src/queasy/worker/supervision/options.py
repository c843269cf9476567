"""How to run the workers of an application, and the part of it that each child needs."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from queasy.options import check_whole, seconds
from queasy.worker.lease_times import DEFAULT_LEASE, LeaseTimes
from queasy.worker.plan import CAPACITY, MOST_CAPACITY, MOST_PROCESSES
from queasy.worker.supervision.messages import ChildConfig
from queasy.worker.supervision.reload import check_reload

__all__ = ["SupervisorOptions", "child_config"]

MAX_QUEUES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorOptions:
    """How to run the workers of an application."""

    app: str
    processes: int
    queues: tuple[str, ...] | None = None
    registered: tuple[str, ...] = ()
    """Queues that have a handler in this process. The children must have handlers for them, too."""
    handlers: tuple[tuple[str, str], ...] = ()
    """Queues and references of functions that the children register besides those they import."""
    capacity: int = CAPACITY
    grace: float = 30.0
    lease: float = DEFAULT_LEASE
    """After this many seconds of silence a worker counts as dead."""
    max_jobs: int | None = None
    """A child starts at most this many jobs, and is replaced."""
    max_memory: int | None = None
    """Bytes. A child that uses more is replaced; one that uses 1.5 times as much is killed."""
    reload: bool = False
    """Replaces the children whenever the code changes."""
    log_level: str = "info"
    log_format: str = "text"
    log_errors: str = "traceback"

    def __post_init__(self) -> None:
        check_whole(self.processes, "processes", 1, MOST_PROCESSES)
        check_whole(self.capacity, "capacity", 1, MOST_CAPACITY)
        seconds(self.grace, "grace")
        LeaseTimes.checked(self.lease)
        for value, name in ((self.max_jobs, "max_jobs"), (self.max_memory, "max_memory")):
            if value is not None:
                check_whole(value, name, 1, 2**62)
        if self.reload:
            check_reload()


def child_config(options: SupervisorOptions, group: str, unserved: Collection[str]) -> ChildConfig:
    """The configuration of a new child, without its client id and descriptors."""
    return ChildConfig(
        app=options.app, path=[path or str(Path.cwd()) for path in sys.path],
        client="", group=group, capacity=options.capacity,
        processes=options.processes, grace=options.grace, lease=options.lease,
        queues=None if options.queues is None else list(options.queues),
        registered=options.registered, handlers=options.handlers,
        unserved=sorted(unserved), max_jobs=options.max_jobs, max_queues=MAX_QUEUES,
        control=-1, parent_pipe=-1, table=-1,
        log_level=options.log_level, log_format=options.log_format,
        log_errors=options.log_errors,
    )  # fmt: skip
