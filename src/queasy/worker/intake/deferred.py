"""Jobs that a worker holds and has not started yet.

1. A suspect, a job that ran in a worker that died, waits until it can run alone.
2. A successor waits until an earlier run of the same id has ended here. There are two because the
   server forgot the lease of the earlier run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

import msgspec

from queasy.job import Job
from queasy.outcomes import Cancel, Release
from queasy.worker.events import event
from queasy.worker.execution.runs import Runs
from queasy.worker.execution.units import Units
from queasy.worker.intake.lease_ledger import LeaseKey
from queasy.worker.intake.queue_state import QueueState
from queasy.worker.liveness.inflight_table import InflightTable

__all__ = ["DeferredJobs"]

# How long, at first, other runs may take to end before a suspect is released, in seconds.
FIRST_SUSPECT_HOLD = 2.0


class _Deferred(msgspec.Struct, frozen=True, eq=False):
    queue: QueueState
    job: Job
    size: int = 0
    """Room that is reserved for a successor: other jobs must not have it when it can start."""

    @property
    def lease(self) -> LeaseKey:
        return self.job.id, self.job.token


class DeferredJobs:
    """Starts suspects when they can run alone, and gives successors back when they can start."""

    def __init__(
        self, queues: Sequence[QueueState], runs: Runs, table: InflightTable, capacity: int
    ) -> None:
        self._queues = queues
        self._runs = runs
        self._table = table
        self._capacity = capacity
        self._suspects: list[_Deferred] = []
        self._successors: list[_Deferred] = []
        self._suspect_runs = False
        """A suspect was started, and has not ended."""
        self._avoids_queues = False
        """Queues with suspects are avoided until the runs here have ended."""
        self._hold_seconds, self._hold_until = FIRST_SUSPECT_HOLD, 0.0

    def __bool__(self) -> bool:
        """Whether there is anything to advance."""
        return bool(self._suspects or self._successors or self._suspect_runs or self._avoids_queues)

    def __len__(self) -> int:
        return len(self._suspects) + len(self._successors)

    def of_queue(self, queue: QueueState) -> list[Job]:
        deferred = self._suspects + self._successors
        return [held.job for held in deferred if held.queue is queue]

    def reserved(self) -> Units:
        """Room that is kept for successors."""
        units = Units()
        for held in self._successors:
            units.add(held.size, is_async=held.queue.is_async)
        return units

    @property
    def exclusive(self) -> bool:
        """A suspect runs, or is about to: nothing else may start."""
        return self._suspect_runs or bool(self._suspects)

    def release_suspects(self, queues: Collection[QueueState]) -> None:
        """Release the suspects of these queues. Successors wait for the earlier run in any case."""
        for held in self._suspects:
            if held.queue in queues:
                held.queue.add_ending_of(held.job, Release())
        self._suspects = [held for held in self._suspects if held.queue not in queues]

    def drop(self, queue: QueueState, leases: set[LeaseKey]) -> None:
        """The server does not know these leases: their jobs must not start."""

        def keep(deferred: list[_Deferred]) -> list[_Deferred]:
            return [
                held for held in deferred if held.queue is not queue or held.lease not in leases
            ]

        before = len(self._suspects) + len(self._successors)
        self._suspects, self._successors = keep(self._suspects), keep(self._successors)
        queue.leases.drop(before - len(self._suspects) - len(self._successors))

    # Suspects

    def add_suspect(self, queue: QueueState, job: Job) -> None:
        self._hold_until = time.monotonic() + self._hold_seconds
        self._suspects.append(_Deferred(queue, job))

    def cancel(self, queue: int, id_: str, token: int) -> bool:
        """Cancel a suspect that has not started. Returns whether there was one."""
        for held in self._suspects:
            if (held.queue.index, *held.lease) == (queue, id_, token):
                self._suspects.remove(held)
                held.queue.add_ending_of(held.job, Cancel())
                return True
        return False

    def advance_suspects(self, *, busy: bool) -> None:
        """Start the first suspect if it can run alone now; release all if they waited too long.

        `busy`: the worker is closing, or jobs are on their way.
        """
        if self._runs:
            if self._suspects and time.monotonic() > self._hold_until:
                self._give_up_waiting()
            return
        self._suspect_runs = self._avoids_queues = False
        for queue in self._queues:
            queue.stop_avoiding()
        # All outcomes are reported first: they would be lost if the suspect killed the process.
        busy = busy or any(queue.busy for queue in self._queues)
        ready = [held for held in self._suspects if not held.queue.leases.stale]
        if ready and not busy:
            self._isolate(ready[0])

    def _isolate(self, held: _Deferred) -> None:
        queue, job = held.queue, held.job
        self._suspects.remove(held)
        self._suspect_runs, self._hold_seconds = True, FIRST_SUSPECT_HOLD
        event("suspect_isolated", queue=queue.name, job=job.id, stalls=job.stall_count)
        self._runs.start(queue.index, queue.service, [job], self._capacity)

    def _give_up_waiting(self) -> None:
        """Release the suspects to other workers, because the runs here take long.

        Other queues get their turn. If the suspects come back, since all workers are busy, they are
        held for twice as long.
        """
        self._avoids_queues = True
        until = time.monotonic() + self._hold_seconds
        for held in self._suspects:
            held.queue.avoid(until)
        self._hold_seconds *= 2
        self._table.set_declined()
        self.release_suspects(self._queues)

    # Successors

    def add_successor(self, queue: QueueState, job: Job, size: int) -> None:
        self._successors.append(_Deferred(queue, job, size))

    def advance_successors(
        self, accept: Callable[[QueueState, Sequence[Job]], None], *, closing: bool
    ) -> None:
        """Pass each successor to `accept`, which defers it again if its earlier run goes on."""
        waiting, self._successors = self._successors, []
        for held in waiting:
            if held.queue.leases.stale and not closing:
                self._successors.append(held)
            else:
                accept(held.queue, [held.job])
