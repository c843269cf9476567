"""Whether the server answers a worker: logged when it stops, and when it answers again."""

from __future__ import annotations

import logging
import time

from queasy.errors import AccessDenied, ProtocolError
from queasy.worker.events import event

__all__ = ["Connectivity"]


class Connectivity:
    """What the calls of one worker, to all its queues, say about the server."""

    def __init__(self, client: str) -> None:
        self._client = client
        self._unreachable_since = 0.0
        self._reported_no_wake_ups = False
        self._unusable: set[str] = set()

    @property
    def answers(self) -> bool:
        return not self._unreachable_since

    def failed(self, queue: str, problem: Exception, began: float) -> None:
        """A call about this queue, which began then, failed after all its tries."""
        if isinstance(problem, ProtocolError):  # the server answers: this queue's keys are damaged
            self.damaged(queue, problem)
        elif not self._unreachable_since:
            self._unreachable_since = began
            denied = isinstance(problem, AccessDenied)
            what = "server_access_denied" if denied else "server_unreachable"
            event(what, logging.WARNING, client=self._client, error=problem)

    def damaged(self, queue: str, problem: ProtocolError) -> None:
        """The server cannot read the keys of this queue."""
        if queue not in self._unusable:
            self._unusable.add(queue)
            event("queue_unusable", logging.ERROR, queue=queue, client=self._client,
                  error=problem)  # fmt: skip

    def cannot_subscribe(self, problem: Exception) -> None:
        if not self._reported_no_wake_ups:
            self._reported_no_wake_ups = True
            event("subscribe_failed", logging.WARNING, client=self._client, error=problem)

    def answered(self, queue: str) -> None:
        """A call about this queue was answered."""
        if queue in self._unusable:
            self._unusable.discard(queue)
            event("queue_usable", queue=queue, client=self._client)
        if self._unreachable_since:
            seconds = time.monotonic() - self._unreachable_since
            event("server_reachable", client=self._client, seconds=seconds)
            self._unreachable_since = 0.0
