"""What became of runs, as a worker logs it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from queasy.store.records import Ending
from queasy.worker.events import Flood, event, log

__all__ = ["Became"]

# What became of a run, in the server's word and in ours.
BECAME = {
    "finished": ("job finished", logging.DEBUG),
    "retried": ("job to be retried", logging.INFO),
    "timed_out": ("job timed out, to be retried", logging.WARNING),
    "failed": ("job given up", logging.WARNING),
    "broken": ("job set aside as broken", logging.WARNING),
    "postponed": ("job postponed, the broken record is full", logging.WARNING),
    "released": ("job released", logging.INFO),
    "cancelled": ("job cancelled", logging.INFO),
    # The lease was lost; or the answer to a first report was, and this is the second.
    "lost": ("result refused", logging.WARNING),
}


class Became:
    """Of the runs of one queue."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._told = Flood(log, f"queue={queue}: jobs retried, given up or set aside")

    def note(self, endings: Sequence[Ending], words: Sequence[str]) -> None:
        """What became of runs. Of an error the type only: its message may quote what is nobody's
        business.
        """
        all_of_them = log.isEnabledFor(logging.DEBUG)
        for ending, word in zip(endings, words, strict=False):
            if word != "finished" or all_of_them:
                what, level = BECAME.get(word, (word, logging.INFO))
                if all_of_them or self._told.lets():
                    error = getattr(ending.outcome, "error", None)
                    event(what, level, queue=self._queue, job=ending.id, token=ending.token,
                          error=error and error.type)  # fmt: skip
