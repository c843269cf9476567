"""The present activity of all queues of one worker.

Each queue records here what it does. So the worker finds the few queues that need attention
without a visit to all of them: a worker may have a thousand queues, and most of them rest.

Queues with many short async jobs take turns. During its turn a queue is served as if it were the
only one: it prefetches, and each of its calls also reports the outcomes of the call before. The
others wait for their turns. If each call went to another queue, jobs would come in smaller
portions, and their outcomes would need calls of their own.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

import msgspec

from queasy.store.records import Ending
from queasy.worker.execution.units import Units
from queasy.worker_record import CAPACITY

__all__ = ["SHORTEST_TURN", "TURN", "Activity", "Turn"]

# How long a turn lasts at most, and at least, in seconds.
TURN, SHORTEST_TURN = 0.01, 0.005
# If more than ten queues take turns, the turns are shorter, so that a round takes about this long,
# in seconds, for up to 20 queues.
ROUND = 0.1


class Turn(msgspec.Struct, frozen=True):
    """One queue's turn. Queues of a higher priority need not wait for its end."""

    queue: int
    priority: int
    until: float


class Activity:
    """The queues that are awake or in a call, by index, and the room that their calls reserve."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        """Units of capacity of the worker."""
        self.awake: set[int] = set()
        """Queues that a decision must consider. The others rest until their poll is due."""
        self.calling: set[int] = set()
        """Queues with a call in flight."""
        self.reserved = Units()
        """Units of capacity that are reserved for what calls may bring."""
        self.reserved_ahead = 0
        """The part of `reserved` that belongs to calls that prefetch."""
        self.unreported: set[int] = set()
        """Queues with outcomes that the server has not confirmed."""
        self.requested = 0
        """How many jobs the calls in flight may bring."""
        self.sharing: set[int] = set()
        """Queues that take turns: their jobs are short, and more of them wait."""
        self._turn = Turn(-1, 0, 0.0)
        self._suspects: set[tuple[int, int]] = set()
        """Suspects that have started and are not reported: the queue and the token of each."""
        self._most_companions: int | None = None
        """How many companions each of these may have: the fewest of any. None if there is none."""
        self._alarms: list[tuple[float, int]] = []
        """When to wake resting queues: a heap. An alarm that comes too early does no harm."""
        self._alarm_of: dict[int, float] = {}
        """The earliest alarm of each queue that has one."""

    def wake_due(self, now: float) -> None:
        """Wake the queues whose poll is due."""
        while self._alarms and self._alarms[0][0] <= now:
            at, queue = heapq.heappop(self._alarms)
            self.awake.add(queue)
            if self._alarm_of.get(queue) == at:
                del self._alarm_of[queue]

    def let_rest(self, rests_until: Callable[[int], float | None]) -> None:
        """Let each queue rest until the time that `rests_until` returns for it, unless None.

        It wakes earlier if something happens to it.
        """
        for queue in list(self.awake):
            until = rests_until(queue)
            if until is not None:
                self.awake.discard(queue)
                self._set_alarm(queue, until)

    # Turns

    def turn(self, now: float) -> Turn | None:
        """The turn that lasts, or None."""
        return self._turn if now < self._turn.until else None

    def begin_turn(self, queue: int, priority: int, now: float) -> None:
        """A queue that takes turns requests jobs.

        Its turn begins, unless one of the same or a higher priority lasts.
        """
        if now >= self._turn.until or priority > self._turn.priority:
            length = max(SHORTEST_TURN, min(TURN, ROUND / len(self.sharing)))
            self._turn = Turn(queue, priority, now + length)

    def end_sharing(self, queue: int) -> None:
        """The queue does not take turns any more. If it is its turn, the turn is over."""
        self.sharing.discard(queue)
        if queue == self._turn.queue and self._turn.until:
            self._turn = Turn(-1, 0, 0.0)
            self.awake |= self.sharing

    # The jobs in this process. If it dies, the server must know how many there were

    def note_requested(self, jobs: int) -> None:
        """A call was sent that may bring this many jobs; negative: they came."""
        self.requested += jobs

    def note_reserved_ahead(self, units: int) -> None:
        """A call that prefetches reserved units; negative: its jobs came."""
        self.reserved_ahead += units

    def note_reported(self, queue: int, endings: Sequence[Ending]) -> None:
        """The server has confirmed these outcomes."""
        if self._suspects:
            self._suspects.difference_update((queue, ending.token) for ending in endings)
            if not self._suspects:
                self._most_companions = None

    def note_suspect(self, queue: int, token: int, companions: int) -> None:
        """A suspect starts."""
        self._suspects.add((queue, token))
        most = self._most_companions
        self._most_companions = companions if most is None else min(most, companions)

    @property
    def most_jobs(self) -> int | None:
        """The limit on jobs in this process while a suspect is here; None without a suspect."""
        return None if self._most_companions is None else self._most_companions + 1

    def admits(self, companions: int | None, others: int) -> bool:
        """Whether a job may start beside this many others. A suspect limits its companions."""
        most = self._most_companions
        return (companions is None or others <= companions) and (most is None or others <= most)

    # Rest

    def _set_alarm(self, queue: int, at: float) -> None:
        """Wake the queue at this time. An earlier alarm stays: queues often rest and wake again."""
        if at < self._alarm_of.get(queue, math.inf):
            self._alarm_of[queue] = at
            heapq.heappush(self._alarms, (at, queue))

    @property
    def next_alarm(self) -> float | None:
        return self._alarms[0][0] if self._alarms else None
