"""The jobs that a worker holds, running or about to start, and the room they take."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from queasy.job import Job
from queasy.outcomes import Release
from queasy.store.records import LeaseKey, Taken
from queasy.worker.events import event
from queasy.worker.execution.runs import RunListener, Runs
from queasy.worker.intake.capacity import Room, fits_many
from queasy.worker.intake.deferred import DeferredJobs
from queasy.worker.intake.hand_off import HandOffPolicy
from queasy.worker.intake.queue_state import Call, QueueState
from queasy.worker.liveness.inflight_table import InflightTable

__all__ = ["Holdings"]

# Prefetched jobs wait for room as long as runs end. After this many passes of the event loop in
# which none ended, those that do not fit are released.
MAX_PASSES_WITHOUT_PROGRESS = 10


class Holdings:
    """Starts, defers or releases each job that arrives, and accounts for all of them."""

    def __init__(
        self,
        queues: Sequence[QueueState],
        table: InflightTable,
        capacity: int,
        listener: RunListener,
        max_jobs: int | None = None,
    ) -> None:
        self.runs = Runs(table, capacity, listener)
        self.deferred = DeferredJobs()
        self.hand_off = HandOffPolicy(queues)
        self.closing = False
        """The worker takes no more jobs."""
        self._queues = queues
        self._activity = queues[0].activity
        self._table = table
        self._capacity = capacity
        self._max_jobs = max_jobs

    # State

    @property
    def jobs_left(self) -> int | None:
        """How many more jobs may start; None if there is no limit."""
        if self._max_jobs is None:
            return None
        return max(0, self._max_jobs - self.runs.started_count - len(self.deferred))

    def room(self) -> Room:
        """The capacity at this moment: in use, reserved, and usable at the present pace."""
        reserved = self.deferred.reserved()
        for is_async in (True, False):
            reserved.add(self._activity.reserved.of(is_async=is_async), is_async=is_async)
        ahead = self._activity.reserved_ahead
        return Room(self._capacity, self.runs.used, reserved, ahead)

    def jobs(self) -> int:
        """How many jobs are in this process: held, not reported, or perhaps on their way."""
        return self._held() + self._activity.requested

    def _held(self) -> int:
        unreported = sum(len(self._queues[index].outcomes) for index in self._activity.unreported)
        return len(self.runs) + len(self.deferred) + unreported

    def admits(self, job: Job, more: int = 0) -> bool:
        """Whether the job may start, after `more` others.

        The number of jobs in this process is limited if one of them, or this job, is a suspect.
        """
        others = self._held() + more
        return others < self._table.slots and self._activity.admits(job.companions, others)

    def _admits_all(self, jobs: Sequence[Job]) -> bool:
        """Whether all these jobs may start: a quick check for jobs that are not suspects.

        If it is False, some may start nevertheless: `admits` decides about each.
        """
        suspects = [job for job in jobs if job.companions is not None]
        if suspects or self._activity.most_jobs is not None:
            return False
        return self._held() + len(jobs) <= self._table.slots

    def units_of(self, queue: QueueState) -> int:
        return sum(run.size for run in self.runs.of_queue(queue.index))

    def has_nothing_of(self, queue: QueueState) -> bool:
        runs_or_waits = self.runs.of_queue(queue.index) or self.deferred.of_queue(queue)
        return not queue.busy and not runs_or_waits

    def leases_of(self, queue: QueueState) -> set[LeaseKey]:
        """The leases that this worker accounts for."""
        runs = self.runs.of_queue(queue.index)
        jobs = self.deferred.of_queue(queue) + [run.job for run in runs]
        later = {(ending.id, ending.token) for run in runs for ending in run.endings_after}
        return queue.held_leases() | {(job.id, job.token) for job in jobs} | later

    # Arriving jobs

    def note_answer(self, queue: QueueState, call: Call, taken: Taken) -> None:
        """A dequeue was answered: raise the pace if all earlier handlers have ended, or all await.

        Also note whether there may be more jobs than fit.
        """
        many = fits_many(self._capacity, queue.portions.size(self.runs.pace))
        drained = not self.runs.has_of(queue.index)
        ended_first = queue.note_arrival(call, taken, fits_many=many, drained=drained)
        if taken.count == call.limit:  # there may be more
            self.runs.note_unmet_demand()
        all_await = queue.is_async and queue.portions.has_more and self.runs and self.runs.all_begun
        if ended_first or all_await:
            self.runs.pace.hasten()

    async def start_while_room_is_short(self, queue: QueueState, taken: Taken) -> int:
        """Start prefetched jobs as runs end, until there is room for the rest or no run ends.

        There may be more prefetched jobs than room for them. Returns how many it started.
        """
        started, passes, ended = 0, 0, self.runs.ended_count
        while passes < MAX_PASSES_WITHOUT_PROGRESS:
            fit = self._startable(queue)
            if fit >= taken.count - started:
                break
            if fit:
                self.accept(queue, taken.jobs[started : started + fit])
                self.runs.go()
                started += fit
            await asyncio.sleep(0)
            passes = passes + 1 if self.runs.ended_count == ended else 0
            ended = self.runs.ended_count
        return started

    def _startable(self, queue: QueueState) -> int:
        """How many prefetched jobs of the queue can start now."""
        size = queue.portions.size(self.runs.pace)
        return self.room().jobs_that_start_now(size)

    def start(self, queue: QueueState, call: Call, taken: Taken, started: int = 0) -> None:
        """Start the jobs that fit. The others go back to the front of their queue.

        `started`: how many have started already.
        """
        upto = started + self._startable(queue) if call.prefetch else taken.count
        self.accept(queue, taken.jobs[started:upto] if started else taken.jobs[:upto])
        if upto < taken.count:
            queue.portions.suspend_early_requests()
            self.accept(queue, taken.jobs[upto:], fit=False)
        for cancelled in taken.cancels:
            self.runs.cancel(queue.index, cancelled.id, cancelled.token)

    def accept(self, queue: QueueState, jobs: Sequence[Job], *, fit: bool = True) -> None:
        """Start jobs, defer them, or release them."""
        jobs_left = self.jobs_left
        if jobs_left is not None and len(jobs) > jobs_left:
            self._release(queue, jobs[jobs_left:])
            jobs = jobs[:jobs_left]
        size = queue.portions.size(self.runs.pace)
        if self.runs.has_any(queue.index, jobs):
            jobs = self._defer_successors(queue, jobs, size)
        # The worker requested the jobs, but has less room than it expected, or takes no more jobs.
        if not (fit and queue.serving and not self.closing):
            self._release(queue, jobs)
            return
        ready = jobs if self._admits_all(jobs) else self._admit_each(queue, jobs)
        if ready:
            self.hand_off.note_jobs(queue)
            self.runs.start(queue.index, queue.service, ready, size)

    def _defer_successors(self, queue: QueueState, jobs: Sequence[Job], size: int) -> list[Job]:
        """Defer each job that has an earlier run here; return the others.

        The earlier run has lost its lease. The job must not start again, here or in another worker,
        before that run has ended.
        """
        others: list[Job] = []
        for job in jobs:
            if (earlier := self.runs.find(queue.index, job.id)) is None:
                others.append(job)
            else:
                self.runs.request_end(earlier, "stop")
                self.deferred.add(queue, job, size)
        return others

    def _admit_each(self, queue: QueueState, jobs: Sequence[Job]) -> list[Job]:
        """Release each job that may not start beside the others; return the rest."""
        ready: list[Job] = []
        for job in jobs:
            if self.admits(job, len(ready)):
                ready.append(job)
                if job.companions is not None:
                    self._note_suspect(queue, job, job.companions)
            else:
                self._release(queue, [job])
        return ready

    def _release(self, queue: QueueState, jobs: Sequence[Job]) -> None:
        for job in jobs:
            queue.outcomes.add_of(job, Release())

    def _note_suspect(self, queue: QueueState, job: Job, companions: int) -> None:
        self._activity.note_suspect(queue.index, job.token, companions)
        if companions == 0:
            event("suspect_isolated", queue=queue.name, job=job.id, stalls=job.stall_count)

    def advance_deferred(self) -> None:
        """Start the deferred jobs that can start now."""
        if self.deferred:
            self.deferred.advance(self.accept, closing=self.closing)

    # Ending

    def close(self) -> None:
        """Take no more jobs. Running jobs continue."""
        self.closing = True

    def release(self, queues: Collection[QueueState]) -> None:
        """Stop all runs of these queues, and release their jobs."""
        for queue in queues:
            for run in self.runs.of_queue(queue.index):
                self.runs.request_end(run, "stop")

    def forget(self, queue: QueueState, leases: set[LeaseKey]) -> None:
        """The server does not have these leases: stop their runs, and do not start their jobs."""
        for run in self.runs.of_queue(queue.index):
            if (run.job.id, run.job.token) in leases:
                self.runs.request_end(run, "stop")
        self.deferred.drop(queue, leases)

    def dispose(self) -> None:
        self.closing = True
        self.runs.close()
