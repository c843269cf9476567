"""The supervisor: what a worker that is busy, frozen or dead cannot do for itself.

1. It starts the children, and others in their place: when one dies, has run enough jobs, has
   grown too large, or the code changed.
2. It keeps their leases alive, however busy they are.
3. It reads their tables: a run past its deadline ends, if need be with its process; the other
   jobs of that process may end first, while a new one takes over.
4. When a child died it returns its jobs at once: what had started is a suspect, the rest is not.
5. It stops them, in order.

No code of the application runs here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import random
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any

from queasy.dispatch import new_id
from queasy.errors import CannotWork, InvalidOption, QueasyError
from queasy.store.records import Cancelled
from queasy.store.store import AsyncStore
from queasy.worker.control import Control
from queasy.worker.events import event, log
from queasy.worker.liveness.heartbeat import Heartbeat, Pulse
from queasy.worker.plan import LEASE
from queasy.worker.signals import stop_on_signals
from queasy.worker.supervision.child_process import ChildProcess
from queasy.worker.supervision.messages import (
    CancelRun,
    CannotStart,
    Drain,
    Leaving,
    Planned,
    Report,
    Serve,
    Serving,
    Stop,
    ToChild,
    Unserve,
    WornOut,
)
from queasy.worker.supervision.options import SupervisorOptions, child_config
from queasy.worker.supervision.recovery import bury
from queasy.worker.supervision.reload import watch_code
from queasy.worker.supervision.suspect_policy import choose_takers
from queasy.worker.supervision.watchdog import (
    ASKED,
    is_frozen,
    look_at_runs,
    look_for_life,
    outgrew,
)

__all__ = ["Supervisor"]

TICK = 0.25
# A child interrupts and reports for a while after the grace time; then it is killed.
PATIENCE = 10.0
FIRST_BACKOFF, LONGEST_BACKOFF = 0.5, 30.0
SHOWN = 5
# A child that held nothing is forgotten by the server in time; no need to insist.
SHORT = 1.0


class Supervisor:
    """See above."""

    def __init__(self, options: SupervisorOptions, *, signals: bool = True) -> None:
        self._options = options
        self._signals = signals
        self._group = new_id()
        self._children: list[ChildProcess] = []
        self._unserved: set[str] = set()
        self._store: AsyncStore | None = None
        self._heartbeat: Heartbeat | None = None
        self._control: Control | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._lives: set[asyncio.Task[None]] = set()
        self._starting = 0
        self._failures, self._failed_at = 0, 0.0
        self._ever_served = False
        self._halted = False
        """With reload: the code is broken, and nothing starts until it changes."""
        self._stopping = False
        self._stop_event = asyncio.Event()
        self._stop_by = 0.0
        self._changed = asyncio.Event()
        self._problem: QueasyError | None = None
        self._complaint: CannotStart | None = None

    async def run(self) -> None:
        """Until it is stopped. Raises when no child could start at all."""
        options = self._options
        event("supervisor started", pid=os.getpid(), app=options.app, processes=options.processes,
              worker=self._group)  # fmt: skip
        watching = asyncio.create_task(self._watch())
        try:
            with stop_on_signals(self.stop, wanted=self._signals):
                self._replenish()
                if options.reload:
                    self._begin(watch_code(self.reload))
                await self._until(lambda: self._stopping)
                await self._wind_up()
        except asyncio.CancelledError:
            self.stop(0.0)
            await asyncio.shield(self._wind_up())
            raise
        finally:
            watching.cancel()
            for child in self._children:
                child.kill("stop")
            await self._close()
        if self._problem is not None:
            raise self._problem
        event("supervisor stopped", pid=os.getpid(), worker=self._group)

    async def _until(self, condition: Any) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._lives.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            logging.getLogger("queasy").error("in a supervisor", exc_info=problem)
        self._changed.set()

    # 1. Children

    def _replenish(self) -> None:
        """As many as there should be, those about to start and to be replaced counted."""
        for _ in range(self._options.processes - len(self._working()) - self._starting):
            if not self._stopping and not self._halted:
                self._starting += 1
                self._lives.add(self._begin(self._life()))

    def _working(self) -> list[ChildProcess]:
        """Those who are to go on."""
        return [child for child in self._children if not child.ending and not child.retiring]

    async def _life(self) -> None:
        """One child from its start to its end."""
        try:
            if self._failures:
                most = min(LONGEST_BACKOFF, FIRST_BACKOFF * 2 ** (self._failures - 1))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(most * random.uniform(0.5, 1.0)):
                        await self._stop_event.wait()
            if self._stopping:
                return
            child = ChildProcess(child_config(self._options, self._group, self._unserved))
            self._children.append(child)
        except OSError as problem:  # out of files
            event("cannot start", logging.ERROR, app=self._options.app, error=problem)
            self._note_failure()
            asyncio.get_running_loop().call_soon(self._replenish)
            return
        finally:
            self._starting -= 1
        code = None
        try:
            await child.start()
            if self._stopping:
                child.end(Stop(0.0))
            code = await child.live(partial(self._hear, child))
        except OSError as problem:  # out of processes, memory or files
            event("cannot start", logging.ERROR, app=self._options.app, error=problem)
        finally:
            child.kill_group()  # it, and what its handlers had started
            self._children.remove(child)
            if self._heartbeat is not None:
                self._heartbeat.forget(child.client)
        self._note_end(child, code)
        self._replenish()
        try:
            await self._bury(child)
        finally:
            await child.close()

    def _hear(self, child: ChildProcess, report: Report) -> None:
        match report:
            case Planned():
                self._keep_alive(child, report)
            case Serving():
                child.serving = self._ever_served = True
                event("child serving", pid=child.pid, client=child.client,
                      seconds=time.monotonic() - child.born)  # fmt: skip
                for old in [old for old in self._children if old.retiring and not old.ending][:1]:
                    old.end(Drain())
            case WornOut():
                self._retire(child, "jobs")
            case Leaving():
                child.leaving = True
            case CannotStart():
                child.leaving = True
                self._cannot_start(report)

    def _note_end(self, child: ChildProcess, code: int | None) -> None:
        """One line, and what follows from it for the next."""
        fields = {"pid": child.pid, "client": child.client, "why": child.killed}
        if child.leaving or child.killed == "stop":
            event("child ended", **fields)
            if not child.serving:
                self._note_failure()  # it could not even start
        else:
            how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
            jobs = [entry.id for entry in child.table.entries()]
            event("child died", logging.WARNING, **fields, how=how, runs=len(jobs),
                  jobs=jobs[:SHOWN])  # fmt: skip
            if not child.serving or not (child.table.runs or child.settled(time.monotonic())):
                self._note_failure()  # nothing to do with its jobs

    def _note_failure(self) -> None:
        """The next starts after a longer pause."""
        self._failures += 1
        self._failed_at = time.monotonic()

    def _cannot_start(self, report: CannotStart) -> None:
        """Said once, although every child finds out for itself."""
        options = self._options
        if self._ever_served or options.reload:
            if report != self._complaint:
                event("cannot start", logging.ERROR, app=options.app, error=report.error)
            self._complaint = report
            self._halted = options.reload  # until the code changes
        elif self._problem is None:
            error = report.error.removeprefix("app: ")
            self._problem = CannotWork(f"{options.app}: {error}")
            if report.traceback:
                logging.getLogger("queasy").error("importing %s\n%s", options.app, report.traceback)
            self.stop(0.0)

    def _retire(self, child: ChildProcess, why: str) -> None:
        """Another takes its place; then it is drained."""
        if not child.retiring and not child.ending:
            child.retiring = True
            event("child to be replaced", pid=child.pid, client=child.client, why=why)
            self._replenish()

    def reload(self) -> None:
        """New children for all, with the code as it is now."""
        event("reloading", worker=self._group)
        self._failures, self._halted = 0, False
        for child in list(self._children):
            self._retire(child, "reload")
        self._replenish()

    # 2. Leases

    def _connect(self, planned: Planned) -> Heartbeat:
        """The first child says where the server is."""
        if self._heartbeat is None:
            self._store = planned.place.store(timeout=LEASE / 3)
            self._control = Control(self._store, self._commanded)
            self._heartbeat = Heartbeat(self._store)
            self._begin(self._heartbeat.run())
        return self._heartbeat

    def _keep_alive(self, child: ChildProcess, planned: Planned) -> None:
        def lost() -> None:
            event("worker lost", logging.WARNING, pid=child.pid, client=child.client,
                  why="the server took it for dead; its jobs run elsewhere")  # fmt: skip
            child.kill("lost")

        def cancel(queue: int, cancelled: Cancelled) -> None:
            run = (queue, cancelled.id, cancelled.token)
            if run not in child.cancels:
                child.cancels[run] = time.monotonic()
                child.tell(CancelRun(queue, cancelled.id, cancelled.token))

        child.planned = planned
        queues = [planned.place.commands(name, fail=fail) for name, fail in planned.queues]
        heartbeat = self._connect(planned)
        if self._control is not None:
            names = {name for name, _ in planned.queues}
            self._control.listen(planned.place.controls(self._group, names))
        heartbeat.pulses.append(Pulse(child.client, queues, child.table, lost, cancel))

    # 3. Watching

    async def _watch(self) -> None:
        for ticks in itertools.count():
            now = time.monotonic()
            # One that was there before says nothing of those that fail to start.
            if any(c.settled(now) and c.born > self._failed_at for c in self._children):
                self._failures = 0
            for child in list(self._children):
                child.table.supervise(now)
                if child.pid:
                    try:
                        self._look_at(child, now, closely=ticks % 4 == 0)
                    except Exception:  # of one child: the others must be looked at, too
                        log.exception("looking at child %d", child.pid)
            try:
                choose_takers(self._working(), self._options.processes)
            except Exception:  # whatever it is: timeouts must be seen to
                log.exception("choosing who takes suspects")
            await asyncio.sleep(TICK)

    def _look_at(self, child: ChildProcess, now: float, *, closely: bool) -> None:
        options = self._options
        look_at_runs(child, now, options.grace)
        limit = options.max_memory
        if limit is not None and outgrew(child, limit) and child.settled(now):
            self._retire(child, "memory")
        if closely:
            look_for_life(child, now)
        if child.drain_by:  # another takes over
            self._replenish()

    # 4. The dead

    async def _bury(self, child: ChildProcess) -> None:
        if self._store is None or child.planned is None or (child.leaving and not child.serving):
            return
        died = not child.leaving and child.killed in (None, "memory", "frozen")
        returned = await bury(
            self._store, child.planned, child.client, child.table.entries(),
            died=died,
            cancelled=frozenset(child.cancels),
            overdue_at=child.killed_at if child.killed == "overdue" else None,
            patience=None if child.table.held(len(child.planned.queues)) else SHORT,
        )  # fmt: skip
        if returned:
            event("jobs returned", client=child.client, jobs=returned)

    # 5. Stopping, and orders

    @property
    def ready(self) -> bool:
        """Whether jobs are taken: a child has started, nobody is being stopped, and the server
        answers.
        """
        away = self._heartbeat is not None and self._heartbeat.away
        taking = any(child.serving and not child.ending for child in self._children)
        return taking and not self._stopping and not away

    def stop(self, grace: float | None = None) -> None:
        """Take nothing more; what runs has `grace` seconds to end. A second call: none."""
        if self._stopping:
            grace = 0.0
        grace = self._options.grace if grace is None else grace
        runs = sum(child.table.runs for child in self._children)
        event("stopping", worker=self._group, grace=grace, runs=runs,
              hint="again to stop at once" if runs and grace else None)  # fmt: skip
        self._stopping = True
        self._stop_event.set()
        self._stop_by = time.monotonic() + grace
        for child in self._children:
            child.end(Stop(grace))
        self._changed.set()

    async def _wind_up(self) -> None:
        """Until every child is gone, by itself or not, and its jobs are returned."""
        while self._lives:
            left = self._stop_by + PATIENCE - time.monotonic()
            if left <= 0 and not self._children:
                return  # the server is away: the leases will run out
            for child in self._children:
                if left <= 0 or (left < PATIENCE - ASKED and is_frozen(child)):
                    child.kill("stop")
            await asyncio.wait(self._lives, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)

    async def _close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._control is not None:
            await self._control.close()
        if self._store is not None:
            await self._store.close()

    async def serve(self, queue: str) -> None:
        """All children take jobs of this queue again."""
        self._check_known(queue)
        self._unserved.discard(queue)
        self._tell_all(Serve(queue))

    async def unserve(self, queue: str, *, release: bool = False) -> None:
        """No child takes jobs of this queue; those they hold may end, or are released."""
        self._check_known(queue)
        self._unserved.add(queue)
        self._tell_all(Unserve(queue, release))

    def _check_known(self, queue: str) -> None:
        plans = [child.planned for child in self._children if child.planned is not None]
        known = {name for planned in plans for name, _ in planned.queues}
        if queue not in known:
            raise InvalidOption(f"no handler for queue {queue[:200]!r}; there are {sorted(known)}")

    def _tell_all(self, order: ToChild) -> None:
        for child in self._children:
            child.tell(order)

    async def _commanded(self, do: str, queue: str, release: bool) -> None:
        await (self.serve(queue) if do == "serve" else self.unserve(queue, release=release))
