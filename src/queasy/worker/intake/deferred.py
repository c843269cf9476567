"""What a worker holds and has not started.

1. A suspect, a job that was there when a worker died, waits until it can be alone.
2. A job of which an earlier run goes on here, for the server forgot that one, waits for its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from queasy.job import Job
from queasy.outcomes import Cancel, Outcome, Release
from queasy.store.records import Ending
from queasy.worker.events import event
from queasy.worker.execution.runs import Runs, Units
from queasy.worker.intake.subscription import Lease, Line
from queasy.worker.liveness.inflight_table import InflightTable

__all__ = ["Held"]

# So long, at first, the other runs have to end when there is a suspect.
HOLD = 2.0


class Held:
    """See above. It starts suspects itself, and gives those behind back to be `accept`ed again."""

    def __init__(
        self,
        lines: Sequence[Line],
        runs: Runs,
        reserved: Units,
        table: InflightTable,
        capacity: int,
    ) -> None:
        self.alone = False
        """A suspect runs."""
        self._lines = lines
        self._runs = runs
        self._reserved = reserved
        self._table = table
        self._capacity = capacity
        self._suspects: list[tuple[Line, Job]] = []
        self._behind: list[tuple[Line, Job, int]] = []
        """With the room that is kept for each: others must not have it when it can start."""
        self._hold, self._hold_until = HOLD, 0.0

    def of(self, line: Line) -> list[Job]:
        suspects = [job for other, job in self._suspects if other is line]
        return suspects + [job for other, job, _ in self._behind if other is line]

    @property
    def in_the_way(self) -> bool:
        """Nothing else is to start: a suspect runs, or is about to."""
        return self.alone or bool(self._suspects)

    def release(self, lines: Collection[Line]) -> None:
        """Suspects of these; what is behind another run has to wait for its end in any case."""
        for line, job in self._suspects:
            if line in lines:
                _end(line, job, Release())
        self._suspects = [held for held in self._suspects if held[0] not in lines]

    def forget(self, line: Line, leases: set[Lease]) -> None:
        """The server does not know of these: they are not to start."""
        for held in [held for held in self._suspects if _is_of(held, line, leases)]:
            self._suspects.remove(held)
            line.drop(1)
        for held in [held for held in self._behind if _is_of(held, line, leases)]:
            self._behind.remove(held)
            self._reserved.add(line, -held[2])
            line.drop(1)

    # Suspects

    def suspect(self, line: Line, job: Job) -> None:
        self._hold_until = time.monotonic() + self._hold
        self._suspects.append((line, job))

    def cancel(self, index: int, id_: str, token: int) -> bool:
        """Whether it was a suspect that had not started."""
        for line, job in self._suspects:
            if (line.index, job.id, job.token) == (index, id_, token):
                self._suspects.remove((line, job))
                _end(line, job, Cancel())
                return True
        return False

    def start_suspect(self, *, busy: bool) -> None:
        """The first of them, if it can be alone now."""
        if self._runs:
            if self._suspects and time.monotonic() > self._hold_until:
                self._let_go()
            return
        self.alone = False
        for line in self._lines:
            line.avoid_until = 0.0
        # What others did is reported before: should it die, they would have done it for nothing.
        busy = busy or any(line.busy for line in self._lines)
        sure = [held for held in self._suspects if not held[0].unsure]
        if sure and not busy:
            line, job = sure[0]
            self._suspects.remove(sure[0])
            self.alone, self._hold = True, HOLD
            event("suspect alone", queue=line.service.name, job=job.id, stalls=job.stall_count)
            self._runs.start(line, job, self._capacity)

    def _let_go(self) -> None:
        """What runs here takes long: another may have the suspects, and the other queues their
        turn. Should they come back, because all are as busy, they are held for longer.
        """
        for line, _ in self._suspects:
            line.avoid_until = time.monotonic() + self._hold
        self._hold *= 2
        self._table.declined = True
        self.release(self._lines)

    # Those behind

    def behind(self, line: Line, job: Job, size: int) -> None:
        self._behind.append((line, job, size))
        self._reserved.add(line, size)

    def start_behind(self, accept: Callable[[Line, Job], None], *, closing: bool) -> None:
        """Those whose earlier run has ended; the others are put behind it again."""
        waiting, self._behind = self._behind, []
        for line, job, size in waiting:
            if line.unsure and not closing:
                self._behind.append((line, job, size))
            else:
                self._reserved.add(line, -size)
                accept(line, job)


def _is_of(held: tuple[Any, ...], line: Line, leases: set[Lease]) -> bool:
    return held[0] is line and (held[1].id, held[1].token) in leases


def _end(line: Line, job: Job, outcome: Outcome) -> None:
    line.endings.append(Ending(job.id, job.token, outcome))
