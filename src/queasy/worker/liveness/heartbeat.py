"""Heartbeats: keep the leases of workers alive, and report what the server says about them.

1. While a worker holds jobs of a queue, the heartbeat bumps its leases every `bump_every` seconds.
   While the worker holds none, the heartbeat bumps only if the worker does not wait for jobs of the
   queue: to keep the worker registered, and to return the jobs of a dead host in time.
2. One call bumps all workers of a queue. Each queue has a call of its own, so that a slow queue
   delays no other.
3. The answers name runs to cancel, and workers that the server has declared dead. Only an answer
   confirms leases: an error, whatever it says, is about the path of this process to the server, and
   other clients may use another.
4. If a handler blocks the event loop of a worker, the heartbeat removes that worker from the
   waiters, and the server wakes other workers instead.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence

from queasy.errors import ProtocolError, QueasyError
from queasy.operation import run_operation
from queasy.operations import forward_wake_up, until_done
from queasy.store.commands import QueueCommands
from queasy.store.records import Cancelled
from queasy.store.store import AsyncStore
from queasy.worker.events import event
from queasy.worker.lease_times import DEFAULT_TIMES, LeaseTimes
from queasy.worker.liveness.inflight_table import InflightTable

__all__ = ["BUSY_LOOP_BLOCKED", "Heartbeat", "WorkerLeases"]

# An event loop that has not turned for this many seconds counts as blocked. While anything runs the
# limit is lower, because the loop then records its turns more often than once a second.
IDLE_LOOP_BLOCKED, BUSY_LOOP_BLOCKED = 3.0, 0.3
# At least this many seconds pass between two removals of one worker from the waiters, even if its
# loop blocks again and again.
STAND_DOWN_AT_MOST_EVERY = 1.0


class WorkerLeases:
    """The leases of one worker: when each is due for a bump, and when it was last confirmed.

    `on_declared_dead` is called when the server has declared the worker dead. `cancel` is called
    for each run that is to be cancelled. `on_refused` is called when runs have no lease any more,
    because the server cannot read the keys of their queue. `on_destroyed` is called, perhaps again
    and again, with the index of a queue that was destroyed. With `inline` the worker shares its
    event loop with an application, which may block the loop.
    """

    def __init__(
        self,
        client: str,
        queues: Sequence[QueueCommands],
        table: InflightTable,
        on_declared_dead: Callable[[], None],
        cancel: Callable[[int, Cancelled], None],
        *,
        on_refused: Callable[[], None] = lambda: None,
        on_destroyed: Callable[[int], None] = lambda _: None,
        inline: bool = False,
    ) -> None:
        self.client = client
        self.queues = queues
        """The commands of each queue, in the order of the table."""
        self.table = table
        self._times = table.times
        self.gone = False
        """The worker has ended, and its table is closed."""
        self.cancel = cancel
        self._on_declared_dead = on_declared_dead
        self._on_refused = on_refused
        self._on_destroyed = on_destroyed
        self._inline = inline
        self._bumped: dict[int, float] = {}
        """When a bump of each queue was last sent."""
        self._held_since: dict[int, float] = {}
        """When the worker was first seen to hold jobs of each queue, or to request some."""
        self._idle_until: dict[int, float] = {}
        """Until when an idle bump keeps the worker registered with each queue."""
        self._needed_at: dict[int, float] = {}
        """When the server needs a call for each queue, because a lease may have expired."""
        self._confirmed: dict[int, float] = {}
        """When the leases were last confirmed, for each queue of which the worker holds jobs."""
        self._published = time.monotonic()
        self._stood_down_at = 0.0

    def lease_due(self, queue: int, now: float) -> float | None:
        """The lease to request for the queue now; None if it needs no bump, or had one just now."""
        since = self._bumped.get(queue, 0.0)
        if self.table.held_of(queue):
            # Its own dequeue set the lease. Most are answered before a bump is of any use.
            since = max(since, self._held_since.setdefault(queue, now))
        else:
            self._held_since.pop(queue, None)
        return None if now - since < self._times.bump_every else self.lease_needed(queue, now)

    def lease_needed(self, queue: int, now: float) -> float | None:
        """The lease to request for the queue, sooner or later; None if it needs no bump."""
        until = self.table.idle_until(queue)
        if not until:
            return None  # the worker does not serve this queue
        if self.table.held_of(queue):
            self._idle_until.pop(queue, None)
            return self._times.lease
        margin = self._times.idle_margin
        waits = until - now >= margin and not self.table.stood_down
        if waits or self._cannot_start_jobs(now):
            return None
        registered = self._idle_until.get(queue, 0.0) - now >= margin
        if registered and now < self._needed_at.get(queue, math.inf):
            return None
        return self._times.idle_lease

    def _cannot_start_jobs(self, now: float) -> bool:
        """Whether the worker holds nothing and its application blocks the event loop.

        Such a worker could not start a job that the server hands to it. Without a bump its lease
        runs out, and the server gives the job to another worker.
        """
        blocked = self._inline and now - self.table.loop_turned_at > IDLE_LOOP_BLOCKED
        return blocked and not self.table.held_total(len(self.queues))

    def should_stand_down(self, now: float) -> bool:
        """Whether a handler blocks the event loop, and the worker has not stood down since."""
        turned_at, stood_down_at = self.table.loop_turned_at, self._stood_down_at
        stood_down = stood_down_at > turned_at or now - stood_down_at < STAND_DOWN_AT_MOST_EVERY
        return now - turned_at > BUSY_LOOP_BLOCKED and not stood_down and self.table.run_count > 0

    def standing_down(self, now: float) -> None:
        """The worker is being removed from the waiters of its queues."""
        self._stood_down_at = now

    def bump_sent(self, queue: int, sent: float) -> None:
        """A bump of the queue is on its way."""
        self._bumped[queue] = sent

    def confirmed(self, queue: int, sent: float) -> None:
        """The server confirmed the leases: they last from `sent` on, for at least their length."""
        if queue in self._confirmed:
            self._confirmed[queue] = max(self._confirmed[queue], sent)

    def answered(
        self, queue: int, lease: float, sent: float, word: str, next_in: float | None
    ) -> None:
        """The server answered a bump. It needs another call in `next_in` seconds, unless None."""
        self.confirmed(queue, sent)
        self._needed_at[queue] = math.inf if next_in is None else sent + next_in
        self._idle_until[queue] = sent + lease if lease == self._times.idle_lease else 0.0
        # "lost" is expected if the worker left the queue while the call was in flight.
        if word == "lost" and self.table.idle_until(queue):
            self._on_declared_dead()
        elif word == "destroyed":
            self._on_destroyed(queue)

    def refused(self, queue: int, now: float) -> None:
        """The server answered that it cannot read the keys of this queue.

        Waiting does not repair them, and other queues of the worker are intact.
        """
        unconfirmed = self.table.unconfirmed_for(queue, now) > self._times.cut_off
        if unconfirmed and queue in self.table.running_queues():
            self._on_refused()

    def publish(self, now: float) -> None:
        """Writes into the worker's table when the leases of each queue were last confirmed."""
        for queue in range(len(self.queues)):
            if self.table.held_of(queue):
                # The first jobs were requested after the last time that it held none.
                confirmed = self._confirmed.get(queue, self._published)
                self._confirmed[queue] = max(confirmed, self.table.requested_at(queue))
                self.table.set_confirmed_at(queue, self._confirmed[queue])
            elif self._confirmed.pop(queue, None):
                self.table.set_confirmed_at(queue, 0.0)
        self._published = now

    def end(self) -> None:
        """The worker has ended: its table must not be used any more."""
        self.gone = True


