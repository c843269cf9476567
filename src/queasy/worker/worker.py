"""A worker: one event loop that takes jobs, runs them and reports their outcomes.

1. It polls its queues by priority, and takes as many jobs as there is room for (`intake`).
2. Jobs run in tasks (async handlers) or in threads (plain functions) (`execution`).
3. Outcomes are reported with the next poll, in one round trip.
4. A run that is past its deadline or cancelled is asked to end. If it does not, the supervisor
   kills the process.
5. A suspect, a job that ran in a worker that died, runs alone or beside few others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Collection
from functools import partial

from queasy.errors import ProtocolError, QueasyError
from queasy.job import Job
from queasy.store.commands import QueueCommands
from queasy.store.store import AsyncStore
from queasy.worker.events import event, report_suppressed
from queasy.worker.execution.runs import END_GRACE
from queasy.worker.intake.activity import Activity
from queasy.worker.intake.connectivity import Connectivity
from queasy.worker.intake.queue_state import RETRY_PAUSE, QueueState
from queasy.worker.intake.scheduler import Scheduler
from queasy.worker.intake.subscription import Subscription
from queasy.worker.liveness.inflight_table import InflightTable
from queasy.worker.plan import Plan, Service
from queasy.worker_record import WorkerRecord

__all__ = ["Worker"]

# How long a worker that stops waits for the server to accept its last outcomes, in seconds.
REPORT_GRACE = 5.0
BEAT_EVERY = 1.0


class Worker:
    """Takes, runs and reports jobs.

    Calls `on_declared_dead` once if the server declares it dead. With `ends_unconfirmed` it ends
    runs whose leases the server does not confirm. Without it they continue: a supervisor freezes
    the process, or the application accepts that a job runs twice at once.
    """

    def __init__(
        self,
        plan: Plan,
        store: AsyncStore,
        client: str,
        table: InflightTable,
        *,
        capacity: int,
        safety_poll_seconds: float,
        on_declared_dead: Callable[[], None],
        max_jobs: int | None = None,
        job_limit_reached: Callable[[], None] = lambda: None,
        ends_unconfirmed: bool = False,
    ) -> None:
        self.client = client
        self.table = table
        self._connectivity = Connectivity(client)
        self._joining_later: dict[Subscription, asyncio.Task[None]] = {}
        """Tasks that join a queue as soon as its keys are repaired, or the server is back."""
        self._rejoining: dict[Subscription, asyncio.Task[None]] = {}
        """Tasks that join a queue again after it was destroyed."""
        self._store = store
        self._activity = Activity(capacity)
        self.commands: list[QueueCommands] = []
        """The commands of each queue, in the order of the table."""
        self._subscriptions: list[Subscription] = []
        for service in plan.services:
            self._subscribe_to(service)
        self._scheduler = Scheduler(
            self._subscriptions, table, capacity=capacity, safety_poll_seconds=safety_poll_seconds,
            on_declared_dead=on_declared_dead, on_destroyed=self.rejoin,
            max_jobs=max_jobs, job_limit_reached=job_limit_reached,
        )  # fmt: skip
        self._holdings = self._scheduler.holdings
        self._runs = self._holdings.runs
        if ends_unconfirmed:
            self._runs.enable_confirmation_check()
        self._beat_timer: asyncio.TimerHandle | None = None
        self._started = False
        self._record = b""
        self._stop_by = math.inf

    def _subscribe_to(self, service: Service) -> Subscription:
        state = QueueState(service, len(self._subscriptions), self.table, self._activity)
        subscription = Subscription(state, self.client, self._store, self._connectivity)
        self.commands.append(service.commands)
        self._subscriptions.append(subscription)
        return subscription

    # Starting

    async def start(self, record: WorkerRecord, queues: Collection[str] | None = None) -> None:
        """Register with every queue (or those named) and begin to take jobs."""
        self._record = record.pack()
        joining = [s for s in self._subscriptions if queues is None or _queue_of(s) in queues]
        for subscription in joining:
            subscription.state.order_serve()
        results = await asyncio.gather(*map(self._try_to_join, joining))
        problems = [problem for problem in results if problem is not None]
        if problems and len(problems) == len(joining):
            raise problems[0]
        for subscription in joining:
            if not subscription.state.serving:
                self._begin_join_later(subscription)
        self._started = True
        self._beat()
        self._scheduler.schedule_soon()

    def _beat(self) -> None:
        """Show the supervisor that the event loop turns, every second.

        It does so even if nothing runs: a blocked loop cannot report the last outcomes.
        """
        now = time.monotonic()
        self.table.loop_turned(now)
        report_suppressed(now)
        if self.table.stood_down:
            self._scheduler.schedule_soon()
        self._beat_timer = asyncio.get_running_loop().call_later(BEAT_EVERY, self._beat)

    async def _join(self, subscription: Subscription) -> None:
        receive = partial(self._scheduler.receive, subscription)
        await subscription.join(self._record, receive)

    def add(self, service: Service, record: WorkerRecord, *, serve: bool) -> None:
        """Take jobs of one more queue: its handler was registered after the start."""
        self._record = record.pack()
        if service.handler.fail:
            for other in self._of_queue(service.queue, may_be_none=True):
                other.state.note_fail_handler()
        subscription = self._subscribe_to(service)
        self._scheduler.add(subscription)
        if serve and not self._holdings.closing:
            subscription.state.order_serve()
            self._joining_later[subscription] = asyncio.create_task(self._join_added(subscription))

    async def _join_added(self, subscription: Subscription) -> None:
        with contextlib.suppress(QueasyError):
            await self._try_to_join(subscription)
        if not subscription.state.serving:
            await self._join_later(subscription)
        if subscription.state.serving:
            event("queue_served", queue=subscription.state.name, client=self.client)
        self._scheduler.schedule_soon()

    async def _try_to_join(self, subscription: Subscription) -> ProtocolError | None:
        """Join a queue. If its keys are damaged, return the problem: other queues may be usable."""
        queue = subscription.state
        async with queue.order_lock:
            if queue.wanted:  # an order to leave it may have come already
                try:
                    await self._join(subscription)
                except ProtocolError as problem:
                    self._connectivity.damaged(queue.name, problem)
                    return problem
        return None

    def _begin_join_later(self, subscription: Subscription) -> None:
        """Start to retry, unless an earlier order that failed has started it."""
        running = self._joining_later.get(subscription)
        if running is None or running.done():
            task = asyncio.create_task(self._join_later(subscription))
            self._joining_later[subscription] = task

    async def _join_later(self, subscription: Subscription) -> None:
        """Join a queue as soon as its keys are repaired, or the server is back."""
        queue = subscription.state
        while not queue.serving:
            await asyncio.sleep(RETRY_PAUSE)
            async with queue.order_lock:
                if not queue.wanted:
                    return  # the next order to serve the queue tries again
                if not queue.serving:  # another order may have joined it
                    with contextlib.suppress(QueasyError):
                        await self._join(subscription)
        self._connectivity.answered(queue.name)
        self._scheduler.schedule_soon()

    # Queues that are destroyed

    def rejoin(self, index: int) -> None:
        """The queue with this index was destroyed: drop what is held of it, and join it again."""
        subscription = self._subscriptions[index]
        running = self._rejoining.get(subscription)
        if subscription.state.joined and (running is None or running.done()):
            event("queue_destroyed", logging.WARNING, queue=subscription.state.name,
                  client=self.client)  # fmt: skip
            self._rejoining[subscription] = asyncio.create_task(self._rejoin(subscription))

    async def _rejoin(self, subscription: Subscription) -> None:
        """Cancel all runs of the queue: their leases are lost. Join once nothing of it is left."""
        queue, idle = subscription.state, self._holdings.has_nothing_of
        queue.stop_serving()
        for run in self._runs.of_queue(queue.index):
            self._runs.cancel(queue.index, run.job.id, run.job.token)
        self._scheduler.schedule_soon()
        await self._until(lambda: idle(queue))
        async with queue.order_lock:
            if self._holdings.closing or not queue.wanted:
                return  # the worker is about to leave all queues, or this one
            subscription.abandon()
        with contextlib.suppress(QueasyError):
            await self._try_to_join(subscription)
        if queue.wanted and not queue.serving:
            self._begin_join_later(subscription)
        self._scheduler.schedule_soon()

    # Orders

    async def serve(self, queue: str) -> None:
        """Take jobs of this queue again."""
        subscriptions = self._of_queue(queue)
        for subscription in subscriptions:
            subscription.state.order_serve()
        self._scheduler.changed.set()
        for subscription in subscriptions:
            state = subscription.state
            async with state.order_lock:
                if state.wanted and not state.serving:
                    try:
                        await self._join(subscription)
                    except QueasyError:
                        self._begin_join_later(subscription)
                        raise
        event("queue_served", queue=queue, client=self.client)
        self._scheduler.schedule_soon()

    async def unserve(self, queue: str, *, release: bool = False) -> None:
        """Take no more jobs of this queue. Those that run may end, or are released."""
        subscriptions = self._of_queue(queue)
        for subscription in subscriptions:
            subscription.state.order_unserve()
        self._scheduler.schedule_soon()
        if release:
            self._holdings.release([subscription.state for subscription in subscriptions])
        for subscription in subscriptions:
            await self._leave_when_idle(subscription)
        event("queue_unserved", queue=queue, client=self.client)

    async def _leave_when_idle(self, subscription: Subscription) -> None:
        """Leave the queue once nothing of it runs, unless an order to serve it comes meanwhile."""
        queue, idle = subscription.state, self._holdings.has_nothing_of
        while not queue.wanted:
            queue.stop_serving()  # an attempt to join may just have succeeded
            await self._until(lambda: idle(queue) or queue.wanted)
            async with queue.order_lock:
                if not queue.wanted and not queue.serving and idle(queue):
                    await subscription.leave()
                    return

    def _of_queue(self, queue: str, *, may_be_none: bool = False) -> list[Subscription]:
        subscriptions = [s for s in self._subscriptions if _queue_of(s) == queue]
        if not subscriptions and not may_be_none:
            known = sorted(set(map(_queue_of, self._subscriptions)))
            raise QueasyError(f"no handler for queue {queue!r}; expected one of {known}")
        return subscriptions

    def cancel(self, index: int, id_: str, token: int) -> None:
        """Cancel a run of the queue with this index."""
        self._scheduler.cancel(index, id_, token)

    # Stopping

    def close(self) -> None:
        """Take no more jobs. Running jobs continue."""
        self._scheduler.close()

    async def wait_until_drained(self) -> None:
        """Wait until nothing runs and all is reported. The worker must be closed."""
        idle = self._holdings.has_nothing_of
        await self._until(lambda: all(map(idle, self._scheduler.queues)))

    async def stop(self, grace: float) -> bool:
        """Let runs end for `grace` seconds, then release them. False if some did not end."""
        self.hasten(grace)
        self.close()
        await self._while_before(lambda: bool(self._runs), lambda: self._stop_by)
        for run in self._runs:
            self._runs.request_end(run, "stop")
        end_by = time.monotonic() + END_GRACE
        await self._while_before(lambda: bool(self._runs), lambda: end_by)
        report_by = time.monotonic() + REPORT_GRACE
        await self._while_before(self._is_reporting, lambda: report_by)
        return not self._runs

    def _is_reporting(self) -> bool:
        return any(queue.busy for queue in self._scheduler.queues)

    def hasten(self, grace: float) -> None:
        """Limit the time that a stop leaves to runs: at most `grace` seconds from now."""
        self._stop_by = min(self._stop_by, time.monotonic() + grace)
        self._scheduler.changed.set()

    async def leave(self) -> None:
        """Have the queues forget this worker and release what it still holds."""
        serving = [s for s in self._subscriptions if s.state.serving]
        left = await asyncio.gather(*(s.leave() for s in serving), return_exceptions=True)
        for problem in left:  # only now: the worker has left all queues that it could
            if isinstance(problem, BaseException):
                raise problem

    def dispose(self) -> None:
        if self._beat_timer is not None:
            self._beat_timer.cancel()
        for task in [*self._joining_later.values(), *self._rejoining.values()]:
            task.cancel()
        for subscription in self._subscriptions:
            subscription.abandon()
        self._scheduler.dispose()
        report_suppressed()

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition is true."""
        while not condition():
            self._scheduler.changed.clear()
            await self._scheduler.changed.wait()

    async def _while_before(
        self, condition: Callable[[], bool], deadline: Callable[[], float]
    ) -> None:
        """Wait while the condition is true, until the deadline at the latest.

        The deadline is read again after each change, because `hasten` may bring it forward.
        """
        while condition() and (left := deadline() - time.monotonic()) > 0:
            self._scheduler.changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._scheduler.changed.wait()

    # Properties that others read

    @property
    def ready(self) -> bool:
        """Whether the worker takes jobs, and the server answers."""
        return self._started and not self._holdings.closing and self._connectivity.answers

    def run_on_loop(self, loop: asyncio.AbstractEventLoop) -> tuple[int, int] | None:
        """The queue and the token of the run whose handler is on the event loop now; None if there
        is none. Safe to call from any thread.
        """
        run = self._runs.on_loop(loop)
        return None if run is None else (run.queue, run.job.token)

    @property
    def running(self) -> list[Job]:
        return [run.job for run in self._runs]

    @property
    def queues(self) -> list[QueueState]:
        """The state of each queue, to read."""
        return self._scheduler.queues


def _queue_of(subscription: Subscription) -> str:
    """The name of the queue. A fail queue has the name of the queue that it belongs to."""
    return subscription.state.service.queue
