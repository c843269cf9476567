"""The runs of a worker: each job from its start to its outcome.

Async handlers run in tasks, plain functions in threads. A tick, while anything runs, looks at
deadlines: one timer for all, not one for each.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, cast

import msgspec

from queasy.job import Job, JobError
from queasy.outcomes import Cancel, Finish, Outcome, Release, RetryLater, TimedOut
from queasy.store.records import Ending
from queasy.trace import trace_of
from queasy.worker.events import event
from queasy.worker.execution.executor import execute, execute_plain, outcome_of_error
from queasy.worker.execution.task_pool import Tasks
from queasy.worker.execution.thread_pool import Call, Threads
from queasy.worker.intake.pace import TICK, Pace
from queasy.worker.intake.subscription import Line
from queasy.worker.liveness.inflight_table import InflightTable
from queasy.worker.plan import CUT_OFF

__all__ = ["ASKED", "Run", "Runs", "Units"]

Reason = Literal["timeout", "cancel", "stop"]

# What was asked to end may take this long before it is given up on.
ASKED = 1.0
# An event loop this late is worth a line.
BLOCKED = 1.0
SHOWN = 5
# So long a plain function may see for itself that it is cancelled.
POLITE = 0.5
NOT_STARTED = -1


class Run(msgspec.Struct, eq=False):
    """One job, from its start to its outcome."""

    line: Line
    job: Job
    size: int
    since: float
    """When it was there to be started."""
    slot: int = NOT_STARTED
    deadline: float = math.inf
    task: asyncio.Future[Any] | None = None
    call: Call | None = None
    reason: Reason | None = None
    """Why it was asked to end."""
    interrupt_at: float = math.inf
    behind: list[Ending] = []
    """Of other leases of the same id, which the server remembers: reported once this has ended,
    lest another run begins beside it."""


class Units:
    """Of capacity: those of async handlers, and those of plain functions."""

    def __init__(self) -> None:
        self._of = {True: 0, False: 0}

    def add(self, line: Line, units: int) -> None:
        self._of[line.is_async] += units

    def of(self, *, is_async: bool) -> int:
        return self._of[is_async]

    @property
    def all(self) -> int:
        return self._of[True] + self._of[False]


class Runs:
    """All that run now. `changed` is called whenever one has ended, or there may be more room."""

    def __init__(self, table: InflightTable, capacity: int, changed: Callable[[], None]) -> None:
        self.pace = Pace()
        self.used = Units()
        self.done = 0
        self.full = False
        """More would have been taken since the last tick."""
        self._table = table
        self._threads = Threads(capacity)
        self._tasks = Tasks(self._perform)
        self._changed = changed
        self._runs: dict[tuple[int, str], Run] = {}
        self._plain = 0
        self._waited = 0.0
        """The longest that any async handler had to wait for others, since the last tick."""
        self._last: str | None = None
        """The async handler that ended last, since the last tick."""
        self._ticking = False

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(list(self._runs.values()))

    def supersede(self, line: Line, job: Job) -> bool:
        """Whether an earlier run of the same id goes on; its lease is lost, and it is to end."""
        earlier = self._runs.get((line.index, job.id))
        if earlier is not None:
            self.ask(earlier, "stop")
        return earlier is not None

    def start(self, line: Line, job: Job, size: int) -> None:
        """An async handler begins after the next `go`; it counts as a run from now on."""
        now = time.monotonic()
        run = Run(line, job, size, now)
        self._runs[line.index, job.id] = run
        self.used.add(line, size)
        if not self._ticking:
            self._ticking = True
            self.pace.start()
            self._table.beat(now)  # before anybody sees that something runs
            asyncio.get_running_loop().call_later(TICK, self._tick, now + TICK)
        if line.is_async:
            self._tasks.add(run)
        elif self._is_too_late(line, now):
            self.ask(run, "stop")
            self._ended(run, None, None)
        else:
            self._plain += 1
            self._begin(run, now)
            run.call = Call(partial(execute_plain, line.service, job))
            try:
                run.task = self._threads.start(run.call)
            except RuntimeError as problem:
                self._give_back(run, run.call, problem)
            else:
                run.task.add_done_callback(partial(self._returned, run))

    def _give_back(self, run: Run, call: Call, problem: RuntimeError) -> None:
        """There are no more threads to be had, by the limits of this machine."""
        event("cannot start a thread", logging.ERROR, queue=run.line.service.name, job=run.job.id,
              error=problem)  # fmt: skip
        call.interrupt()  # it stands in the pool's line all the same
        self._plain -= 1
        self.ask(run, "stop")
        self._ended(run, None, None)
        run.line.pause()

    def go(self, *, at_once: bool = False) -> None:
        """Lets the async handlers begin."""
        self._tasks.go(at_once=at_once)

    def _begin(self, run: Run, now: float) -> None:
        """The table knows of it before anything else happens."""
        timeout = cast("float | None", run.job.options.timeout)  # seconds, once it is checked
        if timeout is not None:
            run.deadline = now + timeout
        job = run.job
        run.slot = self._table.start(run.line.index, job.id, job.token, now, run.deadline)

    async def _perform(self, run: Run, task: asyncio.Task[Any]) -> None:
        """An async handler, in a task that others had before, and may have after it."""
        now = time.monotonic()
        if self._is_too_late(run.line, now):
            self.ask(run, "stop")
        if run.reason is not None:
            self._ended(run, None, None)
            return
        self._begin(run, now)
        self._waited = max(self._waited, now - run.since)
        run.task = task
        try:
            outcome = await execute(run.line.service, run.job)
        except BaseException as problem:  # of a cancellation, or whatever else it may raise
            self._ended(run, None, problem)
        else:
            self._ended(run, outcome, None)
        self._last = run.job.id

    def _is_too_late(self, line: Line, now: float) -> bool:
        """To start what was taken: as after a freeze, others may have it by now."""
        return now - line.asked_for_jobs > CUT_OFF and now - self._table.kept(line.index) > CUT_OFF

    def _returned(self, run: Run, task: asyncio.Future[Any]) -> None:
        """A plain function has, or was interrupted."""
        self._plain -= 1
        if task.cancelled():
            self._ended(run, None, asyncio.CancelledError())
        elif (problem := task.exception()) is not None:
            self._ended(run, None, problem)
        else:
            self._ended(run, task.result(), None)

    def _ended(self, run: Run, outcome: Outcome | None, problem: BaseException | None) -> None:
        del self._runs[run.line.index, run.job.id]
        if run.slot != NOT_STARTED:
            self._table.end(run.slot)
        self.used.add(run.line, -run.size)
        try:
            outcome = self._outcome(run, outcome, problem)
        except BaseException as unspeakable:  # of an exception that cannot even be told
            why = JobError(type(unspeakable).__qualname__, "its error cannot be shown")
            outcome = RetryLater(why)
        endings = run.line.endings
        endings.append(Ending(run.job.id, run.job.token, outcome))
        endings += run.behind
        self.done += 1
        self._changed()

    def _outcome(self, run: Run, outcome: Outcome | None, problem: BaseException | None) -> Outcome:
        """What a run came to; one that finished, although it was asked to end, has finished."""
        if isinstance(outcome, Finish):
            return outcome
        match run.reason:
            case None if outcome is not None:
                return outcome
            case None:
                problem = problem or asyncio.CancelledError("the handler let itself be cancelled")
                return outcome_of_error(problem, run.line.service.handler.options.on_exception)
            case "timeout":
                seconds = run.job.options.timeout
                where = trace_of(problem) if problem is not None else run.call and run.call.where
                why = f"ran longer than {seconds:g} s"
                return TimedOut(JobError("Timeout", why, "timeout", where or "").clean())
            case "cancel":
                return Cancel()
            case "stop":
                return Release()

    def cancel(self, index: int, id_: str, token: int) -> None:
        """Somebody asked to cancel this run, if it is there."""
        run = self._runs.get((index, id_))
        if run is not None and run.job.token == token:
            run.job.flag.on = True
            self.ask(run, "cancel")

    def ask(self, run: Run, reason: Reason) -> None:
        """Asks a run to end. What does not is interrupted (plain functions) or killed."""
        if run.reason is not None:
            return
        run.reason = reason
        now = time.monotonic()
        if reason != "stop":
            if run.slot != NOT_STARTED:
                self._table.hurry(run.slot, min(run.deadline, now))
            event("asked to end", why=reason, queue=run.line.service.name, job=run.job.id)
        if run.call is None and run.task is not None:
            run.task.cancel()
        else:
            run.interrupt_at = now + (POLITE if reason == "cancel" else 0.0)

    def _tick(self, expected: float) -> None:
        """While anything runs: deadlines, and how late this comes."""
        now = time.monotonic()
        if now - expected > BLOCKED:
            self._complain(now - expected)
        waited, self._last, self._waited = self._waited, None, 0.0
        if not self._runs:
            self._ticking = False
            return
        self._table.beat(now)
        self._cut_off(now)
        for run in list(self._runs.values()):
            if now >= run.deadline:
                self.ask(run, "timeout")
            if now >= run.interrupt_at and run.call is not None:
                run.call.interrupt()
        # Twice: while it waited here, another worker could have had it.
        self.pace.tick(max(now - expected, 2 * waited), self._plain, full=self.full)
        if self.full:
            self.full = False
            self._changed()
        asyncio.get_running_loop().call_later(TICK, self._tick, now + TICK)

    def _cut_off(self, now: float) -> None:
        """The server was not heard for almost a lease, but others may hear it."""
        unkept = {run: self._table.unkept(run.line.index, now) for run in self if not run.reason}
        asked = [run for run, seconds in unkept.items() if seconds > CUT_OFF]
        if asked:
            event("cut off", logging.ERROR, seconds=max(unkept.values()),
                  jobs=[run.job.id for run in asked][:SHOWN],
                  why="no answer, or none but refusals: others may soon have the jobs")  # fmt: skip
        for run in asked:
            self.ask(run, "stop")

    def _complain(self, late: float) -> None:
        """Whoever computes, or calls what blocks, in an async handler holds up all the others."""
        # It may have ended: then it did so just now, for those behind it wait for this.
        ended = [] if self._last is None else [self._last]
        jobs = ended + [run.job.id for run in self if run.call is None]
        event("event loop blocked", logging.WARNING, seconds=late, jobs=jobs[:SHOWN],
              hint="a plain function (def) would run in a thread" if jobs else None)  # fmt: skip

    def close(self) -> None:
        """Nothing is started any more; what runs ends by itself."""
        self._tasks.close()
        self._threads.close()
