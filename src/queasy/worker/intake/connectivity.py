"""What a worker says of the server: that it is away, and that it is back."""

from __future__ import annotations

import logging
import time

from queasy.errors import AccessDenied, ProtocolError
from queasy.worker.events import event

__all__ = ["Reach"]


class Reach:
    """Whether the server answers: said once when it stops, and once when it does again."""

    def __init__(self, client: str) -> None:
        self._client = client
        self._away = 0.0
        self._deaf = False
        self._unusable: set[str] = set()

    @property
    def answers(self) -> bool:
        return not self._away

    def failed(self, queue: str, problem: Exception) -> None:
        if isinstance(problem, ProtocolError):  # the server is there: this queue's keys are wrong
            if queue not in self._unusable:
                self._unusable.add(queue)
                event("queue cannot be used", logging.ERROR, queue=queue, client=self._client,
                      error=problem)  # fmt: skip
        elif not self._away:
            self._away = time.monotonic()
            refused = isinstance(problem, AccessDenied)
            what = "server refuses this user" if refused else "server away"
            event(what, logging.WARNING, client=self._client, error=problem)

    def deaf(self, problem: Exception) -> None:
        if not self._deaf:
            self._deaf = True
            event("wake-ups cannot be heard", logging.WARNING, client=self._client, error=problem)

    def answered(self, queue: str) -> None:
        if queue in self._unusable:
            self._unusable.discard(queue)
            event("queue can be used again", queue=queue, client=self._client)
        if self._away:
            event("server back", client=self._client, seconds=time.monotonic() - self._away)
            self._away = 0.0
