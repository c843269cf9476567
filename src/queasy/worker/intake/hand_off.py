"""Which queue may send jobs to this worker together with the wake-up (hand-off)."""

from __future__ import annotations

from collections.abc import Sequence

from queasy.worker.intake.queue_state import QueueState

__all__ = ["HandOffPolicy"]


class HandOffPolicy:
    """One queue at a time, and only while the worker is idle.

    A handler may block the event loop, and a blocked worker does not notice a job that it was
    handed. So only a worker with nothing to do accepts hand-offs, and only from the queue whose
    jobs came last. As soon as another job arrives, the worker tells that queue before the job
    begins.
    """

    def __init__(self, queues: Sequence[QueueState]) -> None:
        self._queues = queues
        self._last_served = queues[0] if len(queues) == 1 else None
        self._accepting: QueueState | None = None

    def note_job(self, queue: QueueState) -> None:
        """A job of this queue starts."""
        self._last_served = queue

    def offer(self, queue: QueueState, *, idle: bool) -> bool:
        """Whether the poll that is about to be sent accepts a hand-off from this queue."""
        others_in_flight = any(other.calls for other in self._queues if other is not queue)
        accepts = queue is self._last_served and idle and not others_in_flight
        if accepts:
            self._accepting = queue
        else:
            self.withdraw(queue)
        return accepts

    def withdraw(self, queue: QueueState) -> None:
        """The queue does not hand jobs to this worker any more."""
        if self._accepting is queue:
            self._accepting = None

    def revoke_other_than(self, queue: QueueState) -> QueueState | None:
        """Accept no more hand-offs: a job of `queue` arrived. Returns the other queue that must be
        told so before the job begins, if there is one.
        """
        accepting, self._accepting = self._accepting, None
        return None if accepting is queue else accepting
