"""How many jobs of a queue fit into a worker. Pure arithmetic on one moment's figures.

Running jobs occupy units of the worker's capacity, and so do answers that are on their way: a
dequeue reserves room for the jobs it may bring.

A worker with room for MANY jobs of a queue keeps server and handlers busy at the same time: a third
of the jobs run, a third are on their way, and a third are requested. The jobs of one call are a
portion. Where async jobs are so short that each portion ends before the next one starts, the queue
`prefetches`: every portion may fill the whole capacity, and each reserves only a third of it.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from queasy.worker.execution.units import Units

__all__ = ["MANY", "Room", "SizedQueue", "StarvedNeeds", "fits_many"]

MAX_JOBS_PER_CALL = 1000
MANY = 30
STAGES = 3


class SizedQueue(Protocol):
    """The properties of a queue on which the room for its jobs depends."""

    @property
    def is_async(self) -> bool: ...
    @property
    def size(self) -> int:
        """Units of one job."""
        ...

    @property
    def pace(self) -> float:
        """The part of the capacity that its jobs may use."""
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
    reserved_ahead: int = 0
    """Units reserved by calls that prefetch: their jobs are short."""

    def copy(self) -> Room:
        """A copy whose reservations may be changed."""
        return msgspec.structs.replace(self, reserved=msgspec.structs.replace(self.reserved))

    def jobs(
        self, queue: SizedQueue, starved: StarvedNeeds | None = None, *, ready: int = 0
    ) -> int:
        """How many jobs of the queue may be requested now, leaving starved queues their room.

        `ready`: units to allow beyond the capacity, for jobs that begin when others end.
        """
        if queue.reserved_ahead and not queue.prefetches:
            return 0  # more jobs are on their way than room was reserved for: they come first
        portion = self.portion(queue)
        if not self.used.total and not self.reserved.total:
            # An idle worker runs any job, whatever its size. But at a low pace handlers compute,
            # and other workers may be idle: it takes no more than it may run at once.
            return min(portion, max(1, self.usable(queue) // queue.size))
        is_async = queue.is_async
        free = self.capacity - self.used.total - self.reserved.total + ready
        usable = self.usable(queue) + ready
        if starved is not None:
            if starved.needs_idle_worker:
                return 0
            free -= starved.units
            usable = min(usable, starved.most_of_kind.get(is_async, usable))
        free = min(free, usable - self._occupied(is_async=is_async))
        return min(portion, max(0, free * _stages_at_once(queue) // queue.size))

    def portion(self, queue: SizedQueue) -> int:
        """The most jobs to request in one call."""
        slots = self.capacity // queue.size
        if not queue.prefetches:
            slots //= STAGES if slots >= MANY else 2
        return min(MAX_JOBS_PER_CALL, max(1, slots))

    def share(self, queue: SizedQueue, contenders: int) -> int:
        """How many jobs to request if that many queues want to request some at the same time."""
        return max(1, self.capacity // queue.size // contenders)

    def units(self, queue: SizedQueue, jobs: int) -> int:
        """The units to reserve for an answer with this many jobs."""
        return jobs * queue.size // _stages_at_once(queue)

    def jobs_that_start_now(self, size: int) -> int:
        """How many prefetched jobs can start, beside everything else that has room reserved."""
        others_reserved = self.reserved.total - self.reserved_ahead
        free = self.capacity - self.used.total - others_reserved
        return max(0, free // size)

    def usable(self, queue: SizedQueue) -> int:
        """Units that handlers of the queue's kind may use at the pace of this queue."""
        return int(self.capacity * queue.pace)

    def _occupied(self, *, is_async: bool) -> int:
        return self.used.of(is_async=is_async) + self.reserved.of(is_async=is_async)


class StarvedNeeds(msgspec.Struct):
    """The room that other queues leave, so that a job of each starved queue fits in its turn.

    The largest need counts: that job fits once the queue's own runs end.
    """

    units: int = 0
    most_of_kind: dict[bool, int] = msgspec.field(default_factory=dict[bool, int])
    """The most units that async handlers (True) and plain ones (False) may occupy beside starved
    ones of their kind, because of the pace of those."""
    needs_idle_worker: bool = False
    """A job fits into an idle worker only."""

    def add(self, room: Room, starved: SizedQueue) -> None:
        is_async, need = starved.is_async, starved.size - starved.own_units
        usable = room.usable(starved)
        if starved.size > usable:
            self.needs_idle_worker = True
        self.units = max(self.units, need)
        most = self.most_of_kind.get(is_async, usable)
        self.most_of_kind[is_async] = min(most, usable - need)


def fits_many(capacity: int, size: int) -> bool:
    """Whether so many jobs fit that portions of a third keep the worker busy."""
    return capacity // size >= MANY


def _stages_at_once(queue: SizedQueue) -> int:
    """How many portions share the room of one. If a queue prefetches, each portion ends before the
    next one starts.
    """
    return STAGES if queue.prefetches else 1
