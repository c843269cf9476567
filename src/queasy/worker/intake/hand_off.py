"""Which queue may send jobs to this worker together with the wake-up (hand-off)."""

from __future__ import annotations

from collections.abc import Sequence

from queasy.worker.intake.queue_state import QueueState

__all__ = ["HandOffPolicy"]


class HandOffPolicy:
    """Lets one queue at a time hand jobs off, and only while the worker is idle.

    A handler may block the event loop, and a blocked worker does not notice a job that it was
    handed. So only a worker with nothing to do accepts hand-offs, and only from the queue whose
    jobs came last.

    When a job of another queue arrives, the worker asks the server to stop these hand-offs.
    Normally it sends that call before async jobs start. If the queue that hands jobs off has a call
    in flight, the worker waits for the answer first.
    """

    def __init__(self, queues: Sequence[QueueState]) -> None:
        self._last_queue = queues[0] if len(queues) == 1 else None
        self._accepting: QueueState | None = None

    def note_jobs(self, queue: QueueState) -> None:
        """Jobs of this queue start."""
        self._last_queue = queue

    def may_accept(self, queue: QueueState, *, idle: bool) -> bool:
        """Whether the next poll of this queue may accept a hand-off."""
        others_in_flight = queue.activity.calling - {queue.index}
        return queue is self._last_queue and idle and not others_in_flight

    def note_poll(self, queue: QueueState, *, accepts: bool) -> None:
        """A poll is about to be sent that accepts a hand-off, or does not."""
        if accepts:
            self._accepting = queue
        else:
            self.withdraw(queue)

    def withdraw(self, queue: QueueState) -> None:
        """The queue does not hand jobs to this worker any more."""
        if self._accepting is queue:
            self._accepting = None

    def revoke(self, queue: QueueState) -> QueueState | None:
        """Accept no more hand-offs, because a job of `queue` arrived.

        Returns the queue that may still hand jobs off, if it is another one. The caller must ask
        its server to stop.
        """
        accepting, self._accepting = self._accepting, None
        return None if accepting is queue else accepting
