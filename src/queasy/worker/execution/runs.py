"""All runs of a worker.

1. Async handlers run in shared tasks, plain functions in shared threads.
2. While anything runs, a periodic tick checks the deadlines of all runs, and adjusts the pace. In a
   worker without a supervisor it checks their leases as well.
3. The worker asks a run to end if it is past its timeout, is cancelled, or must stop. If the run
   does not end, the supervisor kills its process.
4. The listener receives each run that ends, with its outcome.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from queasy.job import Job, JobError
from queasy.outcomes import Cancel, Finish, Outcome, Release, RetryLater, TimedOut
from queasy.trace import trace_of
from queasy.worker.events import MAX_JOBS_LOGGED, event
from queasy.worker.execution.executor import execute, execute_plain, outcome_of_error
from queasy.worker.execution.interruptible import Interruptible
from queasy.worker.execution.pace import PACE_TICK, Pace
from queasy.worker.execution.run import EndReason, Run, RunEnding
from queasy.worker.execution.task_pool import TaskPool
from queasy.worker.execution.thread_pool import REFUSE_AFTER, ThreadPool
from queasy.worker.execution.units import Units
from queasy.worker.liveness.inflight_table import GIVEN_BACK, InflightTable
from queasy.worker.plan import DEFAULT_SIZE, Service

__all__ = ["END_GRACE", "RunListener", "Runs"]

# How long a run that was asked to end may take before the worker stops waiting for it, in seconds.
END_GRACE = 1.0
# If a tick is later than this, in seconds, the worker logs that the event loop was blocked.
REPORT_LATENESS = 1.0
Returned = tuple[Run, Outcome | None, BaseException | None]
"""A run of a plain function, with its outcome, or with what it raised."""


class RunListener(Protocol):
    """Receives events about runs. The scheduler is one."""

    def run_ended(self, run: Run, ending: RunEnding) -> None:
        """A run ended. Report `ending` to the server, and then the run's `endings_after`. The run
        stays in the table until the report is confirmed.
        """
        ...

    def thread_refused(self, run: Run) -> None:
        """The machine could not start a thread for a plain function. The job is released."""
        ...

    def crowded_out(self, run: Run) -> None:
        """The run was held ready for too long. The job is released."""
        ...

    def job_refused(self, run: Run) -> None:
        """The run must not begin: the supervisor has given its job back."""
        ...

    def room_changed(self) -> None:
        """There may be room for more jobs."""
        ...


class Runs:
    """The runs of one worker, by queue and job id."""

    def __init__(self, table: InflightTable, capacity: int, listener: RunListener) -> None:
        self.pace = Pace()
        self.used = Units()
        """Units of capacity that runs occupy."""
        self.accepted_count = 0
        """How many runs were added by `start`, whatever became of them."""
        self.unbegun_count = 0
        """How many of them ended before their handler was called."""
        self.ended_count = 0
        """How many runs have ended."""
        self._wanted_more = False
        self._table = table
        self._cut_off = table.times.cut_off
        self._threads = ThreadPool(
            self._perform_plain, lambda returned: self._end(*returned), self._refuse,
            lambda: capacity - self.used.awaited + self._ready_units(),
        )  # fmt: skip
        self._capacity = capacity
        self._tasks = TaskPool(self._perform, self._most_to_begin)
        self._listener = listener
        self._runs: dict[int, dict[str, Run]] = defaultdict(dict)
        """The runs of each queue, by job id."""
        self._longest_wait = 0.0
        """The longest time that an async handler waited for its start, since the last tick."""
        self._last_ended: str | None = None
        """The job whose async handler ended last; None if none ended since the last tick."""
        self._ticking = False
        self._checks_confirmation = False

    def __len__(self) -> int:
        return self.accepted_count - self.ended_count

    def __iter__(self) -> Iterator[Run]:
        found: list[Run] = []
        for runs in list(self._runs.values()):
            # Each copy is one step: another thread may read while this one starts runs.
            found += runs.values()
        return iter(found)

    @property
    def started_count(self) -> int:
        """How many runs have started, or are about to."""
        return self.accepted_count - self.unbegun_count

    def of_queue(self, queue: int) -> list[Run]:
        return list(self._runs[queue].values())

    @property
    def all_begun(self) -> bool:
        """Whether every run of an async handler has begun: none waits for the event loop, or is
        held ready.
        """
        return not self._tasks.waiting

    def has_of(self, queue: int) -> bool:
        """Whether the queue has a run here."""
        return bool(self._runs[queue])

    def find(self, queue: int, id_: str) -> Run | None:
        return self._runs[queue].get(id_)

    def has_any(self, queue: int, jobs: Iterable[Job]) -> bool:
        """Whether one of these jobs still has an earlier run here."""
        running = self._runs[queue]
        return bool(running) and not running.keys().isdisjoint([job.id for job in jobs])

    def on_loop(self, loop: asyncio.AbstractEventLoop) -> Run | None:
        """The run whose async handler is on the event loop now. Safe to call from any thread.

        None if there is none, or if the handler is in a task that it started itself.
        """
        task = asyncio.current_task(loop)
        if task is None:
            return None
        return next((run for run in self if run.task is task), None)

    def note_unmet_demand(self) -> None:
        """The worker would have taken more jobs if there had been room."""
        self._wanted_more = True

    # Starting

    def start(self, queue: int, service: Service, jobs: Sequence[Job], size: int) -> None:
        """Start runs: of plain functions at once, of async handlers after the next `go`.

        The runs occupy capacity from now on. If the lease of a job may be over when its turn comes,
        its handler is not called.
        """
        now = time.monotonic()
        is_async = service.function.is_async
        safe_until = self._table.requested_at(queue) + self._cut_off
        units = service.handler.options.size or DEFAULT_SIZE
        runs = [Run(queue, service, is_async, job, size, units, now, safe_until) for job in jobs]
        self._runs[queue].update({run.job.id: run for run in runs})
        self.accepted_count += len(runs)
        self.used.add(size * len(runs), is_async=is_async)
        if not self._ticking:
            self._start_ticking()
        if is_async:
            self._tasks.add(runs)
        else:
            self._threads.add(runs)

    def _most_to_begin(self, waiting: Sequence[Run]) -> int:
        """How many async handlers may begin: all that wait, except those that are held ready."""
        if self.used.total <= self._capacity:
            return len(waiting)
        room = self._capacity - self.used.total + sum(run.size for run in waiting)
        fit = 0
        for run in waiting:
            room -= run.size
            if room < 0:
                break
            fit += 1
        return fit or int(len(waiting) == len(self))  # an idle worker runs any job

    def _ready_units(self) -> int:
        """Units of async handlers that are held ready: they begin when others have ended."""
        over = self.used.total - self._capacity
        return 0 if over <= 0 else min(over, sum(run.size for run in self._tasks.waiting))

    def go(self, *, at_once: bool = False) -> None:
        """Let the async handlers begin: now, or after the calls that are about to be sent."""
        self._tasks.go(at_once=at_once)

    async def _perform(self, run: Run, task: asyncio.Task[Any]) -> None:
        """Run an async handler. Other handlers use the same task before and after it."""
        if not run.begin(self._table, task):
            self._end(run, None, None)
            return
        if run.waited > self._longest_wait:
            self._longest_wait = run.waited
        try:
            outcome = await execute(run.service, run.job)
        except BaseException as problem:  # a cancellation, or another BaseException of the handler
            self._end(run, None, problem)
        else:
            self._end(run, outcome, None)
        self._last_ended = run.job.id

    def _perform_plain(self, run: Run, calls: Interruptible) -> Returned:
        """Run a plain function, in the thread that calls this."""
        if not run.begin(self._table):
            return run, None, None
        run.enter_thread(calls)
        try:
            return run, calls.call(_execute_plain, run), None
        except BaseException as problem:  # an interruption, or another one of the function
            return run, None, problem
        finally:
            # At once: if the loop is blocked, the supervisor must not take this run for a late one.
            self._table.end_run(run.slot)

    def _refuse(self, runs: list[Run], problem: Exception | None) -> None:
        """Release the jobs of runs that cannot begin.

        `problem` says why no thread could be started. None: they were held ready for too long.
        """
        for run in runs:
            if problem is None:
                self._listener.crowded_out(run)
            else:
                event("thread_start_failed", logging.ERROR, queue=run.service.name, job=run.job.id,
                      error=problem)  # fmt: skip
                self._listener.thread_refused(run)
            run.request_end("stop", 0.0)
            self._end(run, None, None)

    # Ending

    def _end(self, run: Run, outcome: Outcome | None, problem: BaseException | None) -> None:
        job, slot, copied = run.job, run.slot, 0
        # A run that was asked to end may still finish, and then counts as finished.
        if not isinstance(outcome, Finish):
            if outcome is None or run.end_reason is not None:
                outcome = _outcome_without_result(run, problem)
            copied = len(job.payload)
        if slot >= 0:
            self._table.end_run(slot)
        else:
            self.unbegun_count += 1
            if slot == GIVEN_BACK:
                self._listener.job_refused(run)
        del self._runs[run.queue][job.id]
        self.used.add(-run.size, is_async=run.is_async)
        self.ended_count += 1
        self._listener.run_ended(run, RunEnding(job.id, job.token, outcome, copied, slot))

    def cancel(self, queue: int, id_: str, token: int) -> None:
        """Cancel a run, if it is here."""
        run = self.find(queue, id_)
        if run is not None and run.job.token == token:
            run.job.flag.raise_flag()
            self.request_end(run, "cancel")

    def request_end(self, run: Run, reason: EndReason) -> None:
        """Ask a run to end: cancel its task, or interrupt its thread.

        Does nothing if the run was asked before: the first reason counts.
        """
        if run.end_reason is not None:
            return
        now = self._table.run_clock()
        if reason != "stop":
            if run.slot >= 0:
                self._table.set_deadline(run.slot, min(run.deadline, now))
            event("run_interrupted", why=reason, queue=run.service.name, job=run.job.id)
        run.request_end(reason, now)
        if not run.is_async and self._threads.discard(run):
            self._end(run, None, None)

    # The tick

    def _start_ticking(self) -> None:
        self._ticking = True
        self.pace.start()
        self._table.loop_turned(time.monotonic())  # before the supervisor sees that something runs
        self._tick_later(self._table.run_clock())

    def _tick_later(self, now: float) -> None:
        asyncio.get_running_loop().call_later(PACE_TICK, self._tick, now + PACE_TICK)

    def _tick(self, expected: float) -> None:
        """Check deadlines and leases, and how late this tick is, while anything runs."""
        now = self._table.run_clock()  # a freeze neither makes a run overdue nor this tick late
        was_blocked = now - expected > REPORT_LATENESS
        if was_blocked:
            self._log_blocked_loop(now - expected)
        waited, self._last_ended, self._longest_wait = self._longest_wait, None, 0.0
        if not self:
            self._ticking = False
            return
        self._table.loop_turned(time.monotonic())
        if self._checks_confirmation:
            self._end_unconfirmed(time.monotonic())
        # If a handler has blocked the loop, deadlines of others passed while they waited for it.
        # These runs may need only one more step. At the next tick they are asked to end.
        due_until = expected if was_blocked else now
        for run in self:
            if due_until >= run.deadline:
                self.request_end(run, "timeout")
            run.interrupt_if_due(now)
            if run.size < run.units and run.calls is not None:
                self._charge_in_full(run)
        self._table.deadlines_checked(due_until)
        self._refuse_late(time.monotonic())
        # A handler's wait counts double, because another worker could have run the job meanwhile.
        late = max(now - expected, 2 * waited)
        self.pace.tick(late, self._threads.performing, wanted_more=self._wanted_more)
        if self._wanted_more:
            self._wanted_more = False
            self._listener.room_changed()
        self._tick_later(now)

    def _charge_in_full(self, run: Run) -> None:
        """A plain function is not as short as those before it, by which its size was chosen. Other
        queues must not use the rest of what it costs.
        """
        self.used.add(run.units - run.size, is_async=False)
        run.charge_in_full()

    def _refuse_late(self, now: float) -> None:
        """Release async handlers that were held ready for too long: those that run became slower,
        and another worker may be idle.
        """
        if self._ready_units():
            late = self._tasks.withdraw(lambda run: now - run.ready_at > REFUSE_AFTER)
            self._refuse(late, None)

    def enable_confirmation_check(self) -> None:
        """From now on, end runs whose leases the server has not confirmed by the cut-off.

        For a worker without a supervisor: a supervisor freezes the whole process instead.
        """
        self._checks_confirmation = True

    def _end_unconfirmed(self, now: float) -> None:
        """End runs whose leases the server has not confirmed by the cut-off, before other workers
        can get their jobs.
        """
        silence = {
            run: self._table.unconfirmed_for(run.queue, now) for run in self if not run.end_reason
        }
        stopped = [run for run, seconds in silence.items() if seconds > self._cut_off]
        if stopped:
            event("leases_unconfirmed", logging.ERROR, seconds=max(silence.values()),
                  jobs=[run.job.id for run in stopped][:MAX_JOBS_LOGGED],
                  why="the server did not confirm the leases: other workers may soon have the jobs",
                  )  # fmt: skip
        for run in stopped:
            self.request_end(run, "stop")

    def _log_blocked_loop(self, late: float) -> None:
        """Log which async handlers may have blocked the event loop, by computing or by a blocking
        call.
        """
        # If the handler that blocked the loop has ended, it is the one that ended last: this tick
        # was overdue, and ran right after it.
        ended = [] if self._last_ended is None else [self._last_ended]
        jobs = ended + [run.job.id for run in self if run.is_async]
        event("event_loop_blocked", logging.WARNING, seconds=late, jobs=jobs[:MAX_JOBS_LOGGED],
              hint="a plain function (def) would run in a thread" if jobs else None)  # fmt: skip

    def close(self) -> None:
        """Start no more runs. Current runs continue until they end by themselves."""
        self._tasks.close()
        self._threads.close()


def _execute_plain(run: Run) -> Outcome:
    return execute_plain(run.service, run.job)


def _outcome_without_result(run: Run, problem: BaseException | None) -> Outcome:
    """The outcome of a run that was asked to end, or that raised something unexpected."""
    try:
        return _outcome_of_end_reason(run, problem)
    except BaseException as raised:  # reading the text of the handler's exception raised
        return RetryLater(JobError(type(raised).__qualname__, "its error cannot be shown"))


def _outcome_of_end_reason(run: Run, problem: BaseException | None) -> Outcome:
    match run.end_reason:
        case None:
            problem = problem or asyncio.CancelledError("the handler cancelled its own task")
            return outcome_of_error(problem, run.service.handler.options)
        case "timeout":
            trace = trace_of(problem) if problem is not None else ""
            why = f"ran longer than {run.timeout:g} s"
            return TimedOut(JobError("Timeout", why, "timeout", trace).clean())
        case "cancel":
            return Cancel()
        case "stop":
            return Release()
