"""How many jobs of a queue fit into a worker. Pure arithmetic on one moment's figures.

Running jobs occupy units of the worker's capacity, and so do answers that are on their way: a
dequeue reserves room for the jobs it may bring.

A worker with room for MANY jobs of a queue keeps server and handlers busy at the same time: a third
of the jobs run, a third are on their way, and a third are requested. The jobs of one call are a
portion. Where jobs are so short that each portion ends before the next one starts, the queue
`prefetches`: every portion may fill the whole capacity, and each reserves only a third of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from queasy.worker.execution.units import Units

__all__ = ["MANY", "Room", "SizedQueue", "fits_many"]

MAX_JOBS_PER_CALL = 1000
MANY = 30
STAGES = 3


class SizedQueue(Protocol):
    """What the room for a queue's jobs depends on."""

    @property
    def is_async(self) -> bool: ...
    @property
    def size(self) -> int:
        """Units of one job."""
        ...

    @property
    def prefetches(self) -> bool: ...
    @property
    def reserved_ahead(self) -> int:
        """Units reserved by calls that prefetch."""
        ...

    @property
    def own_units(self) -> int:
        """Units of the queue's own runs. Read for starved queues only."""
        ...


class Room(msgspec.Struct):
    """The capacity of a worker at one moment: what runs, what is reserved, what is free."""

    capacity: int
    used: Units
    reserved: Units
    usable_async: int
    """Units that async handlers may use at their pace."""
    usable_plain: int

    def copy(self) -> Room:
        """A copy whose reservations may be changed."""
        return msgspec.structs.replace(self, reserved=msgspec.structs.replace(self.reserved))

    def jobs(self, queue: SizedQueue, starved: Sequence[SizedQueue] = ()) -> int:
        """How many jobs of the queue may be requested now, leaving starved queues their room."""
        if queue.reserved_ahead and not queue.prefetches:
            return 0  # more jobs are on their way than room was reserved for: they come first
        portion = self.portion(queue)
        if not self.used.total and not self.reserved.total:
            return portion  # an idle worker runs any job, whatever its size
        kind = queue.is_async
        free = min(
            self.capacity - self.used.total - self.reserved.total,
            self._usable(is_async=kind) - self._occupied(is_async=kind),
        )
        for other in starved:
            free = min(free, self._spare_beside(other, is_async=kind))
        return min(portion, max(0, free * _stages_at_once(queue) // queue.size))

    def portion(self, queue: SizedQueue) -> int:
        """The most jobs to request in one call."""
        slots = self.capacity // queue.size
        if not queue.prefetches:
            slots //= STAGES if slots >= MANY else 2
        return min(MAX_JOBS_PER_CALL, max(1, slots))

    def units(self, queue: SizedQueue, jobs: int) -> int:
        """What to reserve for an answer with that many jobs."""
        return jobs * queue.size // _stages_at_once(queue)

    def jobs_that_start_now(self, size: int, reserved_ahead: int) -> int:
        """How many prefetched jobs can start, beside everything else that has room reserved."""
        others_reserved = self.reserved.total - reserved_ahead
        free = self.capacity - self.used.total - others_reserved
        return max(0, free // size)

    def _usable(self, *, is_async: bool) -> int:
        return self.usable_async if is_async else self.usable_plain

    def _occupied(self, *, is_async: bool) -> int:
        return self.used.of(is_async=is_async) + self.reserved.of(is_async=is_async)

    def _spare_beside(self, starved: SizedQueue, *, is_async: bool) -> int:
        """Units that others may take so that the starved queue's job fits once its own runs end."""
        kind, size = starved.is_async, starved.size
        if size > self._usable(is_async=kind):
            return 0  # such a job fits into an idle worker only
        occupied = self.used.total + self.reserved.total - starved.own_units
        spare = self.capacity - size - occupied
        if kind == is_async:
            occupied = self._occupied(is_async=kind) - starved.own_units
            spare = min(spare, self._usable(is_async=kind) - size - occupied)
        return spare


def fits_many(capacity: int, size: int) -> bool:
    """Whether so many jobs fit that portions of a third keep the worker busy."""
    return capacity // size >= MANY


def _stages_at_once(queue: SizedQueue) -> int:
    """How many portions share the room of one. If a queue prefetches, each portion ends before the
    next one starts.
    """
    return STAGES if queue.prefetches else 1
