"""A worker: one event loop that takes jobs, runs them and reports.

1. It looks at its queues in turn: by priority, then by what fits best. It takes no more than
   can start now.
2. Jobs run in tasks (async handlers) or in threads (plain functions).
3. What ended is reported with the next look: one round trip.
4. Runs past their deadline, or to be cancelled, are asked to end; what does not listen is the
   supervisor's business.
5. A suspect, a job that was there when a worker died, runs alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Collection
from functools import partial

from queasy.errors import ProtocolError, QueasyError
from queasy.job import Job
from queasy.store.store import AsyncStore
from queasy.worker.events import event, report_suppressed
from queasy.worker.execution.runs import ASKED
from queasy.worker.intake.connectivity import Reach
from queasy.worker.intake.scheduler import Intake
from queasy.worker.intake.subscription import LONGEST_PAUSE, Line
from queasy.worker.liveness.inflight_table import InflightTable
from queasy.worker.plan import Plan
from queasy.worker.record import WorkerRecord

__all__ = ["Worker"]

# So long the server may take to hear what ended, when the worker stops.
REPORT = 5.0
BEAT = 1.0


class Worker:
    """See above. `lost` is called once if the server takes this worker for dead."""

    def __init__(
        self,
        plan: Plan,
        store: AsyncStore,
        client: str,
        table: InflightTable,
        *,
        capacity: int,
        safety: float,
        lost: Callable[[], None],
        most_jobs: int | None = None,
        worn_out: Callable[[], None] = lambda: None,
    ) -> None:
        self.client = client
        self.table = table
        reach = self._reach = Reach(client)
        self._late: set[asyncio.Task[None]] = set()
        """Those that wait for a queue to be mended."""
        self._lines = [
            Line(service, index, client, store, table, reach)
            for index, service in enumerate(plan.services)
        ]
        self._intake = Intake(
            self._lines, table, capacity=capacity, safety=safety, lost=lost, most_jobs=most_jobs,
            worn_out=worn_out,
        )  # fmt: skip
        self._runs, self._held = self._intake.runs, self._intake.held
        self._passes = table.passes
        self._beating: asyncio.TimerHandle | None = None
        self._started = False
        self._record = b""
        self._stop_by = math.inf

    # Coming and going

    async def start(self, record: WorkerRecord, queues: Collection[str] | None = None) -> None:
        """Registers with every queue (or those named) and begins to take jobs."""
        self._record = record.pack()
        lines = [line for line in self._lines if queues is None or line.service.queue in queues]
        entered = await asyncio.gather(*(self._try_to_enter(line) for line in lines))
        problems = [problem for problem in entered if problem is not None]
        if problems and len(problems) == len(lines):
            raise problems[0]
        for line in lines:
            if not line.open:
                self._late.add(asyncio.create_task(self._enter_later(line)))
        self._started = True
        self._passes = self.table.passes
        self._beat()
        self._intake.fill_soon()

    def _beat(self) -> None:
        """Also when nothing runs: a loop that does not turn reports nothing, either."""
        now = time.monotonic()
        self.table.beat(now)
        report_suppressed(now)
        if self.table.unheard:
            self._intake.fill_soon()
        if self.table.passes != self._passes:  # what is due may now be for us, or for others
            self._passes = self.table.passes
            for line in self._lines:
                line.next_look = line.avoid_until = 0.0
            self._intake.fill_soon()
        self._beating = asyncio.get_running_loop().call_later(BEAT, self._beat)

    async def _enter(self, line: Line) -> None:
        line.wanted = True
        await line.enter(self._record, partial(self._intake.told, line))

    async def _try_to_enter(self, line: Line) -> ProtocolError | None:
        """A queue whose keys somebody spoilt; the others do not suffer for it."""
        try:
            await self._enter(line)
        except ProtocolError as problem:
            self._reach.failed(line.service.name, problem)
            return problem
        return None

    async def _enter_later(self, line: Line) -> None:
        """When somebody has mended it."""
        while not line.open:
            await asyncio.sleep(LONGEST_PAUSE)
            async with line.passing:
                if not line.wanted:
                    return  # an order to serve it tries again
                with contextlib.suppress(QueasyError):
                    await self._enter(line)
        self._reach.answered(line.service.name)
        self._intake.fill_soon()

    async def serve(self, queue: str) -> None:
        """Takes jobs of this queue again."""
        lines = self._lines_of(queue)
        for line in lines:
            line.wanted = True
        self._intake.changed.set()
        for line in lines:
            async with line.passing:
                if line.wanted and not line.open:
                    await self._enter(line)
        event("queue_served", queue=queue, client=self.client)
        self._intake.fill_soon()

    async def unserve(self, queue: str, *, release: bool = False) -> None:
        """Takes no more jobs of this queue. Those it holds may end, or are released."""
        lines = self._lines_of(queue)
        for line in lines:
            line.wanted = line.open = False
        self._intake.fill_soon()
        if release:
            self._held.release(lines)
            for run in self._runs:
                if run.line in lines:
                    self._runs.ask(run, "stop")
        for line in lines:
            await self._leave(line)
        event("queue_unserved", queue=queue, client=self.client)

    async def _leave(self, line: Line) -> None:
        """Once nothing of the queue runs; unless somebody thinks better of it meanwhile."""
        while not line.wanted:
            line.open = False  # whoever was just entering has opened it
            await self._until(lambda: self._intake.holds_nothing_of(line) or line.wanted)
            async with line.passing:
                if not line.wanted and not line.open and self._intake.holds_nothing_of(line):
                    await line.leave()
                    return

    def _lines_of(self, queue: str) -> list[Line]:
        lines = [line for line in self._lines if line.service.queue == queue]
        if not lines:
            known = sorted({line.service.queue for line in self._lines})
            raise QueasyError(f"no handler for queue {queue!r}; there are {', '.join(known)}")
        return lines

    def close(self) -> None:
        """Takes nothing more. What runs goes on."""
        self._intake.closing = True
        self._held.release(self._lines)
        self._intake.fill_soon()

    async def drained(self) -> None:
        """Until nothing runs and all is reported, once it is closed."""
        await self._until(lambda: all(map(self._intake.holds_nothing_of, self._lines)))

    async def stop(self, grace: float) -> bool:
        """Lets what runs end for `grace` seconds, then releases it; False if some went on."""
        self.hasten(grace)
        self.close()
        await self._while_before(lambda: bool(self._runs), lambda: self._stop_by)
        for run in self._runs:
            self._runs.ask(run, "stop")
        asked = time.monotonic() + ASKED
        await self._while_before(lambda: bool(self._runs), lambda: asked)
        reported = time.monotonic() + REPORT
        await self._while_before(lambda: any(line.busy for line in self._lines), lambda: reported)
        return not self._runs

    def hasten(self, grace: float) -> None:
        """A stop is to be over by then, if not before."""
        self._stop_by = min(self._stop_by, time.monotonic() + grace)
        self._intake.changed.set()

    async def leave(self) -> None:
        """The queues forget this worker; what it still holds is released."""
        left = await asyncio.gather(
            *(line.leave() for line in self._lines if line.open), return_exceptions=True
        )
        for problem in left:  # of one queue; the others were left all the same
            if isinstance(problem, BaseException):
                raise problem

    def dispose(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
        for task in self._late:
            task.cancel()
        for line in self._lines:
            line.abandon()
        self._intake.dispose()
        report_suppressed()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._intake.changed.clear()
            await self._intake.changed.wait()

    async def _while_before(
        self, condition: Callable[[], bool], deadline: Callable[[], float]
    ) -> None:
        while condition() and (left := deadline() - time.monotonic()) > 0:
            self._intake.changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._intake.changed.wait()

    @property
    def ready(self) -> bool:
        """Whether it takes jobs, and the server answers."""
        return self._started and not self._intake.closing and self._reach.answers

    @property
    def running(self) -> list[Job]:
        return [run.job for run in self._runs]

    def cancel(self, index: int, id_: str, token: int) -> None:
        """Somebody asked to cancel this run."""
        self._intake.cancel(index, id_, token)
