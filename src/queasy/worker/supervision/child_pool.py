"""The children of a supervisor: as many as there should be, each from its start to its end.

1. The pool starts children, after a pause if others have failed.
2. It acts on what children report.
3. It replaces a child that is gone or retiring. It drains a retiring child once a new one serves.
4. When a child is gone, it returns the jobs of that child to their queues (`server_link`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from queasy.errors import CannotWork
from queasy.worker.events import MAX_JOBS_LOGGED, event
from queasy.worker.supervision.child_process import ChildProcess
from queasy.worker.supervision.child_state import Phase
from queasy.worker.supervision.group_killer import GroupKiller
from queasy.worker.supervision.machine import explain, reap_orphans
from queasy.worker.supervision.messages import (
    CannotStart,
    ChildConfig,
    Exiting,
    JobLimitReached,
    Planned,
    Report,
    Serving,
)
from queasy.worker.supervision.options import SupervisorOptions
from queasy.worker.supervision.server_link import ServerLink
from queasy.worker.supervision.start_backoff import StartBackoff
from queasy.worker.supervision.watchdog import overdue_runs

__all__ = ["ChildPool"]

# There are at most this many times `processes` children, including those that drain.
MAX_PER_PROCESS = 2
# If no child has served yet, the supervisor gives up after this many failed starts for each of its
# processes. The pauses between them add up to several seconds.
MAX_FIRST_FAILURES = 4


class ChildPool:
    """Keeps `options.processes` children running until it is closed.

    `new_config` makes the configuration of a new child. `run_task` starts a coroutine as a task
    that the supervisor watches. The pool calls `give_up` if a child cannot start and no child has
    served yet.
    """

    def __init__(
        self,
        options: SupervisorOptions,
        server: ServerLink,
        new_config: Callable[[], ChildConfig],
        run_task: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        give_up: Callable[[CannotWork], None],
    ) -> None:
        self._options = options
        self._server = server
        self._new_config = new_config
        self._run_task = run_task
        self._give_up = give_up
        self._children: list[ChildProcess] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting = 0
        """How many children wait to be started."""
        self._backoff = StartBackoff()
        self._ever_served = False
        self._halted = False
        """Only with reload: a child could not start, and none starts until the code changes."""
        self._group_killer = GroupKiller()
        self._closed = asyncio.Event()
        self._last_start_failure: CannotStart | None = None

    @property
    def children(self) -> Sequence[ChildProcess]:
        """All children that are not gone."""
        return list(self._children)

    @property
    def working(self) -> list[ChildProcess]:
        """The children that take jobs, or will, and are not to be replaced."""
        return [child for child in self._children if child.state.is_working]

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """One task for each child. It lasts from the pause before the start of the child until the
        jobs of the child are returned.
        """
        return set(self._tasks)

    def replenish(self) -> None:
        """Starts children until enough are working, at most `MAX_PER_PROCESS` times as many in all.

        Children that retire or end take memory until they are gone. If too many are left, the grace
        time of those that are to be killed ends now, beginning with the first that is due. Others
        may end their jobs, and their replacements start after that.
        """
        if self._closed.is_set() or self._halted:
            return
        processes, present = self._options.processes, len(self._children) + self._starting
        missing = processes - len(self.working) - self._starting
        room = max(0, processes * MAX_PER_PROCESS - present)
        for _ in range(min(missing, room)):
            self._starting += 1
            task = self._run_task(self._run_child())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._hasten_condemned(missing - room)

    def _hasten_condemned(self, excess: int) -> None:
        """Ends the grace time of children that would be killed later anyway, so that others can
        start.
        """
        killed = [child for child in self._children if child.state.phase is Phase.KILLED]
        condemned: list[tuple[float, float, ChildProcess]] = []
        for child in self._children:
            if child.state.kill_by is not None and child.state.phase is not Phase.KILLED:
                seen = child.observe(time.monotonic())
                if overdue_runs(seen):
                    condemned.append((child.state.kill_by, seen.now, child))
        condemned.sort(key=lambda entry: entry[0])
        for kill_by, now, child in condemned[: max(0, excess - len(killed))]:
            child.state.condemn(min(kill_by, now))

    def retire(self, child: ChildProcess, why: str) -> None:
        """Starts another child in place of this one.

        Once a new child serves, the pool drains this one.
        """
        if child.state.is_working:
            child.state.retire()
            event("process_retiring", pid=child.pid, client=child.client, why=why)
            self.replenish()

    def reload(self) -> None:
        """Replaces all children: the new ones import the code as it is now."""
        self._backoff.reset()
        self._halted = False
        for child in self.children:
            if child.state.phase is Phase.DRAINING:  # since an earlier reload: make room
                child.stop(self._options.grace)
            self.retire(child, "reload")
        self.replenish()

    def reap_orphans(self) -> None:
        """Reaps processes that handlers left behind, once the pid of every child is known."""
        pids = [child.pid for child in self._children]
        if all(pids):
            reap_orphans(pids)

    def note_settled(self, now: float) -> None:
        """Ends the pauses between starts if a child that started after the last failure settled."""
        for child in self._children:
            if child.state.is_settled(now):
                self._backoff.settled(child.state.born)

    def close(self) -> None:
        """Starts no more children."""
        self._closed.set()

    def dispose(self) -> None:
        """All children are gone."""
        self._group_killer.close()

    async def _run_child(self) -> None:
        """Runs one child from its start until its jobs are returned."""
        child = await self._new_child()
        if child is None:
            return
        try:
            await child.start()
            self._group_killer.add(child.pid)
            if self._closed.is_set():
                child.stop(0.0)
            self._note_end(child, await child.run(partial(self._receive, child)))
        except OSError as problem:  # the machine has no more processes, memory or files
            self._note_no_start(problem)
        finally:
            child.kill_group()  # the child, and subprocesses that its handlers started
            self._group_killer.remove(child.pid)
            self._children.remove(child)
            self._server.forget(child)
        self.replenish()
        try:
            await self._server.recover(child)
        finally:
            await child.close()

    async def _new_child(self) -> ChildProcess | None:
        """Returns a child to start, after a pause if others failed; None if none should start."""
        try:
            if pause := self._backoff.pause():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._closed.wait()
            if self._closed.is_set():
                return None
            child = ChildProcess(self._new_config())
            self._children.append(child)
        except OSError as problem:  # too many open files
            self._note_no_start(problem)
            asyncio.get_running_loop().call_soon(self.replenish)
            return None
        finally:
            self._starting -= 1
        return child

    def _note_no_start(self, problem: OSError) -> None:
        """The machine could not start a process: delays the next start.

        If no child has served yet, the supervisor gives up after several failures. With reload it
        does not, because then a person watches.
        """
        error = explain(problem)
        self._log_start_failure(error)
        self._backoff.failed(time.monotonic())
        patient = self._ever_served or self._options.reload
        if not patient and self._backoff.failures >= MAX_FIRST_FAILURES * self._options.processes:
            self._give_up(CannotWork(f"{self._options.app}: no worker could start: {error}"))

    def _log_start_failure(self, error: object) -> None:
        event("worker_start_failed", logging.ERROR, app=self._options.app, error=error)

    def _receive(self, child: ChildProcess, report: Report) -> None:
        """Acts on a report of a child."""
        match report:
            case Planned():
                child.state.imported(report)
                self._server.add(child, report)
            case Serving():
                self._ever_served, planned = True, child.state.planned
                child.state.began_serving()
                event("process_serving", pid=child.pid, client=child.client,
                      seconds=time.monotonic() - child.state.born,
                      server=planned and planned.place.server)  # fmt: skip
                self._drain_one_retiring()
            case JobLimitReached():
                self.retire(child, "jobs")
            case Exiting():
                child.state.announce_exit()
            case CannotStart():
                child.state.announce_exit()
                self._note_start_failure(report)

    def _drain_one_retiring(self) -> None:
        """Drains one retiring child, because a new child serves in its place."""
        for child in self._children:
            if child.state.phase is Phase.RETIRING:
                child.drain()
                return

    def _note_end(self, child: ChildProcess, code: int | None) -> None:
        """Logs how a child ended. If its start was the cause, the next start is delayed."""
        state, now = child.state, time.monotonic()
        fields = {"pid": child.pid, "client": child.client, "why": state.kill_reason}
        if state.ended_in_order:
            event("process_exited", **fields)
            if not state.has_served:
                self._backoff.failed(now)  # it could not start, and said why
        else:
            how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
            jobs = [entry.id for entry in child.table.entries(unreported=True)]
            event("process_died", logging.WARNING, **fields, how=how, runs=len(jobs),
                  jobs=jobs[:MAX_JOBS_LOGGED])  # fmt: skip
            if not state.has_served or not (jobs or state.is_settled(now)):
                self._backoff.failed(now)  # nothing ran, so no job was the cause

    def _note_start_failure(self, report: CannotStart) -> None:
        """Logs a failure to start, but only once if every child reports the same.

        If no child has served yet, the supervisor gives up: most likely the application is wrong.
        With reload it does not give up, because the code may change.
        """
        options = self._options
        if self._ever_served or options.reload:
            if report != self._last_start_failure:
                self._log_start_failure(report.error)
            self._last_start_failure = report
            self._halted = options.reload
        elif self._last_start_failure is None:
            self._last_start_failure = report
            if report.traceback:
                logging.getLogger("queasy").error("importing %s\n%s", options.app, report.traceback)
            error = report.error.removeprefix("app: ").removeprefix(f"{options.app}: ")
            self._give_up(CannotWork(f"{options.app}: {error}"))
