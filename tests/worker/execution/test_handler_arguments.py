"""What a handler gets: the job, the options in force; fail handlers; and how many run at once."""

import asyncio
import time
from typing import Any

import pytest

from queasy import (
    Client,
    Failure,
    Job,
    JobError,
    JobOptions,
    Queue,
    Retry,
)
from tests.servers import Server
from tests.worker.inline import FAR, PATIENCE, Seen, until, until_empty, until_state, working

# The job


async def test_job_carries_its_data_counts_times_and_options(
    client: Client, emails: Queue, seen: Seen
) -> None:
    @emails.handler(max_retries=7, min_backoff=0, max_backoff=20, timeout=30)
    async def handle(data: Any, job: Job) -> None:
        seen.add(data, job)
        if job.retry_count == 0:
            raise ValueError("once")

    before = time.time()
    await emails.dispatch({"to": "x"}, id="job", options=JobOptions(max_stalls=5, timeout=40))
    after = time.time()
    async with working(client):
        first, second = await seen.runs(2)
        await until_empty(emails)
    assert seen.data == [{"to": "x"}] * 2
    assert (first.id, first.queue, first.state, first.data) == (
        "job", "emails", "active", {"to": "x"}
    )  # fmt: skip
    assert 0 < first.token < second.token
    assert first.dispatched_at is not None
    assert first.run_at is not None
    slack = 0.01  # the server counts in milliseconds
    assert before - slack <= first.dispatched_at.timestamp() <= after + slack
    assert first.run_at.timestamp() == pytest.approx(first.dispatched_at.timestamp(), abs=slack)
    assert second.dispatched_at == first.dispatched_at
    assert (first.retry_count, first.stall_count, first.timeout_count) == (0, 0, 0)
    assert (second.retry_count, second.stall_count, second.timeout_count) == (1, 0, 0)
    assert first.options == JobOptions(
        max_retries=7, max_stalls=5, max_timeouts=3, max_expiries="unlimited", min_backoff=0,
        max_backoff=20, timeout=40,
    )  # fmt: skip
    assert not first.cancelled


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
async def test_running_handler_sees_that_it_is_cancelled(
    client: Client, emails: Queue, seen: Seen, is_async: bool
) -> None:
    loop = asyncio.get_running_loop()
    told: list[bool] = []

    def plain(data: Any, job: Job) -> None:
        loop.call_soon_threadsafe(seen.add, data, job)
        deadline = time.monotonic() + PATIENCE
        while not job.cancelled and time.monotonic() < deadline:
            time.sleep(0.005)
        told.append(job.cancelled)
        raise RuntimeError("one way to end")

    async def coroutine(data: Any, job: Job) -> None:
        seen.add(data, job)
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            told.append(job.cancelled)
            raise

    emails.handler(coroutine if is_async else plain)
    await emails.dispatch(1, id="job")
    async with working(client):
        await seen.runs(1)
        assert await emails.cancel("job", running=True)
        await until_empty(emails)
    assert told == [True]
    assert len(seen.jobs) == 1
    assert await emails.get("job") is None


# Options


async def test_options_of_a_job_override_those_of_its_handler(
    client: Client, emails: Queue, seen: Seen
) -> None:
    @emails.handler(max_retries=5, min_backoff=0)
    async def handle(data: Any, job: Job) -> None:
        seen.add(data, job)
        raise ValueError("no")

    await emails.dispatch(1, id="strict", options=JobOptions(max_retries=0))
    await emails.dispatch(2, id="easy")
    async with working(client):
        await until_state(emails, "strict", "failed")
        await until_state(emails, "easy", "failed")
    assert seen.data.count(1) == 1
    assert seen.data.count(2) == 6


async def test_options_of_a_later_worker_apply_to_jobs_already_queued(
    server: Server, prefix: str, client: Client, emails: Queue, seen: Seen
) -> None:
    @emails.handler(max_retries=9, min_backoff=0)
    async def handle(data: Any, job: Job) -> Retry:
        seen.add(data, job)
        return Retry("patience", after=0 if job.retry_count < 2 else FAR)

    await emails.dispatch(1, id="job")
    async with working(client):
        await seen.runs(3)
        await until_state(emails, "job", "scheduled")
    async with Client(server.url, prefix=prefix) as other:
        strict = other.queue("emails")

        @strict.handler(max_retries=1)
        async def give_up(data: Any, job: Job) -> None:
            seen.add(data, job)
            raise ValueError("no")

        # Changes only run_at: counts and options stay.
        await emails.dispatch(1, id="job", update_data=False)
        async with working(other):
            failed = await until_state(emails, "job", "failed")
    assert [job.retry_count for job in seen.jobs] == [0, 1, 2, 3]
    assert [job.options.max_retries for job in seen.jobs] == [9, 9, 9, 1]
    assert failed.error is not None
    assert failed.error.message == "no"


# Fail handlers


async def test_fail_handler_gets_the_failed_job_and_its_error(
    client: Client, emails: Queue, seen: Seen
) -> None:
    errors: list[JobError] = []

    @emails.handler(max_retries=1, min_backoff=0)
    async def handle(data: Any, job: Job) -> None:
        raise ValueError(f"try {job.retry_count}")

    @emails.fail_handler
    async def tell(data: Any, job: Job, error: JobError) -> None:
        errors.append(error)
        seen.add(data, job)

    await emails.dispatch({"to": "x"}, id="job")
    async with working(client):
        (job,) = await seen.runs(1)
        await until_empty(emails.fail_queue)
    assert seen.data == [{"to": "x"}]
    assert (job.id, job.queue, job.data) == ("job", "emails", {"to": "x"})
    assert job.retry_count == 1
    assert (errors[0].type, errors[0].message) == ("ValueError", "try 1")
    assert (await emails.counts()).failed == 1


