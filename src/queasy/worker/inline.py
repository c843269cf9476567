"""A worker in the calling process: for tests, small applications, and development.

Nothing can kill it. An async handler that ignores its cancellation, or a plain function inside
native code, keeps its job until it ends by itself. A supervisor would kill its process.

If the server declares the worker dead, a new one with a new id takes its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
from collections.abc import Callable, Generator

from queasy.dispatch import new_id
from queasy.errors import QueasyError
from queasy.options import check_whole, seconds
from queasy.store.records import Cancelled
from queasy.store.store import AsyncStore
from queasy.worker.control import Control
from queasy.worker.events import event
from queasy.worker.liveness.heartbeat import Heartbeat, WorkerLeases
from queasy.worker.liveness.inflight_table import InflightTable
from queasy.worker.plan import LEASE, MOST_CAPACITY, Plan, job_sizes, safety_interval
from queasy.worker.record import WorkerRecord
from queasy.worker.signals import stop_on_signals
from queasy.worker.worker import Worker

__all__ = ["InlineWorker"]

# Pause before the next worker starts, in seconds; it is up to twice as long. Otherwise a server
# that forgets its clients at once would be called without a break.
RESTART_PAUSE = 0.5


class InlineWorker:
    """Runs jobs in the event loop that runs it."""

    def __init__(self, plan: Plan, *, capacity: int, grace: float, signals: bool = True) -> None:
        self._plan = plan
        self._capacity = check_whole(capacity, "capacity", 1, MOST_CAPACITY)
        self._grace = seconds(grace, "grace")
        self._signals = signals
        self._group = new_id()
        self._unserved: set[str] = set()
        self._worker: Worker | None = None
        self._heartbeat: Heartbeat | None = None
        self._must_end: asyncio.Event | None = None
        """Set when the current worker must end: it was stopped, or the server declared it dead."""
        self._lost = False
        """The server declared the current worker dead."""
        self._ever_served = False
        """A worker has started once. From then on a start that fails is repeated, not raised."""
        self._stopping = False

    async def run(self) -> None:
        """Works until it is stopped: by a signal, by `stop`, or by being cancelled."""
        if self._must_end is not None:
            raise RuntimeError("this worker has run before: make a new one")
        self._must_end = asyncio.Event()
        store = self._plan.place.store()
        queues = {service.queue for service in self._plan.services}
        control = Control(store, self._carry_out_order)
        try:
            with stop_on_signals(self.stop, wanted=self._signals):
                control.listen(self._plan.place.controls(self._group, queues))
                while not self._stopping:
                    try:
                        await self._run_worker(self._new_worker(store))
                    except QueasyError as problem:
                        if not self._ever_served:  # most likely a wrong URL or setting
                            raise
                        event("worker_start_failed", logging.WARNING, error=problem)
                    if not self._stopping:
                        await asyncio.sleep(random.uniform(RESTART_PAUSE, 2 * RESTART_PAUSE))
        finally:
            await control.close()
            await store.close()

    def _new_worker(self, store: AsyncStore) -> Worker:
        queues = len(self._plan.services)
        return Worker(
            self._plan,
            store,
            new_id(),
            InflightTable(queues, self._capacity),
            capacity=self._capacity,
            safety=safety_interval(queues),
            lost=self._was_lost,
        )

    async def _run_worker(self, worker: Worker) -> None:
        """Runs one worker until it is stopped, or the server declares it dead."""
        assert self._must_end is not None
        self._lost = False
        self._worker = worker
        if not self._stopping:
            self._must_end.clear()
        record = WorkerRecord.here(self._group, 0, self._capacity, job_sizes(self._plan))
        served = {service.queue for service in self._plan.services} - self._unserved
        try:
            with _heartbeats(worker, self._plan, self._was_lost) as self._heartbeat:
                await worker.start(record, served)
                self._ever_served = True
                event("worker_started", client=worker.client, queues=sorted(served),
                      capacity=self._capacity)  # fmt: skip
                await self._must_end.wait()
                if self._lost and not self._stopping:
                    event("worker_declared_dead", logging.WARNING, client=worker.client,
                          why="the server declared it dead; its jobs run elsewhere")  # fmt: skip
                    await self._stop(worker, at_once=True)
                else:
                    await self._stop(worker)
        except (asyncio.CancelledError, QueasyError):  # or it could not even start
            await asyncio.shield(self._stop(worker, at_once=True))
            raise
        finally:
            worker.dispose()
            self._worker = None

    async def _stop(self, worker: Worker, *, at_once: bool = False) -> None:
        if not await worker.stop(0.0 if at_once else self._grace):
            # These jobs are not released: another worker would run them beside the runs here.
            names = [job.id for job in worker.running]
            event("waiting_for_uninterruptible_runs", logging.WARNING, jobs=names)
            if not at_once:
                await worker.wait_until_drained()
        if not worker.running:
            with contextlib.suppress(QueasyError):  # its leases run out by themselves
                await worker.leave()
        event("worker_stopped", client=worker.client)

    @property
    def ready(self) -> bool:
        """Whether it takes jobs: it has started, is not being stopped, and the server answers."""
        away = self._heartbeat is not None and self._heartbeat.is_failing
        return self._worker is not None and self._worker.ready and not away

    def stop(self, grace: float | None = None) -> None:
        """Takes no more jobs. Runs have `grace` seconds to end; a second call leaves them none."""
        if self._stopping:
            grace = 0.0
        self._stopping = True
        if self._worker is not None:
            self._worker.hasten(self._grace if grace is None else grace)
        if self._must_end is not None:
            self._must_end.set()

    def _was_lost(self) -> None:
        self._lost = True
        if self._must_end is not None:
            self._must_end.set()

    async def serve(self, queue: str) -> None:
        """Takes jobs of this queue again."""
        self._unserved.discard(queue)
        if self._worker is not None:
            await self._worker.serve(queue)

    async def unserve(self, queue: str, *, release: bool = False) -> None:
        """Takes no more jobs of this queue. Runs may end, or are released."""
        self._unserved.add(queue)
        if self._worker is not None:
            await self._worker.unserve(queue, release=release)

    async def _carry_out_order(self, do: str, queue: str, release: bool) -> None:
        await (self.serve(queue) if do == "serve" else self.unserve(queue, release=release))


@contextlib.contextmanager
def _heartbeats(worker: Worker, plan: Plan, lost: Callable[[], None]) -> Generator[Heartbeat]:
    """Sends heartbeats from another thread: this loop may be blocked for longer than a lease."""
    loop = asyncio.get_running_loop()

    def call_in_loop(function: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the worker gone
            loop.call_soon_threadsafe(function, *args)

    def cancel(index: int, cancelled: Cancelled) -> None:
        call_in_loop(worker.cancel, index, cancelled.id, cancelled.token)

    stop = threading.Event()
    store = plan.place.store(timeout=LEASE / 3)
    heartbeat = Heartbeat(store)
    queues = [service.commands for service in plan.services]
    heartbeat.add(
        WorkerLeases(
            worker.client, queues, worker.table, lambda: call_in_loop(lost), cancel, inline=True
        )
    )

    async def beat() -> None:
        beating = asyncio.create_task(heartbeat.run())
        await asyncio.to_thread(stop.wait)
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        await store.close()

    thread = threading.Thread(target=lambda: asyncio.run(beat()), name="queasy-heartbeat")
    thread.daemon = True
    thread.start()
    try:
        yield heartbeat
    finally:
        stop.set()
        thread.join()
