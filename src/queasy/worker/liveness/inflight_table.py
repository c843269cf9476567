"""The in-flight table: the runs of a worker, in memory that its supervisor reads.

The worker writes an entry before it starts a job, marks it when the run ended, and clears it when
the server has confirmed the report of the outcome. A supervisor in another process reads which runs
are past their deadline and, when the worker died, which jobs had started and were not reported. No
message is sent for a job, and nothing is locked: the supervisor's view of a living worker is a
hint, and only the table of a dead worker is final. A hint never mixes two values: each number is
written in one piece (`struct` would write zeros first), and a run that ended while it was read is
left out.

    header   loop turned (f64), supervisor ran (f64), frozen seconds (f64), stood down (u32),
             on the loop: since (f64), seen (f64), token (u64), queue (u64),
             deadlines checked until (f64)
    queues   held (u32), idle until (f64), requested at (f64), confirmed at (f64), revoked (u64),
             revocation (u64)
    slots    queue, token, started, deadline, id; the first byte says whether it is free, of a run,
             or of an outcome that is not reported

Each number has one writer, except the flag `stood down`: one side sets it, the other clears it. The
supervisor writes `supervisor ran`, `frozen seconds`, `confirmed at`, `revoked` and `revocation`;
the worker writes the rest. An inline worker has no supervisor: its heartbeat thread writes
`confirmed at`, and the others stay 0.

Times are of the monotonic clock, which the processes of one machine share. The times of a run
(started, deadline) are of the run clock: the same clock, without the time for which the supervisor
froze the worker. So a freeze counts against no timeout.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time

import msgspec

from queasy.worker.lease_times import DEFAULT_TIMES, LeaseTimes

__all__ = ["GIVEN_BACK", "NOT_IN_TABLE", "Entry", "InflightTable", "OnLoop"]

HEADER = struct.Struct("=dddIxxxxddQQd")
QUEUE = struct.Struct("=IxxxxdddQQ")
SLOT = struct.Struct("=BxHHxxQdd")
# In bytes. The longest ids are those of a fail queue: an id of 512 bytes, a token, and separators.
MAX_ID = 1200
SLOT_BYTES = SLOT.size + MAX_ID
# A slot with an id of at most SHORT_ID bytes, as nearly all are: it is written in one step.
SHORT_ID = 64
ENTRY = struct.Struct(f"{SLOT.format}{SHORT_ID}s")
FLOAT, COUNT = 8, 4
# In place of a slot. NOT_IN_TABLE: the run has not begun. GIVEN_BACK: it must not begin, because
# the supervisor has given its job back.
NOT_IN_TABLE, GIVEN_BACK = -1, -2
# Positions in the header, counted in numbers of the same kind; then positions within a queue.
LOOP_TURNED, SUPERVISOR_RAN, FROZEN_SECONDS = 0, 1, 2
STOOD_DOWN = 6
ON_LOOP_SINCE, ON_LOOP_SEEN, ON_LOOP_TOKEN, ON_LOOP_QUEUE, CHECKED_UNTIL = 4, 5, 6, 7, 8
IDLE_UNTIL, REQUESTED_AT, CONFIRMED_AT, REVOKED, REVOCATION = 1, 2, 3, 4, 5
DEADLINE, ID = SLOT.size - 8, SLOT.size
# The first byte of a slot.
FREE, RUNNING, UNREPORTED = 0, 1, 2
# Slots for outcomes that are not reported: while some runs go on, the outcomes of two portions are
# being reported, and those of a third wait. A portion has at most 1,000 jobs.
PORTIONS, PORTION = 3, 1000


class Entry(msgspec.Struct, frozen=True):
    """One run, as the table has it."""

    queue: int
    id: str
    token: int
    started: float
    deadline: float


class OnLoop(msgspec.Struct, frozen=True):
    """What was on the event loop when a thread of the worker last looked."""

    run: tuple[int, int] | None
    """The queue and the token of the run; None if it was no run, or a task that a run started."""
    since: float
    """When it was first seen there."""
    seen: float
    """When it was last seen there."""


class InflightTable:
    """The in-flight table of one worker, with room for `queues` queues and `runs` runs."""

    def __init__(
        self,
        queues: int,
        runs: int,
        fd: int | None = None,
        times: LeaseTimes = DEFAULT_TIMES,
    ) -> None:
        self.times = times
        """How long the worker's leases last, and all that follows from it. Not in shared memory:
        supervisor and worker have the same from their configuration."""
        self._first_slot = HEADER.size + queues * QUEUE.size
        self.slots = _slots(runs)
        """How many runs and unreported outcomes there is room for."""
        size = self._first_slot + self.slots * SLOT_BYTES
        self._memory = mmap.mmap(-1 if fd is None else fd, size)
        self._floats = memoryview(self._memory).cast("d")
        self._counts = memoryview(self._memory).cast("I")
        self._longs = memoryview(self._memory).cast("Q")
        self._free = list(reversed(range(self._first_slot, size, SLOT_BYTES)))
        """The offset of each free slot."""
        # Computed once: a worker needs them for every run.
        self._requested_at_index = [_floats_of(queue) + REQUESTED_AT for queue in range(queues)]
        self._revoked_index = [_floats_of(queue) + REVOKED for queue in range(queues)]
        self._settled = [0] * queues
        """The last revocation of each queue that this worker has settled. Not in shared memory: the
        supervisor does not need it."""

    @staticmethod
    def create_file(queues: int, runs: int) -> int:
        """A descriptor of shared memory that a child can inherit.

        The file has no name; on Linux it is not on a disk either.
        """
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("queasy-table")
        else:
            with tempfile.TemporaryFile(prefix="queasy-table-") as file:
                fd = os.dup(file.fileno())
        try:
            os.ftruncate(fd, HEADER.size + queues * QUEUE.size + _slots(runs) * SLOT_BYTES)
        except OSError:
            os.close(fd)
            raise
        return fd

    # Runs

    def start_run(self, queue: int, id_: str, token: int, started: float, deadline: float) -> int:
        """Records that a run begins; returns its slot. Returns GIVEN_BACK if it must not begin,
        because the supervisor has given its job back.
        """
        at, memory = self._free.pop(), self._memory
        raw = id_.encode("utf-8", "surrogateescape")[:MAX_ID]
        ENTRY.pack_into(memory, at, FREE, queue, len(raw), token, started, deadline, raw)
        if len(raw) > SHORT_ID:
            memory[at + ID : at + ID + len(raw)] = raw
        memory[at] = RUNNING  # last: an entry is seen whole or not at all
        # Compare after the write: either the supervisor sees the run, or the run does not begin.
        if token <= self._longs[self._revoked_index[queue]] and not self._is_settled(queue):
            self.free([at])
            return GIVEN_BACK
        return at

    def end_run(self, slot: int) -> None:
        """Records that a run has ended. Its outcome is not reported yet."""
        self._memory[slot] = UNREPORTED

    def free(self, slots: list[int]) -> None:
        """Frees the slots of runs whose outcomes are reported."""
        for slot in slots:
            self._memory[slot] = FREE
        self._free += slots

    def set_deadline(self, slot: int, deadline: float) -> None:
        """Moves a run's deadline: it was interrupted and should end by then."""
        self._floats[(slot + DEADLINE) // FLOAT] = deadline

    @property
    def run_count(self) -> int:
        """How many jobs run now."""
        return self._memory[self._first_slot :: SLOT_BYTES].count(RUNNING)

    def entries(self, *, unreported: bool = False) -> list[Entry]:
        """All runs, with `unreported` also those that ended and are not reported yet."""
        found: list[Entry] = []
        wanted = (RUNNING, UNREPORTED) if unreported else (RUNNING,)
        for number, seen in enumerate(self._memory[self._first_slot :: SLOT_BYTES]):
            if seen not in wanted:
                continue
            at = self._first_slot + number * SLOT_BYTES
            state, queue, length, token, started, _ = SLOT.unpack_from(self._memory, at)
            deadline = self._floats[(at + DEADLINE) // FLOAT]
            raw = self._memory[at + ID : at + ID + min(length, MAX_ID)]
            # The slot may have been reused while it was read. No two runs have the same token, so
            # an unchanged token proves that all fields belong to one run. A run that ended while it
            # was read is an outcome that is not reported.
            if state in wanted and token == self._token_in(at, wanted):
                id_ = raw.decode("utf-8", "surrogateescape")
                found.append(Entry(queue, id_, token, started, deadline))
        return found

    def _token_in(self, slot: int, wanted: tuple[int, ...]) -> int | None:
        """The token in a slot, if its first byte is one of `wanted`."""
        state, _, _, token, _, _ = SLOT.unpack_from(self._memory, slot)
        return token if state in wanted else None

    def begun(self, queue: int) -> set[int]:
        """The tokens of all runs of the queue that have begun, and may not be reported yet."""
        return {entry.token for entry in self.entries(unreported=True) if entry.queue == queue}

    def revoke(self, queue: int, token: int) -> None:
        """Makes the worker begin no job of the queue with this token or a lower one, until it has
        settled this revocation. The number of a revocation is odd until its jobs are given back.
        """
        self._longs[_floats_of(queue) + REVOKED] = token
        number = self.revocation(queue)
        self._longs[_floats_of(queue) + REVOCATION] = number + 1 + number % 2

    def note_given_back(self, queue: int) -> None:
        """The server has answered: the jobs of the last revocation are not the worker's."""
        self._longs[_floats_of(queue) + REVOCATION] += 1

    def revoked(self, queue: int) -> int:
        """The highest token of the last revocation; 0 if there was none."""
        return self._longs[_floats_of(queue) + REVOKED]

    def revocation(self, queue: int) -> int:
        """The number of the last revocation; odd while its jobs are being given back."""
        return self._longs[_floats_of(queue) + REVOCATION]

    def settle_revocation(self, queue: int, number: int) -> None:
        """The worker holds none of the jobs of this revocation any more: from now on it begins jobs
        with any token. An unanswered revocation (an odd number) cannot be settled.

        A server that forgot its last writes, and whose clock is behind, gives out lower tokens.
        Without this the worker would refuse these jobs for ever.
        """
        if number % 2 == 0:
            self._settled[queue] = number

    def _is_settled(self, queue: int) -> bool:
        return self._settled[queue] == self.revocation(queue)

    def running_queues(self) -> set[int]:
        """The queues that have a run."""
        return {entry.queue for entry in self.entries()}

    # Queues: if the worker may hold jobs of a queue, its lease there must be kept alive

    def add_held(self, queue: int, more: int) -> None:
        """Changes the number of jobs of the queue that the worker may hold by `more`."""
        self._counts[_counts_of(queue)] += more

    def held_of(self, queue: int) -> int:
        """How many jobs of the queue the worker may hold. If 0, its lease need not be kept."""
        return self._counts[_counts_of(queue)]

    def held_total(self, queues: int) -> int:
        """How many jobs the worker may hold of the first `queues` queues together."""
        return sum(map(self.held_of, range(queues)))

    def set_idle_until(self, queue: int, until: float) -> None:
        """Records until when the server keeps the worker registered without a bump.

        This counts while the worker holds no job of the queue. 0: it does not serve the queue.
        """
        self._floats[_floats_of(queue) + IDLE_UNTIL] = until

    def idle_until(self, queue: int) -> float:
        """Until when an idle worker stays registered; 0 if it does not serve the queue."""
        return self._floats[_floats_of(queue) + IDLE_UNTIL]

    def set_requested_at(self, queue: int, sent: float) -> None:
        """Records when the worker requested the jobs it took last. Their leases began later."""
        self._floats[self._requested_at_index[queue]] = sent

    def requested_at(self, queue: int) -> float:
        """When the worker requested the jobs of the queue that it took last."""
        return self._floats[self._requested_at_index[queue]]

    def set_confirmed_at(self, queue: int, confirmed: float) -> None:
        """Records when the server last confirmed the leases; 0: the worker holds none."""
        self._floats[_floats_of(queue) + CONFIRMED_AT] = confirmed

    def unconfirmed_for(self, queue: int, now: float) -> float:
        """For how many seconds the server has not confirmed the leases of the queue."""
        confirmed = self.confirmed_at(queue)
        return now - max(confirmed, self.requested_at(queue)) if confirmed else 0.0

    def confirmed_at(self, queue: int) -> float:
        """When the server last confirmed the leases of the queue; 0 if there are none."""
        return self._floats[_floats_of(queue) + CONFIRMED_AT]

    # Signs of life

    def loop_turned(self, now: float) -> None:
        """Records that the worker's event loop turns."""
        self._floats[LOOP_TURNED] = now

    @property
    def loop_turned_at(self) -> float:
        """When the worker's event loop last turned."""
        return self._floats[LOOP_TURNED]

    def deadlines_checked(self, until: float) -> None:
        """Records that the worker has asked runs to end if their deadline is not later than this.

        `until` is a time of the run clock.
        """
        self._floats[CHECKED_UNTIL] = until

    @property
    def deadlines_checked_until(self) -> float:
        """The worker has asked each run to end whose deadline is not later than this.

        A time of the run clock.
        """
        return self._floats[CHECKED_UNTIL]

    def set_on_loop(self, run: tuple[int, int] | None, since: float, seen: float) -> None:
        """Records what is on the event loop: the queue and the token of a run, or no run."""
        # In this order: a reader may see the previous run with the new `since`, but no run with a
        # `since` that is too early.
        self._floats[ON_LOOP_SINCE] = since
        self._longs[ON_LOOP_QUEUE], self._longs[ON_LOOP_TOKEN] = run or (0, 0)
        self._floats[ON_LOOP_SEEN] = seen

    @property
    def on_loop(self) -> OnLoop | None:
        """What is on the event loop; None if no thread has looked since the loop last turned."""
        run = self._longs[ON_LOOP_QUEUE], self._longs[ON_LOOP_TOKEN]
        since, seen = self._floats[ON_LOOP_SINCE], self._floats[ON_LOOP_SEEN]
        if seen <= self.loop_turned_at:
            return None
        return OnLoop(run if run[1] else None, since, seen)

    def supervisor_ran(self, now: float) -> None:
        """Records that the supervisor runs and keeps the leases."""
        self._floats[SUPERVISOR_RAN] = now

    @property
    def supervisor_ran_at(self) -> float:
        """When the supervisor last ran; 0 for an inline worker, which has none."""
        return self._floats[SUPERVISOR_RAN]

    def add_frozen(self, seconds: float) -> None:
        """Records that the supervisor froze the worker for that long, before it thaws it."""
        self._floats[FROZEN_SECONDS] += seconds

    @property
    def frozen_seconds(self) -> float:
        """For how long the supervisor has frozen the worker: the run clock is behind by this."""
        return self._floats[FROZEN_SECONDS]

    def run_clock_at(self, at: float) -> float:
        """The run clock at a time of the monotonic clock; not before the last freeze."""
        return at - self._floats[FROZEN_SECONDS]

    def run_clock(self) -> float:
        """The time that counts against timeouts: it does not pass while the worker is frozen."""
        while True:
            frozen, now = self._floats[FROZEN_SECONDS], time.monotonic()
            if frozen == self._floats[FROZEN_SECONDS]:  # else it was frozen between the two
                return now - frozen

    @property
    def stood_down(self) -> bool:
        """Whether the heartbeat removed this worker from the waiters of its queues.

        Its event loop was blocked, so it would have missed a wake-up. The worker becomes a waiter
        again with its next dequeue.
        """
        return self._counts[STOOD_DOWN] != 0

    def set_stood_down(self) -> None:
        """Records that this worker is not a waiter any more."""
        self._counts[STOOD_DOWN] = True

    def clear_stood_down(self) -> None:
        """Records that this worker receives wake-ups again."""
        self._counts[STOOD_DOWN] = False

    def close(self) -> None:
        """Unmaps the memory."""
        self._floats.release()
        self._longs.release()
        self._counts.release()
        self._memory.close()


def _slots(runs: int) -> int:
    return runs + PORTIONS * min(runs, PORTION)


def _counts_of(queue: int) -> int:
    """The index of the queue's first u32."""
    return (HEADER.size + queue * QUEUE.size) // COUNT


def _floats_of(queue: int) -> int:
    """The index of the queue's first f64."""
    return (HEADER.size + queue * QUEUE.size) // FLOAT
