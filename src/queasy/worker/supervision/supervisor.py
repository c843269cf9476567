"""The supervisor does what a busy, frozen or dead worker cannot do for itself.

1. It starts the children, and replaces one that died, has run `max_jobs` jobs, has grown too
   large, or runs old code (`child_pool`).
2. It keeps their leases alive, however busy they are (`server_link`).
3. It reads their tables. If the server does not confirm the leases of a child's runs, it freezes
   the child before another client can get the jobs. It thaws the child when the server confirms
   them, and kills it if they are gone. If a run does not end after its deadline, it kills the
   process. Before that, the other jobs of the process may end, while a new child takes over
   (`watchdog`).
4. When a child is gone, it returns the child's jobs at once (`recovery`). Jobs that had started in
   a child that died are suspects, the others are not.
5. When a handler blocks the event loop of a child, it gives back the jobs that the child has taken
   and not begun (`give_back`).
6. It passes orders on to its children, and stops them.

No code of the application runs in this process.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Coroutine
from typing import Any

from queasy.dispatch import new_id
from queasy.errors import CannotWork, InvalidOption
from queasy.worker.control import Order
from queasy.worker.events import MAX_JOBS_LOGGED, event, log_error
from queasy.worker.lease_times import LeaseTimes
from queasy.worker.signals import stop_on_signals
from queasy.worker.supervision import machine
from queasy.worker.supervision.child_pool import ChildPool
from queasy.worker.supervision.child_process import ChildProcess
from queasy.worker.supervision.child_state import run_key
from queasy.worker.supervision.messages import ChildConfig, Instruction, Serve, Unserve
from queasy.worker.supervision.options import SupervisorOptions, child_config
from queasy.worker.supervision.reload import watch_code
from queasy.worker.supervision.server_link import ServerLink
from queasy.worker.supervision.watchdog import (
    KILL_AFTER_GRACE,
    Action,
    DrainThenKill,
    Freeze,
    Kill,
    Limits,
    Retire,
    Thaw,
    decide,
    outstays_stop,
)

__all__ = ["Supervisor"]

# Whether another program stopped a child is read from /proc in every fourth round only.
ROUNDS_PER_STOPPED_CHECK = 4


class Supervisor:
    """Starts, watches, replaces and stops the worker processes of an application."""

    def __init__(self, options: SupervisorOptions, *, signals: bool = True) -> None:
        self._options = options
        self._signals = signals
        self._times = LeaseTimes.of(options.lease)
        self._limits = Limits(options.grace, options.max_memory, self._times)
        self._group = new_id()
        self._unserved: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = ServerLink(self._group, self._times, self._carry_out_order, self._run_task)
        self._pool = ChildPool(
            options, self._server, self._child_config, self._run_task, self._give_up
        )
        self._stopping = asyncio.Event()
        self._stop_by = 0.0
        self._problem: CannotWork | None = None

    async def run(self) -> None:
        """Runs until it is stopped. Raises CannotWork if no child could start at all."""
        options = self._options
        event("supervisor_started", pid=os.getpid(), app=options.app, processes=options.processes,
              worker=self._group)  # fmt: skip
        watching = asyncio.create_task(self._watch())
        try:
            with stop_on_signals(self.stop, wanted=self._signals):
                self._pool.replenish()
                if options.reload:
                    self._run_task(watch_code(self.reload))
                await self._stopping.wait()
                await self._wait_for_children()
        except asyncio.CancelledError:
            self.stop(0.0)
            await asyncio.shield(self._wait_for_children())
            raise
        finally:
            watching.cancel()
            for child in self._pool.children:
                child.kill("stop")
            await self._close()
        if self._problem is not None:
            raise self._problem
        event("supervisor_stopped", pid=os.getpid(), worker=self._group)

    def _run_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            log_error("internal_error", problem, where="supervisor")

    def _child_config(self) -> ChildConfig:
        return child_config(self._options, self._group, self._unserved)

    def _give_up(self, problem: CannotWork) -> None:
        """Stops, and makes `run` raise: no child can start."""
        self._problem = problem
        self.stop(0.0)

    def reload(self) -> None:
        """Replaces all children: the new ones import the code as it is now."""
        event("workers_reloading", worker=self._group)
        self._pool.reload()

    # Watching

    async def _watch(self) -> None:
        """Checks every child four times a second or more often, until it is cancelled."""
        is_reaper = machine.is_reaper()
        for rounds in itertools.count():
            now = time.monotonic()
            self._pool.note_settled(now)
            for child in self._pool.children:
                child.table.supervisor_ran(now)
                if child.pid:
                    try:
                        self._check(child, now, rounds % ROUNDS_PER_STOPPED_CHECK == 0)
                    except Exception as problem:  # the other children must be checked all the same
                        log_error("internal_error", problem, where="watchdog", pid=child.pid)
            if is_reaper:
                self._pool.reap_orphans()
            await asyncio.sleep(self._times.watch_every)

    def _check(self, child: ChildProcess, now: float, with_stopped: bool) -> None:
        """Carries out what the watchdog decides about a child."""
        with_memory = self._limits.max_memory is not None
        snapshot = child.observe(now, with_memory=with_memory, with_stopped=with_stopped)
        for action in decide(snapshot, self._limits):
            self._carry_out(child, action, now)
        self._server.observe(child, now)
        if child.state.kill_by is not None:
            self._pool.replenish()  # another child takes over

    def _carry_out(self, child: ChildProcess, action: Action, now: float) -> None:
        fields = {"pid": child.pid, "client": child.client}
        match action:
            case Freeze():
                is_new = child.state.frozen_at is None
                child.freeze(now)  # first: a log may block
                if is_new:
                    jobs = [entry.id for entry in child.table.entries()]
                    event("process_frozen", logging.WARNING, **fields, seconds=action.unconfirmed,
                          runs=len(jobs), jobs=jobs[:MAX_JOBS_LOGGED],
                          why="the server did not confirm the leases: other workers may soon have "
                          "the jobs")  # fmt: skip
            case Thaw():
                if self._stopping.is_set():  # the time of a stop passes for a frozen child too
                    child.stop(max(0.0, self._stop_by - now))
                runs = child.table.run_count
                event("process_thawed", **fields, seconds=child.thaw(now), runs=runs)
            case Kill():
                event("process_killing", logging.WARNING, **fields, why=action.reason,
                      job=action.job, overdue=action.overdue, others=action.others,
                      suspects=action.suspects, bytes=action.bytes)  # fmt: skip
                child.kill(action.reason, frozenset(map(run_key, action.runs)))
            case DrainThenKill():
                event("process_draining", logging.WARNING, **fields, job=action.job, why="overdue")
                child.condemn(action.kill_by)
            case Retire():
                self._pool.retire(child, action.why)

    # Stopping, and orders

    @property
    def ready(self) -> bool:
        """Whether jobs are taken: a child serves, no stop was requested, and the server answers."""
        taking = any(child.state.takes_jobs for child in self._pool.children)
        return taking and not self._stopping.is_set() and not self._server.is_failing

    def stop(self, grace: float | None = None) -> None:
        """Takes no more jobs. Runs have `grace` seconds to end; after a second call, none."""
        if self._stopping.is_set():
            grace = 0.0
        grace = self._options.grace if grace is None else grace
        runs = sum(child.table.run_count for child in self._pool.children)
        event("supervisor_stopping", worker=self._group, grace=grace, runs=runs,
              hint="again to stop at once" if runs and grace else None)  # fmt: skip
        self._stopping.set()
        self._pool.close()
        self._stop_by = time.monotonic() + grace
        for child in self._pool.children:
            child.stop(grace)

    async def _wait_for_children(self) -> None:
        """Waits until every child is gone and its jobs are returned; kills those that stay."""
        while tasks := self._pool.tasks:
            now = time.monotonic()
            if now - self._stop_by >= KILL_AFTER_GRACE and not self._pool.children:
                return  # the server does not answer; the leases of the last jobs will expire
            for child in self._pool.children:
                if outstays_stop(child.observe(now), now - self._stop_by):
                    child.kill("stop")
            await asyncio.wait(tasks, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)

    async def _close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._pool.dispose()
        await self._server.close()

    async def serve(self, queue: str) -> None:
        """Makes all children take jobs of this queue again."""
        self._check_known(queue)
        self._unserved.discard(queue)
        self._send_to_all(Serve(queue))

    async def unserve(self, queue: str, *, release: bool = False) -> None:
        """Makes all children take no more jobs of this queue; runs may end, or are released."""
        self._check_known(queue)
        self._unserved.add(queue)
        self._send_to_all(Unserve(queue, release))

    def _check_known(self, queue: str) -> None:
        plans = [child.state.planned for child in self._pool.children]
        known = {name for plan in plans if plan is not None for name, _ in plan.queues}
        if queue not in known:
            raise InvalidOption(
                f"no handler for queue {queue[:200]!r}; expected one of {sorted(known)}"
            )

    def _send_to_all(self, instruction: Instruction) -> None:
        for child in self._pool.children:
            child.send(instruction)

    def _evict(self, client: str) -> None:
        """Kills a child: its jobs return to their queues, and another child takes its place."""
        for child in self._pool.children:
            if child.client == client and not child.state.is_killed:
                event("process_killing", logging.WARNING, pid=child.pid, client=client,
                      why="evicted")  # fmt: skip
                child.kill("evicted")

    async def _carry_out_order(self, order: Order) -> None:
        match order.do:
            case "serve":
                await self.serve(order.queue)
            case "unserve":
                await self.unserve(order.queue, release=order.release)
            case "evict":
                self._evict(order.client)
