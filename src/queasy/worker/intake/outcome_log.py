"""The log lines about outcomes: what the server made of each run."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from queasy.worker.events import Flood, event, log
from queasy.worker.execution.run import RunEnding

__all__ = ["OutcomeLog"]

# The server's word for what became of a run, and our event.
EVENTS = {
    "finished": ("job_finished", logging.DEBUG),
    "retried": ("job_retried", logging.INFO),
    "timed_out": ("job_timed_out", logging.WARNING),
    "failed": ("job_failed", logging.WARNING),
    "broken": ("job_broken", logging.WARNING),
    "postponed": ("job_postponed", logging.WARNING),  # the broken record is full
    "released": ("job_released", logging.INFO),
    "cancelled": ("job_cancelled", logging.INFO),
    # The lease was lost; or a first report succeeded, its answer was lost, and this is a second.
    "lost": ("outcome_refused", logging.WARNING),
}


class OutcomeLog:
    """Logs the outcomes of one queue."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._flood = Flood(log, f"queue={queue}: jobs retried, failed or broken")

    def log(self, endings: Sequence[RunEnding], words: Sequence[str]) -> None:
        """Log what became of these runs. Of an error only its type: the message may quote data."""
        all_of_them = log.isEnabledFor(logging.DEBUG)
        if not all_of_them and words.count("finished") == len(words):
            return
        for ending, word in zip(endings, words, strict=False):
            if (word != "finished" and not _was_given_back(ending, word)) or all_of_them:
                what, level = EVENTS.get(word, (word, logging.INFO))
                if all_of_them or self._flood.admit():
                    error = getattr(ending.outcome, "error", None)
                    event(what, level, queue=self._queue, job=ending.id, token=ending.token,
                          error=error and error.type)  # fmt: skip


def _was_given_back(ending: RunEnding, word: str) -> bool:
    """Whether the supervisor gave the job back before: "lost" is then expected."""
    return word == "lost" and ending.given_back
