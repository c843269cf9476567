"""A worker in the calling process: for tests, small applications, and development.

No supervisor can freeze or kill it. If the server does not confirm its leases, it cancels its runs
before another client can get the jobs. An async handler that ignores its cancellation, or a plain
function inside native code, keeps its job until it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
from collections.abc import Callable, Generator

from queasy.dispatch import new_client_id, new_id
from queasy.errors import InvalidOption, QueasyError
from queasy.options import Seconds, check_whole, seconds
from queasy.registry import Resolved
from queasy.store.records import Cancelled
from queasy.store.store import AsyncStore
from queasy.worker.control import Control, Order
from queasy.worker.events import event
from queasy.worker.lease_times import DEFAULT_LEASE, LeaseTimes
from queasy.worker.liveness.heartbeat import Heartbeat, WorkerLeases
from queasy.worker.liveness.inflight_table import InflightTable
from queasy.worker.plan import MOST_CAPACITY, Plan, job_sizes, safety_interval
from queasy.worker.signals import stop_on_signals
from queasy.worker.worker import Worker
from queasy.worker_record import WorkerRecord

__all__ = ["InlineWorker"]


# Seconds, at least, before a new worker replaces one that was declared dead or could not start. A
# server that declares each worker dead at once must not receive registrations without a pause.
RESTART_PAUSE = 0.5
# How many queues an inline worker has room for whose handlers are registered while it runs.
MORE_QUEUES = 1000


class InlineWorker:
    """Runs jobs in the caller's event loop.

    1. It starts a `Worker`, and replaces it with a new one when the server declares it dead.
    2. It keeps the worker's leases with heartbeats from a thread.
    3. It carries out orders to serve or unserve a queue, and remembers them for the next worker.
    4. It takes up handlers that the application registers while it runs.
    5. It stops on `stop`, when its task is cancelled and, if it should, on a signal.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        capacity: int,
        grace: float,
        lease: Seconds = DEFAULT_LEASE,
        signals: bool = False,
        run_unconfirmed: bool = False,
    ) -> None:
        self._plan = plan
        self._run_unconfirmed = run_unconfirmed
        self._capacity = check_whole(capacity, "capacity", 1, MOST_CAPACITY)
        self._grace = seconds(grace, "grace")
        self._times = LeaseTimes.checked(lease)
        self._signals = signals
        self._group = new_id()
        self._unserved: set[str] = set()
        """Queues this worker was ordered to leave. Its replacement does not serve them either."""
        self._worker: Worker | None = None
        self._heartbeat: Heartbeat | None = None
        self._worker_must_end: asyncio.Event | None = None
        self._declared_dead = False
        self._most_queues = len(plan.services) + MORE_QUEUES
        self._ever_served = False
        """A worker has started before, so a failure to start is logged and tried again."""
        self._stopping = False

    async def run(self) -> None:
        """Work until stopped by a signal, by `stop`, or by cancellation."""
        if self._worker_must_end is not None:
            raise RuntimeError("this worker was run before: make another")
        self._worker_must_end = asyncio.Event()
        store = self._plan.place.store()
        control = self._control = Control(store, self._carry_out)
        self._loop = asyncio.get_running_loop()
        try:
            with (
                stop_on_signals(self.stop, wanted=self._signals),
                self._plan.registry.watched(self._take_up),
            ):
                self._plan = self._plan.renewed()  # handlers registered since it was made
                self._listen_for_orders()
                while not self._stopping:
                    try:
                        await self._run_worker(self._new_worker(store))
                    except QueasyError as problem:
                        if not self._ever_served:  # most likely a mistake in the configuration
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
            new_client_id(),
            InflightTable(queues + MORE_QUEUES, self._capacity, times=self._times),
            capacity=self._capacity,
            safety_poll_seconds=safety_interval(queues),
            on_declared_dead=self._on_declared_dead,
            ends_unconfirmed=not self._run_unconfirmed,
        )

    async def _run_worker(self, worker: Worker) -> None:
        """Run one worker until it is stopped or the server declares it dead."""
        assert self._worker_must_end is not None
        self._declared_dead = False
        self._worker = worker
        if not self._stopping:
            self._worker_must_end.clear()
        record = self._record()
        served = {service.queue for service in self._plan.services} - self._unserved
        try:
            with _heartbeats(worker, self._plan, self._on_declared_dead) as self._heartbeat:
                await worker.start(record, served)
                self._ever_served = True
                event("worker_started", client=worker.client, queues=sorted(served),
                      capacity=self._capacity, server=self._plan.place.server)  # fmt: skip
                await self._worker_must_end.wait()
                if self._declared_dead and not self._stopping:
                    event("worker_declared_dead", logging.WARNING, client=worker.client,
                          why="the server declared it dead; its jobs run elsewhere")  # fmt: skip
                    await self._stop_worker(worker, at_once=True)
                else:
                    await self._stop_worker(worker)
        except (asyncio.CancelledError, QueasyError):  # cancelled, or the worker could not start
            await asyncio.shield(self._stop_worker(worker, at_once=True))
            raise
        finally:
            worker.dispose()
            self._worker = None

    def _listen_for_orders(self) -> None:
        queues = {service.queue for service in self._plan.services}
        self._control.listen(self._plan.place.controls(self._group, queues))

    def _record(self) -> WorkerRecord:
        sizes = job_sizes(self._plan)
        return WorkerRecord.here(self._group, 0, self._capacity, sizes, self._times.lease)

    def _take_up(self, handlers: list[Resolved]) -> None:
        """Serve handlers that are being registered, perhaps by another thread."""
        if len(self._plan.services) + len(handlers) > self._most_queues:
            raise InvalidOption(
                f"a worker that runs takes up at most {MORE_QUEUES} more queues: register handlers "
                "before it starts"
            )
        with contextlib.suppress(RuntimeError):  # the loop is closed: this worker has ended
            self._loop.call_soon_threadsafe(self._serve_more, handlers)

    def _serve_more(self, handlers: list[Resolved]) -> None:
        """Serve them now, and in the next worker if the server declares this one dead."""
        known = len(self._plan.services)
        self._plan = self._plan.with_more(handlers)
        self._listen_for_orders()
        for service in self._plan.services[known:]:
            if self._worker is not None:
                serve = service.queue not in self._unserved
                self._worker.add(service, self._record(), serve=serve)

    async def _stop_worker(self, worker: Worker, *, at_once: bool = False) -> None:
        if not await worker.stop(0.0 if at_once else self._grace):
            # A job released now would run elsewhere while its run here continues.
            ids = [job.id for job in worker.running]
            event("waiting_for_uninterruptible_runs", logging.WARNING, jobs=ids)
            if not at_once:
                await worker.wait_until_drained()
        if not worker.running:
            with contextlib.suppress(QueasyError):  # the leases expire by themselves
                await worker.leave()
        event("worker_stopped", client=worker.client)

    @property
    def ready(self) -> bool:
        """Whether it takes jobs: it has started, is not stopping, and the server answers."""
        unreachable = self._heartbeat is not None and self._heartbeat.is_failing
        return self._worker is not None and self._worker.ready and not unreachable

    def stop(self, grace: float | None = None) -> None:
        """Take no more jobs. Running jobs have `grace` seconds to end, none after a second call."""
        if self._stopping:
            grace = 0.0
        self._stopping = True
        if self._worker is not None:
            self._worker.hasten(self._grace if grace is None else grace)
        if self._worker_must_end is not None:
            self._worker_must_end.set()

    def _on_declared_dead(self) -> None:
        self._declared_dead = True
        if self._worker_must_end is not None:
            self._worker_must_end.set()

    async def serve(self, queue: str) -> None:
        """Take jobs of this queue again."""
        self._unserved.discard(queue)
        if self._worker is not None:
            await self._worker.serve(queue)

    async def unserve(self, queue: str, *, release: bool = False) -> None:
        """Take no more jobs of this queue. Jobs that run may end, or are released."""
        self._unserved.add(queue)
        if self._worker is not None:
            await self._worker.unserve(queue, release=release)

    def _evict(self, client: str) -> None:
        """Interrupts the runs of the worker and releases their jobs. Another worker follows."""
        worker, must_end = self._worker, self._worker_must_end
        if worker is not None and worker.client == client and must_end is not None:
            if not must_end.is_set():
                event("worker_evicted", logging.WARNING, client=client)
            worker.hasten(0.0)
            must_end.set()

    async def _carry_out(self, order: Order) -> None:
        match order.do:
            case "serve":
                await self.serve(order.queue)
            case "unserve":
                await self.unserve(order.queue, release=order.release)
            case "evict":
                self._evict(order.client)


@contextlib.contextmanager
def _heartbeats(
    worker: Worker, plan: Plan, on_declared_dead: Callable[[], None]
) -> Generator[Heartbeat]:
    """Send heartbeats from a thread: the event loop may be blocked for longer than a lease."""
    loop = asyncio.get_running_loop()

    def call_in_loop(function: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so the worker has ended
            loop.call_soon_threadsafe(function, *args)

    def cancel(index: int, cancelled: Cancelled) -> None:
        call_in_loop(worker.cancel, index, cancelled.id, cancelled.token)

    stop = threading.Event()
    store = plan.place.store(timeout=worker.table.times.call_timeout)
    heartbeat = Heartbeat(store, worker.table.times)
    heartbeat.add(
        WorkerLeases(
            worker.client,
            worker.commands,
            worker.table,
            lambda: call_in_loop(on_declared_dead),
            cancel,
            on_destroyed=lambda index: call_in_loop(worker.rejoin, index),
            inline=True,
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