async def test_worker_announces_its_fail_handler_for_a_week(
    client: Client, server: Server, prefix: str
) -> None:
    """Bug: the server kept that for ever, also after the fail handler was removed from the code."""
    emails = client.queue("emails")

    @emails.handler
    async def send(data: Any) -> None:
        raise Failure("no")

    @emails.fail_handler
    async def note(data: Any) -> None:
        pass

    async with working(client):
        await emails.dispatch(1, id="a")
        await until_state(emails, "a", "failed")
        await until_empty(emails.fail_queue)
    announced = server.client().hget(f"{prefix}:{{emails}}:meta", "fail_handler")
    assert 6.9 < (float(announced) / 1000 - time.time()) / 86_400 <= 7


async def test_fail_handler_is_retried_by_its_own_options(
    client: Client, emails: Queue, seen: Seen
) -> None:
    @emails.handler(max_retries=0)
    async def handle(data: Any) -> None:
        raise ValueError("no")

    @emails.fail_handler(max_retries=3, min_backoff=0)
    async def tell(data: Any, job: Job, error: JobError) -> None:
        seen.add(data, job)
        assert error.message == "no"
        raise OSError("the mail server is away")

    await emails.dispatch(1, id="job")
    async with working(client):
        await seen.runs(4)
        await until_empty(emails.fail_queue)
        assert (await emails.fail_queue.counts()).failed == 1
    assert len(seen.jobs) == 4
    assert {job.id for job in seen.jobs} == {"job"}


async def test_fail_handler_runs_after_the_last_timeout(
    client: Client, emails: Queue, seen: Seen
) -> None:
    errors: list[JobError] = []

    @emails.handler(timeout=0.2, max_timeouts=1)
    async def handle(data: Any) -> None:
        await asyncio.sleep(PATIENCE)

    @emails.fail_handler
    async def tell(data: Any, job: Job, error: JobError) -> None:
        errors.append(error)
        seen.add(data, job)

    await emails.dispatch(1, id="job")
    async with working(client):
        (job,) = await seen.runs(1)
        await until_empty(emails.fail_queue)
    assert (job.id, job.timeout_count) == ("job", 1)
    assert errors[0].kind == "timeout"
    assert "await asyncio.sleep(PATIENCE)" in errors[0].traceback, (
        "the traceback shows where it waited"
    )


async def test_timeout_of_a_plain_handler_records_its_traceback(
    client: Client, emails: Queue
) -> None:
    @emails.handler(timeout=0.2, max_timeouts=1)
    def handle(data: Any) -> None:
        for _ in range(100_000):
            time.sleep(0.001)

    await emails.dispatch(1, id="job")
    async with working(client):
        job = await until_state(emails, "job", "failed")
    assert job.error is not None
    assert "time.sleep(0.001)" in job.error.traceback


async def test_fail_handler_runs_after_the_last_stall(
    client: Client, emails: Queue, seen: Seen
) -> None:
    errors: list[JobError] = []

    @emails.handler(max_stalls=1)
    async def handle(data: Any) -> None:
        raise AssertionError("the job must not run again")

    @emails.fail_handler
    async def tell(data: Any, job: Job, error: JobError) -> None:
        errors.append(error)
        seen.add(data, job)

    async with working(client):  # stores its options on the server
        await until(lambda: client.workers(), "it works")
    await emails.dispatch(1, id="job")
    lease = await emails.lease(60)
    (holder,) = await emails.clients()
    assert await emails.evict(holder.id) == 1
    async with working(client):
        (job,) = await seen.runs(1)
        await until_empty(emails.fail_queue)
    assert (job.id, job.stall_count) == ("job", 1)
    assert errors[0].kind == "stall"
    assert not await lease.complete()


# Timeouts, and how many run at once


async def test_run_that_finishes_after_its_timeout_counts_as_finished(
    client: Client, emails: Queue, seen: Seen
) -> None:
    asked: list[bool] = []

    @emails.handler(timeout=0.2)
    async def handle(data: Any, job: Job) -> None:
        seen.add(data, job)
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            asked.append(True)

    await emails.dispatch(1, id="job")
    async with working(client):
        await seen.runs(1)
        await until_empty(emails)
    assert asked == [True]
    assert len(seen.jobs) == 1
    kinds = {stat.kind: stat.count for stat in await emails.stats() if stat.minute is None}
    assert kinds.get("finished") == 1


async def test_waiting_async_handlers_run_by_the_hundred(client: Client, emails: Queue) -> None:
    running = most = ended = 0

    @emails.handler
    async def handle(data: Any) -> None:
        nonlocal running, most, ended
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.5)
        running -= 1
        ended += 1

    await emails.dispatch_many(range(100))
    async with working(client):
        await until_empty(emails)
    assert ended == 100
    assert most > 30, "10 units each would allow 10 at once"
    assert most <= 100


async def test_async_handler_with_a_size_keeps_to_capacity(client: Client, emails: Queue) -> None:
    running = most = 0

    @emails.handler(size=20)
    async def handle(data: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.1)
        running -= 1

    await emails.dispatch_many(range(25))
    async with working(client):
        await until_empty(emails)
    assert most == 5
