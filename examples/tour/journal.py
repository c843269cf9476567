"""What the jobs of the tour did: a file to which every process appends.

Each line is one write to the end of the file. So the lines of all processes are in the order in
which things happened.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from queasy import Job

JOURNAL = Path("journal")
LOG = Path("worker.log")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the journal."""

    event: str
    queue: str
    id: str
    pid: int
    at: float
    retries: int
    stalls: int
    timeouts: int
    said: Any = None


def note(event: str, job: Job, said: Any = None) -> None:
    counts = (job.retry_count, job.stall_count, job.timeout_count)
    entry = Entry(event, job.queue, job.id, os.getpid(), time.time(), *counts, said)
    os.write(_file(), json.dumps(asdict(entry)).encode() + b"\n")


@cache
def _file() -> int:
    return os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


class Journal:
    """The lines so far. Each read adds the new ones."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._read = 0

    def entries(self, queue: str | None = None, event: str | None = None) -> list[Entry]:
        """The entries of one queue and one event, or all of them."""
        self._read_on()
        return [
            entry
            for entry in self._entries
            if queue in (None, entry.queue) and event in (None, entry.event)
        ]

    def _read_on(self) -> None:
        if not JOURNAL.exists():
            return
        with JOURNAL.open("rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")  # the last line may be half written
        self._read += len(whole) + len(newline)
        self._entries += [Entry(**json.loads(line)) for line in whole.splitlines()]
