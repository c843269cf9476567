"""What a worker is doing, in memory that its supervisor reads.

The worker writes here before it starts a job and after it ended one; a supervisor in another
process learns from it which runs are past their deadline and, when the worker died, which
jobs had started. No message is sent for a job, and nothing is locked: the supervisor's view
of a living worker is a hint, and it acts on the table of a dead one only. But a hint is never a
mixture: a number is written in one piece (`struct` would write zeros first), and a run that
ended while it was read is left out.

    header   beat (f64), supervisor's beat (f64), passes (u32), declined (u32), unheard (u32)
    queues   attention (u32), idle until (f64), taken (f64), lease kept (f64)
    slots    queue, token, started, deadline, id; the first byte says whether it is in use

Times are of the monotonic clock, which the processes of one machine share.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile

import msgspec

__all__ = ["Entry", "InflightTable"]

HEADER = struct.Struct("=ddIIIxxxx")
QUEUE = struct.Struct("=Ixxxxddd")
SLOT = struct.Struct("=BxHHxxQdd")
MAX_ID = 1200  # of a job in a fail queue: an id of 512 bytes, a token, and some
SLOT_BYTES = SLOT.size + MAX_ID
FLOAT, COUNT = 8, 4
# The numbers of the header, among all of their kind; and of a queue, among its own.
BEAT, SUPERVISED = 0, 1
PASSES, DECLINED, UNHEARD = 4, 5, 6
IDLE, TAKEN, KEPT = 1, 2, 3
DEADLINE, ID = SLOT.size - 8, SLOT.size


class Entry(msgspec.Struct, frozen=True):
    """One run, as the table has it."""

    queue: int
    id: str
    token: int
    started: float
    deadline: float


class InflightTable:
    """The in-flight table of one worker. `queues` and `slots` are as many as it may ever use."""

    def __init__(self, queues: int, slots: int, fd: int | None = None) -> None:
        self._first_slot = HEADER.size + queues * QUEUE.size
        size = self._first_slot + slots * SLOT_BYTES
        self._memory = mmap.mmap(-1 if fd is None else fd, size)
        self._floats = memoryview(self._memory).cast("d")
        self._counts = memoryview(self._memory).cast("I")
        self._slots = range(self._first_slot, size, SLOT_BYTES)
        """Where each begins."""
        self._free = list(reversed(self._slots))

    @staticmethod
    def create_file(queues: int, slots: int) -> int:
        """Memory that a child can be given: a file without a name, on Linux not even on a disk."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("queasy-table")
        else:
            with tempfile.TemporaryFile(prefix="queasy-table-") as file:
                fd = os.dup(file.fileno())
        try:
            os.ftruncate(fd, HEADER.size + queues * QUEUE.size + slots * SLOT_BYTES)
        except OSError:
            os.close(fd)
            raise
        return fd

    # Runs

    def start(self, queue: int, id_: str, token: int, started: float, deadline: float) -> int:
        """A run begins; returns its slot."""
        at = self._free.pop()
        raw = id_.encode("utf-8", "surrogateescape")[:MAX_ID]
        SLOT.pack_into(self._memory, at, 0, queue, len(raw), token, started, deadline)
        self._memory[at + ID : at + ID + len(raw)] = raw
        self._memory[at] = 1  # last: an entry is seen whole or not at all
        return at

    def end(self, slot: int) -> None:
        self._memory[slot] = 0
        self._free.append(slot)

    def hurry(self, slot: int, deadline: float) -> None:
        """The run is to end by then: it was asked to."""
        self._floats[(slot + DEADLINE) // FLOAT] = deadline

    @property
    def runs(self) -> int:
        return sum(self._memory[self._first_slot :: SLOT_BYTES])

    def entries(self) -> list[Entry]:
        """All runs."""
        found: list[Entry] = []
        for at in self._slots:
            used, queue, length, token, started, _ = SLOT.unpack_from(self._memory, at)
            deadline = self._floats[(at + DEADLINE) // FLOAT]
            raw = self._memory[at + ID : at + ID + min(length, MAX_ID)]
            # Another may have begun there meanwhile, of which some was read: no two have a token.
            if used and (1, token) == self._now_in(at):
                id_ = raw.decode("utf-8", "surrogateescape")
                found.append(Entry(queue, id_, token, started, deadline))
        return found

    def _now_in(self, slot: int) -> tuple[int, int]:
        """Whether it is in use, and the token there."""
        fields = SLOT.unpack_from(self._memory, slot)
        return fields[0], fields[3]

    def running(self) -> set[int]:
        """Queues of which anything runs."""
        return {entry.queue for entry in self.entries()}

    # Queues: whether the worker may hold jobs of one, so that its lease must be kept alive

    def attend(self, queue: int, more: int) -> None:
        """The worker may hold `more` jobs of the queue, or fewer of them."""
        self._counts[_counts_of(queue)] += more

    def attention(self, queue: int) -> int:
        return self._counts[_counts_of(queue)]

    def held(self, queues: int) -> int:
        """How many jobs it may hold, of the first so many queues."""
        return sum(map(self.attention, range(queues)))

    def rest(self, queue: int, until: float) -> None:
        """Holding nothing, the worker is known to the queue until then; 0: it does not serve it."""
        self._floats[_floats_of(queue) + IDLE] = until

    def rests_until(self, queue: int) -> float:
        return self._floats[_floats_of(queue) + IDLE]

    def take(self, queue: int, asked: float) -> None:
        """Jobs of the queue were taken, asked for at this time: from then on its lease is whole."""
        self._floats[_floats_of(queue) + TAKEN] = asked

    def taken(self, queue: int) -> float:
        return self._floats[_floats_of(queue) + TAKEN]

    def keep(self, queue: int, since: float) -> None:
        """The server agreed to the lease, last at this time; 0: nothing of the queue is held."""
        self._floats[_floats_of(queue) + KEPT] = since

    def unkept(self, queue: int, now: float) -> float:
        """For how many seconds the server has not been heard about the lease."""
        kept = self.kept(queue)
        return now - max(kept, self.taken(queue)) if kept else 0.0

    def kept(self, queue: int) -> float:
        return self._floats[_floats_of(queue) + KEPT]

    # Signs of life

    def beat(self, now: float) -> None:
        """The worker's event loop turns."""
        self._floats[BEAT] = now

    @property
    def last_beat(self) -> float:
        return self._floats[BEAT]

    def supervise(self, now: float) -> None:
        """The supervisor is there, and sees to the leases."""
        self._floats[SUPERVISED] = now

    @property
    def supervised(self) -> float:
        return self._floats[SUPERVISED]

    @property
    def unheard(self) -> bool:
        """Whether the servers were told that this worker hears nothing: it waits for no job, unless
        it looks again.
        """
        return self._counts[UNHEARD] != 0

    @unheard.setter
    def unheard(self, value: bool) -> None:
        self._counts[UNHEARD] = value

    def clear_unheard(self) -> None:
        """The worker polls again."""
        self._counts[UNHEARD] = 0

    # Suspects

    def decline_suspects(self) -> None:
        """The worker released its suspects: it is too busy to isolate them."""
        self._counts[DECLINED] = 1

    @property
    def passes(self) -> bool:
        """Whether the worker is to leave them to others; its supervisor decides."""
        return self._counts[PASSES] != 0

    @passes.setter
    def passes(self, value: bool) -> None:
        self._counts[PASSES] = value

    @property
    def declined(self) -> bool:
        """Whether the worker had to let one go: it was too busy."""
        return self._counts[DECLINED] != 0

    @declined.setter
    def declined(self, value: bool) -> None:
        self._counts[DECLINED] = value

    def close(self) -> None:
        self._floats.release()
        self._counts.release()
        self._memory.close()


def _counts_of(queue: int) -> int:
    """Where those of a queue begin."""
    return (HEADER.size + queue * QUEUE.size) // COUNT


def _floats_of(queue: int) -> int:
    return (HEADER.size + queue * QUEUE.size) // FLOAT
