"""What a fail handler learns: the job as it was, and everything its error carried."""

import asyncio
from typing import Any

from queasy import Client, Job, JobError, JobOptions, Queue
from tests.worker.inline import Seen, until_empty, working


async def test_fail_handler_sees_the_job_as_it_was(
    client: Client, emails: Queue, seen: Seen
) -> None:
    runs: list[Job] = []

    @emails.handler(max_retries=1, min_backoff=0, timeout="unlimited")
    async def handle(data: Any, job: Job) -> None:
        runs.append(job)
        raise ValueError("no")

    @emails.fail_handler
    async def tell(data: Any, job: Job, error: JobError) -> None:
        seen.add(data, job)

    await emails.dispatch(1, id="job", delay=0.05, options=JobOptions(max_stalls="unlimited"))
    async with working(client):
        (job,) = await seen.runs(1)
        await until_empty(emails.fail_queue)
    last = runs[-1]
    assert job.options == last.options
    assert (job.options.max_stalls, job.options.timeout) == ("unlimited", "unlimited")
    assert (job.run_at, job.dispatched_at) == (last.run_at, last.dispatched_at)
    assert job.run_at is not None
    counts = (job.retry_count, job.stall_count, job.timeout_count, job.expiry_count)
    assert counts == (1, 0, 0, 0)
    assert (job.id, job.token, job.state) == ("job", last.token, "failed")


async def test_run_with_an_unlimited_timeout_is_not_ended(
    client: Client, emails: Queue, seen: Seen
) -> None:
    """The job's own "unlimited" overrides the timeout of its handler."""

    @emails.handler(timeout=0.1)
    async def handle(data: Any, job: Job) -> None:
        await asyncio.sleep(0.5)
        seen.add(data, job)

    await emails.dispatch("short", id="short")
    await emails.dispatch("long", id="long", options=JobOptions(timeout="unlimited"))
    async with working(client):
        (job,) = await seen.runs(1)
        assert job.id == "long"
        short: Any = await emails.get("short")
        while not short.timeout_count:
            await asyncio.sleep(0.01)
            short = await emails.get("short")
    await emails.cancel("short")
