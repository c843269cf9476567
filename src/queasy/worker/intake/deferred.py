"""Jobs that a worker holds and has not started yet: successors.

A successor waits until an earlier run of the same id has ended here. There are two because the
server forgot the lease of the earlier run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from queasy.job import Job
from queasy.store.records import LeaseKey
from queasy.worker.execution.units import Units
from queasy.worker.intake.queue_state import QueueState

__all__ = ["DeferredJobs"]


class _Deferred(msgspec.Struct, frozen=True, eq=False):
    queue: QueueState
    job: Job
    size: int
    """Room that is reserved for it: other jobs must not have it when it can start."""

    @property
    def lease(self) -> LeaseKey:
        return self.job.id, self.job.token


class DeferredJobs:
    """Keeps successors, and passes them on when they can start."""

    def __init__(self) -> None:
        self._successors: list[_Deferred] = []

    def __len__(self) -> int:
        return len(self._successors)

    def of_queue(self, queue: QueueState) -> list[Job]:
        return [held.job for held in self._successors if held.queue is queue]

    def reserved(self) -> Units:
        """Room that is kept for successors."""
        units = Units()
        for held in self._successors:
            units.add(held.size, is_async=held.queue.is_async)
        return units

    def drop(self, queue: QueueState, leases: set[LeaseKey]) -> None:
        """The server does not know these leases: their jobs must not start."""
        keep = [
            held for held in self._successors if held.queue is not queue or held.lease not in leases
        ]
        queue.leases.drop(len(self._successors) - len(keep))
        self._successors = keep

    def add(self, queue: QueueState, job: Job, size: int) -> None:
        """Keep a job until the earlier run of its id has ended."""
        self._successors.append(_Deferred(queue, job, size))

    def advance(
        self, accept: Callable[[QueueState, Sequence[Job]], None], *, closing: bool
    ) -> None:
        """Pass each successor to `accept`, which defers it again if its earlier run goes on."""
        waiting, self._successors = self._successors, []
        for held in waiting:
            if held.queue.leases.stale and not closing:
                self._successors.append(held)
            else:
                accept(held.queue, [held.job])
