"""Plain functions: how many run at once, and what becomes of those that are held ready."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from queasy import Client, Job, JobOptions, JsonCodec, Queue
from queasy.handler import Handler, HandlerOptions, function_of
from queasy.outcomes import Cancel, Finish, Outcome, Release
from queasy.store.commands import QueueCommands
from queasy.store.keys import QueueKeys
from queasy.worker.execution import thread_pool
from queasy.worker.execution.run import Run, RunEnding
from queasy.worker.execution.runs import Runs
from queasy.worker.liveness.inflight_table import InflightTable
from queasy.worker.plan import Service
from tests.worker.inline import PATIENCE, until, until_empty, working

SHORT = 1000


class Together:
    """How many functions run, and how many did at most."""

    def __init__(self) -> None:
        self.running = self.most = self.ended = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.running -= 1
            self.ended += 1


async def test_at_most_ten_without_a_size_run_at_once_although_more_are_held_ready(
    client: Client, emails: Queue
) -> None:
    together, pause = Together(), threading.Event()

    @emails.handler
    def handle(seconds: float) -> None:
        with together:
            pause.wait(seconds)

    await emails.dispatch_many([0.0] * SHORT + [0.03] * 60)
    async with working(client):
        await until_empty(emails)
    assert together.ended == SHORT + 60
    assert together.most == 10


async def test_functions_with_a_size_run_at_once_as_the_capacity_allows(
    client: Client, emails: Queue
) -> None:
    together, pause = Together(), threading.Event()

    @emails.handler(size=5)
    def handle(seconds: float) -> None:
        with together:
            pause.wait(seconds)

    await emails.dispatch_many([0.0] * SHORT + [0.1] * 60)
    async with working(client):
        await until_empty(emails)
    assert together.most == 20


async def test_a_slow_function_holds_up_no_other(client: Client, emails: Queue) -> None:
    may_end, ended = threading.Event(), list[int]()

    @emails.handler
    def handle(number: int) -> None:
        if number == SHORT // 2:
            may_end.wait(PATIENCE)
        ended.append(number)

    await emails.dispatch_many(range(SHORT))
    async with working(client):

        async def all_others() -> bool:
            return len(ended) == SHORT - 1

        await until(all_others, "all other functions have ended")
        may_end.set()
        await until_empty(emails)
    assert ended[-1] == SHORT // 2


async def test_functions_that_became_long_do_not_wait_behind_each_other(
    client: Client, emails: Queue
) -> None:
    """A worker that holds more than it can run gives them to another, uncharged."""
    together = threading.Barrier(20)
    counts = list[tuple[int, ...]]()

    @emails.handler
    def handle(wait: bool, job: Any) -> None:
        if wait:
            together.wait(PATIENCE)
            counts.append((job.retry_count, job.stall_count, job.timeout_count))

    await emails.dispatch_many([False] * SHORT + [True] * 20)
    async with working(client), working(client):
        await until_empty(emails)
    assert counts == [(0, 0, 0)] * 20


class Held:
    """A worker's runs: ten that block, and one that is held ready behind them."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.began: list[str] = []
        self.endings: dict[str, Outcome] = {}
        self._ended = asyncio.Event()
        table = InflightTable(1, 100)
        table.set_requested_at(0, time.monotonic())
        self.runs = Runs(table, 100, self)
        options = HandlerOptions(on_exception="fail")
        handler = Handler("q", False, options, self._handle, JsonCodec())
        function = function_of(self._handle, "q", fail=False)
        service = Service(handler, function, QueueCommands(QueueKeys("p", "q")))
        timeout = JobOptions(timeout=0.5)
        self.runs.start(0, service, [_job(str(number)) for number in range(10)], size=1)
        self.runs.start(0, service, [_job("held", timeout)], size=1)

    def _handle(self, data: object, job: Job) -> None:
        self.began.append(job.id)
        if job.id != "held":
            self.may_end.wait(PATIENCE)

    async def until_ended(self, id_: str) -> Outcome:
        async with asyncio.timeout(PATIENCE):
            while id_ not in self.endings:
                self._ended.clear()
                await self._ended.wait()
        return self.endings[id_]

    # Events from the runs

    def run_ended(self, run: Run, ending: RunEnding) -> None:
        self.endings[ending.id] = ending.outcome
        self._ended.set()

    def thread_refused(self, run: Run) -> None: ...

    def crowded_out(self, run: Run) -> None: ...

    def job_refused(self, run: Run) -> None: ...

    def room_changed(self) -> None: ...


def _job(id_: str, options: JobOptions | None = None) -> Job:
    return Job(
        id=id_, queue="q", state="active", payload=b"1", token=1, options=options or JobOptions()
    )


@pytest.fixture
async def held(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Held]:
    monkeypatch.setattr(thread_pool, "REFUSE_AFTER", PATIENCE)
    held = Held()
    async with asyncio.timeout(PATIENCE):
        while len(held.began) < 10:
            await asyncio.sleep(0.001)
    yield held
    held.may_end.set()
    for run in list(held.runs):
        await held.until_ended(run.job.id)
    held.runs.close()


async def test_time_that_a_function_is_held_ready_does_not_count_against_its_timeout(
    held: Held,
) -> None:
    await asyncio.sleep(1)
    assert not held.endings
    held.may_end.set()
    assert await held.until_ended("held") == Finish()


@pytest.mark.parametrize(("reason", "outcome"), [("cancel", Cancel()), ("stop", Release())])
async def test_function_that_is_held_ready_ends_at_once_when_it_is_asked_to(
    held: Held, reason: Any, outcome: Outcome
) -> None:
    run = held.runs.find(0, "held")
    assert run is not None
    held.runs.request_end(run, reason)
    assert held.endings == {"held": outcome}
    assert held.runs.started_count == 10, "expected it not to count as started"
    held.may_end.set()
    await held.until_ended("0")
    assert "held" not in held.began


async def test_functions_that_became_long_leave_no_room_to_other_queues(held: Held) -> None:
    """Bug: they kept the size of short ones, so that a job of another queue began beside them. A
    worker ran jobs of 150 units at once."""
    async with asyncio.timeout(PATIENCE):
        while held.runs.used.plain < 100:  # ten of 10 units, as at the next tick at the latest
            await asyncio.sleep(0.01)
    held.may_end.set()
    for number in range(10):
        await held.until_ended(str(number))
    await held.until_ended("held")
    assert held.runs.used.total == 0


async def test_function_that_is_held_ready_too_long_is_released(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_pool, "REFUSE_AFTER", 0.05)
    assert await held.until_ended("held") == Release()
    assert "held" not in held.began
