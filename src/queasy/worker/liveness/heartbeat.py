"""Heartbeats: keeps the leases of workers alive, and hears what became of them.

For a queue of which a worker holds jobs, every few seconds; for others only when the worker
has not said itself, by looking, how long it will be there. One call for each queue, whatever
the number of workers.

And a worker that is held up, by a handler that does not let the event loop turn, waits for no job
any more: others are woken in its place.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from queasy.errors import EmbeddedServerError, NotReady, NotRunning, ProtocolError, QueasyError
from queasy.operations import forward_wakeup
from queasy.store.commands import QueueCommands
from queasy.store.records import Cancelled
from queasy.store.store import AsyncStore
from queasy.worker.events import event
from queasy.worker.liveness.inflight_table import InflightTable
from queasy.worker.plan import BUMP_EVERY, IDLE_LEASE, LEASE

__all__ = ["Heartbeat", "Pulse"]

TICK = 0.2
# Nobody else can be given a job, either: the server is not there, or can do nothing just now.
EXCUSES = (NotRunning, NotReady, ProtocolError, EmbeddedServerError)
# A worker at rest is bumped when this is left of its lease: less than a look leaves it.
SPARE = LEASE / 2
# An event loop that turns says so every second, and more often while anything runs.
HELD_UP, RUNNING_HELD_UP = 3.0, 0.3
# So long nothing is said again of one that is held up now and then.
AGAIN = 1.0


@dataclass(slots=True, eq=False)
class Pulse:
    """One worker to be kept alive."""

    client: str
    queues: Sequence[QueueCommands]
    """In the order of the table."""
    table: InflightTable
    lost: Callable[[], None]
    cancel: Callable[[int, Cancelled], None]
    bumped: dict[int, float] = field(default_factory=dict[int, float])
    resting: dict[int, float] = field(default_factory=dict[int, float])
    kept: dict[int, float] = field(default_factory=dict[int, float])
    """Of queues of which it holds jobs: when their leases were last in order."""
    gone: bool = False
    unheard_at: float = 0.0
    """When the queues were told that it waits no more."""
    inline: bool = False
    """It shares its event loop with an application, which may hold it up."""

    def needs(self, queue: int, now: float) -> float | None:
        """The lease to ask for, if it is time."""
        until = self.table.rests_until(queue)
        if not until or now - self.bumped.get(queue, 0.0) < BUMP_EVERY:
            return None  # it does not serve this queue; or it has been tried just now
        if self.table.attention(queue):
            self.resting.pop(queue, None)
            return LEASE
        if self._is_of_no_use(now):
            return None
        until = max(until, self.resting.get(queue, 0.0))
        return IDLE_LEASE if until - now < SPARE else None

    def _is_of_no_use(self, now: float) -> bool:
        """It holds nothing, and an application holds it up: it could not start what it is handed,
        which is to be another's in time.
        """
        still = self.inline and now - self.table.last_beat > HELD_UP
        return still and not self.table.held(len(self.queues))

    def is_held_up(self, now: float) -> bool:
        """A handler keeps the event loop from turning, and that was not told yet."""
        beat = self.table.last_beat
        told = self.unheard_at > beat or now - self.unheard_at < AGAIN
        return now - beat > RUNNING_HELD_UP and not told and self.table.runs > 0

    def keep(self, now: float) -> None:
        """Tells the worker since when the server was not heard about what it holds."""
        for queue in range(len(self.queues)):
            if self.table.attention(queue):
                kept = self.kept.get(queue, now)  # it is just asked for
                self.kept[queue] = max(kept, self.table.taken(queue))
                self.table.keep(queue, self.kept[queue])
            elif self.kept.pop(queue, None):
                self.table.keep(queue, 0.0)

    def excused(self, queue: int, sent: float) -> None:
        """The server can give its jobs to nobody, so the lease is as good as before."""
        if queue in self.kept:
            self.kept[queue] = max(self.kept[queue], sent)

    def answered(self, queue: int, lease: float, sent: float, word: str) -> None:
        self.excused(queue, sent)
        self.resting[queue] = sent + lease if lease == IDLE_LEASE else 0.0
        # It may have left the queue while the call was under way.
        if word == "lost" and self.table.rests_until(queue):
            self.lost()


class Heartbeat:
    """Bumps for the workers of one process, or of its children."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self._away: set[str] = set()
        """Queues that could not be told."""
        self._bumping: dict[str, asyncio.Task[None]] = {}
        self._telling: set[asyncio.Task[None]] = set()
        self.pulses: list[Pulse] = []

    @property
    def away(self) -> bool:
        """The last one failed: nobody keeps the leases."""
        return bool(self._away)

    def forget(self, client: str) -> None:
        """A worker is gone."""
        for pulse in self.pulses:
            pulse.gone = pulse.gone or pulse.client == client
        self.pulses = [pulse for pulse in self.pulses if not pulse.gone]

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                self._beat()
                await asyncio.sleep(TICK)
        finally:
            for task in [*self._bumping.values(), *self._telling]:
                task.cancel()

    def _beat(self) -> None:
        """Starts the bumps that are due; each queue by itself, so that none waits for another."""
        now = time.monotonic()
        due: dict[tuple[str, float], list[tuple[Pulse, int]]] = {}
        for pulse in self.pulses:
            pulse.keep(now)
            if pulse.is_held_up(now):
                pulse.unheard_at = now
                task = asyncio.create_task(self._stand_down(pulse))
                self._telling.add(task)
                task.add_done_callback(self._telling.discard)
            for index, commands in enumerate(pulse.queues):
                lease = pulse.needs(index, now)
                if lease is not None and commands.keys.base not in self._bumping:
                    due.setdefault((commands.keys.base, lease), []).append((pulse, index))
        if not due and not self._bumping:
            self._back(self._away)  # a look has told the server as well: no lease needs one now
        for (base, lease), those in due.items():
            if base not in self._bumping:
                self._bumping[base] = asyncio.create_task(self._bump(base, lease, those))

    async def _stand_down(self, pulse: Pulse) -> None:
        """It would be woken, and not hear it; others sleep, who could have the job."""
        try:
            for index, commands in enumerate(pulse.queues):
                if not pulse.gone and pulse.table.rests_until(index):  # it serves this queue
                    await self._store.run(forward_wakeup(commands, pulse.client))
        except QueasyError:  # best effort, as all waking is
            pass
        finally:
            if not pulse.gone:  # and its table with it
                pulse.table.unheard = True

    def _back(self, bases: set[str]) -> None:
        if self._away:
            self._away = self._away - bases
            if not self._away:
                event("heartbeat resumed")

    async def _bump(self, base: str, lease: float, those: list[tuple[Pulse, int]]) -> None:
        sent = time.monotonic()
        for pulse, index in those:
            pulse.bumped[index] = sent
        pulse, index = those[0]
        clients = [pulse.client for pulse, _ in those]
        try:
            answers = await self._store.run(pulse.queues[index].bump(clients, lease))
        except QueasyError as problem:
            if not self._away:
                event("heartbeat failed", logging.WARNING, error=problem)
            self._away.add(base)
            if isinstance(problem, EXCUSES):
                for pulse, index in those:
                    pulse.excused(index, sent)
            return
        finally:
            self._bumping.pop(base, None)
        self._back({base})
        for (pulse, index), (word, cancels) in zip(those, answers, strict=True):
            if pulse.gone:  # and its table with it
                continue
            pulse.answered(index, lease, sent, word)
            for cancelled in cancels:
                pulse.cancel(index, cancelled)
