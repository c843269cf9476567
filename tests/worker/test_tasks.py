"""Async handlers that share a task: nobody notices."""

import asyncio
import contextvars
import time
from types import SimpleNamespace
from typing import Any

import pytest

from queasy import Client, Dispatch, Job, Queue
from queasy.outcome import Release
from queasy.worker.plan import CUT_OFF
from queasy.worker.runs import Runs
from queasy.worker.table import Table
from tests.worker.inline import Seen, until_empty, working

LEFT = contextvars.ContextVar("LEFT", default="nothing")
NUMBERS = range(40)


async def run_all(client: Client, queue: Queue, seen: Seen) -> None:
    await queue.dispatch_many([Dispatch(n, id=str(n)) for n in NUMBERS])
    async with working(client):
        await seen.runs(len(NUMBERS))
        await until_empty(queue)
    assert sorted(seen.data) == list(NUMBERS)


async def test_those_that_do_not_wait_share_a_task(
    client: Client, emails: Queue, seen: Seen
) -> None:
    tasks: set[Any] = set()

    @emails.handler(size=1)
    async def handle(data: int, job: Job) -> None:
        tasks.add(asyncio.current_task())
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
            task = asyncio.current_task()
            assert task is not None
            task.cancel()  # and it does not wait: whoever waits next would be hit
        else:
            await asyncio.sleep(0)

    await run_all(client, emails, seen)
    assert all(not job.retry_count for job in seen.jobs)


@pytest.mark.parametrize("size", [1, 50], ids=["many", "few"])
async def test_they_start_in_order(client: Client, emails: Queue, seen: Seen, size: int) -> None:
    @emails.handler(size=size)
    async def handle(data: int, job: Job) -> None:
        seen.add(data, job)

    await run_all(client, emails, seen)
    assert seen.data == list(NUMBERS)


@pytest.mark.parametrize("kept", [False, True])
async def test_one_whose_lease_nobody_kept_before_it_started_does_not(kept: bool) -> None:
    """As after a freeze between the answer and the start: others may have it by then."""
    now = time.monotonic()
    table, line = Table(1, 1), SimpleNamespace(index=0, is_async=True, endings=[], service=None)
    line.asked_for_jobs = now - CUT_OFF - 1
    if kept:
        table.keep(0, now)
    ended = asyncio.Event()
    runs: Any = Runs(table, 1, ended.set)
    runs.start(line, Job(id="a", queue="q", state="active", payload=b"1", token=7), 1)
    runs.go()
    await ended.wait()
    (ending,) = line.endings
    assert (ending.outcome == Release()) is not kept
    assert not table.runs