class Heartbeat:
    """Bumps for an inline worker, or for the children of a supervisor: all have the same lease."""

    def __init__(self, store: AsyncStore, times: LeaseTimes = DEFAULT_TIMES) -> None:
        self._store = store
        self._check_every = times.check_every
        self._workers: list[WorkerLeases] = []
        self._failing: set[str] = set()
        """The queues whose last bump failed, by the base of their keys."""
        self._bumping: dict[str, asyncio.Task[None]] = {}
        self._standing_down: set[asyncio.Task[None]] = set()

    @property
    def is_failing(self) -> bool:
        """Whether the last bump of a queue failed: its leases are not being extended."""
        return bool(self._failing)

    def add(self, worker: WorkerLeases) -> None:
        """Keeps the leases of this worker alive from now on."""
        self._workers.append(worker)

    def forget(self, client: str) -> None:
        """Stops bumping for a worker that has ended."""
        for worker in self._workers:
            if worker.client == client:
                worker.end()
        self._workers = [worker for worker in self._workers if not worker.gone]

    async def run(self) -> None:
        """Bumps until it is cancelled."""
        try:
            while True:
                self._start_due_bumps()
                await asyncio.sleep(self._check_every)
        finally:
            for task in [*self._bumping.values(), *self._standing_down]:
                task.cancel()

    def _start_due_bumps(self) -> None:
        """Starts the bumps and stand-downs that are due, and publishes when leases were confirmed.

        Each queue has a task of its own, so that none delays another.
        """
        now = time.monotonic()
        due: dict[tuple[str, float], list[tuple[WorkerLeases, int]]] = {}
        needed = set(self._bumping)
        for worker in self._workers:
            worker.publish(now)
            if worker.should_stand_down(now):
                worker.standing_down(now)
                task = asyncio.create_task(self._stand_down(worker))
                self._standing_down.add(task)
                task.add_done_callback(self._standing_down.discard)
            for index, commands in enumerate(worker.queues):
                base = commands.keys.base
                if self._failing and worker.lease_needed(index, now) is not None:
                    needed.add(base)
                lease = worker.lease_due(index, now)
                if lease is not None and base not in self._bumping:
                    due.setdefault((base, lease), []).append((worker, index))
        # These need no bump any more: the workers' own dequeues have reached the server.
        self._succeeded(self._failing - needed)
        for (base, lease), workers in due.items():
            if base not in self._bumping:
                self._bumping[base] = asyncio.create_task(self._bump(base, lease, workers))

    async def _stand_down(self, worker: WorkerLeases) -> None:
        """Removes a worker from the waiters of its queues.

        The event loop of that worker is blocked. A wake-up that it cannot read would delay a job
        that an idle worker could run.
        """
        try:
            for index, commands in enumerate(worker.queues):
                if not worker.gone and worker.table.idle_until(index):  # it serves this queue
                    await self._store.run(forward_wake_up(commands, worker.client))
        except QueasyError:  # best effort, as with every wake-up
            pass
        finally:
            if not worker.gone:  # else its table is closed
                worker.table.set_stood_down()

    def _succeeded(self, bases: set[str]) -> None:
        """The bumps of these queues do not fail, or do not fail any more."""
        if self._failing:
            self._failing = self._failing - bases
            if not self._failing:
                event("heartbeat_resumed")

    async def _bump(self, base: str, lease: float, workers: list[tuple[WorkerLeases, int]]) -> None:
        """Bumps one queue for all workers that need it, and sweeps while dead clients are left."""
        commands = workers[0][0].queues[workers[0][1]]
        try:
            if await self._bump_once(commands, lease, workers) == 0:
                await run_operation(self._store, until_done(commands.sweep))
        except QueasyError:  # a later bump sweeps the rest
            pass
        finally:
            self._bumping.pop(base, None)

    async def _bump_once(
        self, commands: QueueCommands, lease: float, workers: list[tuple[WorkerLeases, int]]
    ) -> float | None:
        """Passes each worker its answer. Returns in how many seconds the server needs a call."""
        sent, base = time.monotonic(), commands.keys.base
        for worker, index in workers:
            worker.bump_sent(index, sent)
        clients = [worker.client for worker, _ in workers]
        try:
            bumped = await self._store.run(commands.bump(clients, lease))
        except QueasyError as problem:
            if not self._failing:
                event("heartbeat_failed", logging.WARNING, error=problem)
            self._failing.add(base)
            if isinstance(problem, ProtocolError):
                for worker, index in workers:
                    if not worker.gone:
                        worker.refused(index, time.monotonic())
            return None
        self._succeeded({base})
        for (worker, index), (word, cancels) in zip(workers, bumped.clients, strict=True):
            if worker.gone:  # its table is closed
                continue
            worker.answered(index, lease, sent, word, bumped.next_in)
            for cancelled in cancels:
                worker.cancel(index, cancelled)
        return bumped.next_in
