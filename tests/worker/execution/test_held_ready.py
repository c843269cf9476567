"""Async handlers that wait: those that are held ready begin as soon as others end."""

import asyncio
from typing import Any

import pytest

from queasy import Client, Job, Queue
from tests.worker.inline import until, until_empty, working

JOBS = 2000


class RunningCount:
    """How many handlers run, and how many did at most."""

    def __init__(self) -> None:
        self.running = self.most = self.ended = 0

    async def wait(self, seconds: float) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.running -= 1
        self.ended += 1


class ActiveCount:
    """How many jobs the server counts as active, at most."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.most = 0

    async def watch(self) -> None:
        while True:
            self.most = max(self.most, (await self._queue.counts()).active)


@pytest.mark.parametrize(
    ("options", "at_once"), [({}, 100), ({"size": 1}, 100), ({"size": 5}, 20), ({"size": 70}, 1)]
)
async def test_no_more_run_at_once_than_fit_even_if_jobs_are_held_ready(
    client: Client, emails: Queue, options: dict[str, Any], at_once: int
) -> None:
    running, active = RunningCount(), ActiveCount(emails)

    @emails.handler(**options)
    async def handle(data: int) -> None:
        await running.wait(0.002)

    await emails.dispatch_many(range(JOBS if at_once > 1 else 200))
    async with working(client):
        watching = asyncio.create_task(active.watch())
        await until_empty(emails)
        watching.cancel()
    assert running.most <= at_once
    if at_once == 20:  # with a hundred, the server also counts what waits to be reported
        assert active.most > at_once == running.most


async def test_jobs_held_ready_return_to_the_queue_when_handlers_become_slow(
    client: Client, emails: Queue
) -> None:
    """Their counts stay 0, and they run when there is room."""
    may_end, slow = asyncio.Event(), list[Job]()

    @emails.handler(size=5)
    async def handle(is_slow: bool, job: Job) -> None:
        await asyncio.sleep(0.002)
        if is_slow:
            slow.append(job)
            await may_end.wait()

    await emails.dispatch_many([False] * JOBS + [True] * 60)
    async with working(client):

        async def only_those_that_run_are_held() -> bool:
            return len(slow) == 20 and (await emails.counts()).active == 20

        await until(only_those_that_run_are_held, "the others are released")
        may_end.set()
        await until_empty(emails)
    assert len(slow) == 60
    assert {(job.retry_count, job.stall_count, job.timeout_count) for job in slow} == {(0, 0, 0)}


async def test_job_of_another_queue_starts_beside_a_queue_that_holds_jobs_ready(
    client: Client, emails: Queue
) -> None:
    reports, ended = client.queue("reports"), asyncio.Event()
    loop = asyncio.get_running_loop()

    @emails.handler(size=1)
    async def handle(data: int) -> None:
        await asyncio.sleep(0.002)

    @reports.handler(size=50)
    def report(data: int) -> None:
        loop.call_soon_threadsafe(ended.set)

    await emails.dispatch_many(range(10 * JOBS))
    async with working(client):

        async def has_begun() -> bool:
            return (await emails.counts()).waiting < 9 * JOBS

        await until(has_begun, "the first queue is busy")
        await reports.dispatch(0)
        await ended.wait()
        assert (await emails.counts()).waiting  # it did not have to wait for the end of the others


async def test_worker_that_stops_releases_what_it_holds_ready(
    client: Client, emails: Queue
) -> None:
    running, active = RunningCount(), ActiveCount(emails)

    @emails.handler(size=5)
    async def handle(data: float) -> None:
        await running.wait(data)

    await emails.dispatch_many([0.002] * JOBS)
    async with working(client):
        watching = asyncio.create_task(active.watch())

        async def some_are_held_ready() -> bool:
            return running.ended > 200 and active.most > 20

        await until(some_are_held_ready, "some jobs have ended, and others are held ready")
        watching.cancel()
    counts = await emails.counts()
    assert counts.active == 0
    assert counts.waiting + running.ended == JOBS
