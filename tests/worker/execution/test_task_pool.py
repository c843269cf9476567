"""Async handlers that share a task: nobody notices."""

import asyncio
import contextvars
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from queasy import Client, Dispatch, Job, Queue
from queasy.outcomes import Release
from queasy.store.records import Ending
from queasy.worker.execution.run import Run
from queasy.worker.execution.runs import Runs
from queasy.worker.liveness.inflight_table import InflightTable
from queasy.worker.plan import CUT_OFF
from tests.worker.inline import Seen, until_empty, working

LEFT = contextvars.ContextVar("LEFT", default="nothing")
NUMBERS = range(40)


def current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def run_all(client: Client, queue: Queue, seen: Seen) -> None:
    await queue.dispatch_many([Dispatch(n, id=str(n)) for n in NUMBERS])
    async with working(client):
        await seen.runs(len(NUMBERS))
        await until_empty(queue)
    assert sorted(seen.data) == list(NUMBERS)


async def test_those_that_do_not_wait_share_a_task(
    client: Client, emails: Queue, seen: Seen
) -> None:
    tasks: set[str] = set()  # by name: of who is held by others, nobody knows what they will do

    @emails.handler(size=1)
    async def handle(data: int, job: Job) -> None:
        tasks.add(current_task().get_name())
        seen.add(data, job)

    await run_all(client, emails, seen)
    assert len(tasks) < len(NUMBERS)


async def test_those_that_wait_do_not(client: Client, emails: Queue, seen: Seen) -> None:
    tasks: list[Any] = []

    @emails.handler(size=1)
    async def handle(data: int, job: Job) -> None:
        tasks.append(asyncio.current_task())
        await asyncio.sleep(0)
        seen.add(data, job)

    await run_all(client, emails, seen)
    assert len(set(tasks)) == len(NUMBERS)


async def test_one_that_waits_holds_up_nobody(client: Client, emails: Queue, seen: Seen) -> None:
    everybody = asyncio.Event()

    @emails.handler(size=1)
    async def handle(data: int, job: Job) -> None:
        seen.add(data, job)
        if len(seen.jobs) == len(NUMBERS):
            everybody.set()
        await everybody.wait()

    await run_all(client, emails, seen)


async def test_what_one_leaves_in_its_context_is_not_there_for_another(
    client: Client, emails: Queue, seen: Seen
) -> None:
    found: list[str] = []

    @emails.handler(size=1)
    async def handle(data: int, job: Job) -> None:
        found.append(LEFT.get())
        LEFT.set(f"by {data}")
        seen.add(data, job)

    await run_all(client, emails, seen)
    assert found == ["nothing"] * len(NUMBERS)


async def test_one_that_cancels_its_own_task_ends_nobody_elses_run(
    client: Client, emails: Queue, seen: Seen
) -> None:
    @emails.handler(size=1)
    async def handle(data: int, job: Job) -> None:
        seen.add(data, job)
        if data % 5 == 0:
            current_task().cancel()  # and it does not wait: whoever waits next would be hit
        else:
            await asyncio.sleep(0)

    await run_all(client, emails, seen)
    assert all(not job.retry_count for job in seen.jobs)


async def leave_a_timer() -> None:
    asyncio.get_running_loop().call_later(0.005, current_task().cancel)


async def leave_a_generator(left: list[object] = []) -> None:  # noqa: B006 - it is to stay
    async def generate() -> AsyncGenerator[int]:
        async with asyncio.timeout(0.005):
            yield 1

    generator = generate()
    left.append(generator)
    await anext(generator)


async def think_better_of_it() -> None:
    task = current_task()
    task.cancel()
    task.uncancel()  # before Python 3.13 that leaves the cancellation on its way


@pytest.mark.parametrize("leave", [leave_a_timer, leave_a_generator, think_better_of_it])
async def test_a_cancellation_that_one_leaves_behind_hits_nobody_else(
    client: Client, emails: Queue, seen: Seen, leave: Callable[[], Awaitable[None]]
) -> None:
    @emails.handler(size=1)
    async def handle(data: int, job: Job) -> None:
        seen.add(data, job)
        if data % 2:
            await asyncio.sleep(0.05)
        else:
            await leave()

    await run_all(client, emails, seen)
    assert all(not job.retry_count for job in seen.jobs)


@pytest.mark.parametrize("size", [1, 50], ids=["many", "few"])
async def test_they_start_in_order(client: Client, emails: Queue, seen: Seen, size: int) -> None:
    @emails.handler(size=size)
    async def handle(data: int, job: Job) -> None:
        seen.add(data, job)

    await run_all(client, emails, seen)
    assert seen.data == list(NUMBERS)


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize("kept", [False, True])
async def test_one_whose_lease_nobody_kept_before_it_started_does_not(
    kept: bool, is_async: bool
) -> None:
    """As after a freeze between the answer and the start: others may have it by then."""
    now = time.monotonic()
    table, listener = InflightTable(1, 1), Listener()
    table.set_requested_at(0, now - CUT_OFF - 1)
    if kept:
        table.set_confirmed_at(0, now)
    runs = Runs(table, 1, listener)
    service: Any = SimpleNamespace(function=SimpleNamespace(is_async=is_async), handler=None)
    runs.start(0, service, Job(id="a", queue="q", state="active", payload=b"1", token=7), 1)
    runs.go()
    await listener.ended.wait()
    (ending,) = listener.endings
    assert (ending.outcome == Release()) is not kept
    assert not table.run_count


class Listener:
    def __init__(self) -> None:
        self.ended, self.endings = asyncio.Event(), list[Ending]()

    def run_ended(self, run: Run, ending: Ending) -> None:
        self.endings.append(ending)
        self.ended.set()

    def thread_refused(self, run: Run) -> None: ...

    def room_changed(self) -> None: ...
