"""How much fits into a worker."""

from __future__ import annotations

from collections.abc import Sequence

from queasy.worker.execution.runs import Runs, Units
from queasy.worker.intake.subscription import Line

__all__ = ["Room"]

MOST_JOBS = 1000  # in one call
# Who has room for so many asks for the next ones while the last are on their way: for so many at a
# time, server and worker are busy all the time.
MANY = 30
# Then a third of the jobs run, a third are on their way, and a third are asked for.
STAGES = 3


class Room:
    """What runs, and what was asked for and is on its way, share the capacity."""

    def __init__(self, capacity: int, runs: Runs) -> None:
        self.reserved = Units()
        """For answers that are on their way."""
        self._capacity = capacity
        self._runs = runs

    def of(self, line: Line, starved: Sequence[Line] = ()) -> int:
        """How many jobs of the queue can start now, and keep none waiting that is `starved`."""
        used, held = self._runs.used, self.reserved
        size, kind = line.size(self._runs.pace), line.is_async
        most = self.portion(line)
        if line.ahead and not line.swift:  # more is on its way than was reserved: it comes first
            return 0
        if not used.all and not held.all:  # one fits into a worker with nothing to do
            return most
        free = min(
            self._capacity - used.all - held.all,
            self._part(is_async=kind) - used.of(is_async=kind) - held.of(is_async=kind),
        )
        for other in starved:
            free = min(free, self._beside(other, is_async=kind))
        return min(most, max(0, free * self._stages_in_one(line) // size))

    def units(self, line: Line, jobs: int) -> int:
        """What to reserve for an answer with so many jobs."""
        return jobs * line.size(self._runs.pace) // self._stages_in_one(line)

    def left(self, line: Line) -> int:
        """How many of a swift queue can start now, beside whatever else has room reserved."""
        free = self._capacity - self._runs.used.all - (self.reserved.all - line.ahead)
        return max(0, free // line.size(self._runs.pace))

    def _stages_in_one(self, line: Line) -> int:
        """How many stages share the room of one: of a swift queue all, for each is over before the
        next begins.
        """
        return STAGES if line.swift else 1

    def _part(self, *, is_async: bool) -> int:
        """What handlers of this kind may use, at their pace."""
        return int(self._capacity * self._runs.pace.of(is_async=is_async))

    def _beside(self, starved: Line, *, is_async: bool) -> int:
        """Units that others may have, and its job fits all the same once its own have ended."""
        used, held = self._runs.used, self.reserved
        size, kind = starved.size(self._runs.pace), starved.is_async
        part = self._part(is_async=kind)
        if size > part:  # it fits into a worker with nothing to do only
            return 0
        own = sum(run.size for run in self._runs if run.line is starved)
        room = self._capacity - size - (used.all + held.all - own)
        if kind == is_async:
            room = min(room, part - size - (used.of(is_async=kind) + held.of(is_async=kind) - own))
        return room

    def portion(self, line: Line) -> int:
        """How many to ask for at a time, at most: while some run, as many are on their way."""
        slots = self._capacity // line.size(self._runs.pace)
        if not line.swift:
            slots //= STAGES if slots >= MANY else 2
        return min(MOST_JOBS, max(1, slots))

    def is_for_many(self, line: Line) -> bool:
        return self._capacity // line.size(self._runs.pace) >= MANY
