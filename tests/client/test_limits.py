"""Limits of jobs, and what `get` says of a job that was given up."""

import asyncio
from typing import Any

import pytest

from queasy import Client, JobOptions, Queue, SyncClient
from tests.servers import Server


async def abandon(queue: Queue) -> None:
    """Takes a job and lets its lease run out."""
    lease: Any = await queue.lease(seconds=0.01, timeout=5)
    assert lease is not None
    while not await queue.sweep():
        await asyncio.sleep(0.005)


async def test_pull_lease_may_be_abandoned_without_a_limit(client: Client) -> None:
    """The third abandoned lease used to move the job into the failed record."""
    queue = client.queue("q")
    await queue.dispatch("work", id="a")
    for expiries in range(1, 7):
        await abandon(queue)
        job: Any = await queue.get("a")
        assert (job.state, job.expiry_count, job.stall_count) == ("due", expiries, 0)
        assert not job.suspect
    async with queue.lease() as lease:
        assert (lease.data, lease.job.expiry_count) == ("work", 6)
    assert (await queue.counts()).failed == 0


@pytest.mark.parametrize("of_queue", [False, True], ids=["job", "queue"])
async def test_job_is_given_up_after_its_max_expiries(client: Client, of_queue: bool) -> None:
    queue = client.queue("q")
    limit = JobOptions(max_expiries=2)
    if of_queue:
        await queue.configure(limits=limit)
    await queue.dispatch("work", id="a", options=None if of_queue else limit)
    await abandon(queue)
    await abandon(queue)
    job: Any = await queue.get("a")
    assert (job.state, job.expiry_count, job.error.kind) == ("failed", 2, "expiry")
    assert job.options.max_expiries == 2


@pytest.mark.parametrize("of_queue", [False, True], ids=["job", "queue"])
async def test_unlimited_retries_are_never_used_up(client: Client, of_queue: bool) -> None:
    queue = client.queue("q")
    limit = JobOptions(max_retries="unlimited", min_backoff=0)
    if of_queue:
        await queue.configure(limits=limit)
    await queue.dispatch("work", id="a", options=None if of_queue else limit)
    for retries in range(15):
        lease: Any = await queue.lease(timeout=5)
        assert lease.job.retry_count == retries
        assert await lease.retry(error="not yet")
        assert lease.ended == "retried"


async def test_unlimited_of_a_job_overrides_the_limit_of_its_queue(client: Client) -> None:
    queue = client.queue("q")
    await queue.configure(limits=JobOptions(max_retries=0))
    await queue.dispatch(1, id="a", options=JobOptions(max_retries="unlimited", min_backoff=0))
    lease: Any = await queue.lease(timeout=5)
    await lease.retry()
    assert lease.ended == "retried"


async def test_unlimited_options_are_updated_as_numbers_are(client: Client) -> None:
    queue = client.queue("q")
    options = JobOptions(max_retries="unlimited", max_stalls="unlimited", timeout="unlimited")

    async def given(**arguments: Any) -> dict[str, Any]:
        await queue.dispatch(1, id="a", **arguments)
        job: Any = await queue.get("a")
        return dict(job.options.given())

    assert await given(options=options) == options.given()
    assert (await given(options=JobOptions(max_retries=7)))["timeout"] == "unlimited"
    kept = await given(options=options, update_options=False)
    assert kept == {**options.given(), "max_retries": 7}
    assert await given(options=options, update_options={"max_retries"}) == options.given()
    left = await given(update_options={"max_stalls", "timeout"})
    assert left == {"max_retries": "unlimited"}
    async with queue.lease() as lease:
        await queue.dispatch(2, id="a", options=options)
        await lease.retry(after=0)
    job: Any = await queue.get("a")
    assert job.options == options, "of the dispatch that was held"


async def test_limits_of_a_queue_are_replaced_as_a_whole(client: Client) -> None:
    queue = client.queue("q")
    await queue.configure(limits=JobOptions(max_retries="unlimited", max_expiries=1))
    await queue.configure(limits=JobOptions(max_retries=5))
    await queue.dispatch(1, id="a")
    async with queue.lease() as lease:
        await lease.fail("no")
    job: Any = await queue.get("a")
    assert (job.options.max_retries, job.options.max_expiries) == (5, "unlimited")


async def test_get_does_not_answer_with_the_failure_of_a_job_that_finished_since(
    client: Client,
) -> None:
    queue = client.queue("q")
    for end in ("complete", "fail"):
        await queue.dispatch(1, id="a")
        async with queue.lease() as lease:
            await lease.fail("no")
        job: Any = await queue.get("a")
        assert job.state == "failed"
        await queue.dispatch(2, id="a")
        job = await queue.get("a")
        assert job.state == "due"
        async with queue.lease() as lease:
            await (lease.fail("again") if end == "fail" else lease.complete())
        job = await queue.get("a")
        assert (job and job.error.message) == ("again" if end == "fail" else None)
    assert (await queue.counts()).failed == 1
    assert await queue.audit() == []


async def test_failed_record_stays_when_the_id_is_cancelled(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1, id="a")
    async with queue.lease() as lease:
        await lease.fail("no")
    await queue.dispatch(2, id="a")
    assert await queue.cancel("a")
    job: Any = await queue.get("a")
    assert (job.state, job.data) == ("failed", 1)


async def test_broken_record_stays_when_a_later_job_of_its_id_finishes(client: Client) -> None:
    """Its payload never ran."""
    queue = client.queue("q")
    await client.queue("q", codec="raw").dispatch(b"{", id="a")
    assert await queue.lease(timeout=0) is None
    await queue.dispatch(2, id="a")
    async with queue.lease() as lease:
        assert lease.data == 2
    job: Any = await queue.get("a")
    assert (job.state, job.payload) == ("broken", b"{")


async def test_fail_queue_shows_the_job_as_it_was(client: Client) -> None:
    queue = client.queue("q")
    await queue.configure(limits=JobOptions(max_timeouts=7), fail_handler=True)
    await queue.dispatch("work", id="a", options=JobOptions(min_backoff=0, max_backoff=1))
    lease: Any = await queue.lease()
    await lease.retry()
    lease = await queue.lease()
    before = lease.job
    await lease.fail("no")
    origin = (await queue.fail_queue.lease()).job.origin
    listed: Any = await queue.get("a")
    for job in (origin, listed):
        assert job.options == JobOptions(
            max_retries=10, max_stalls=3, max_timeouts=7, max_expiries="unlimited",
            min_backoff=0, max_backoff=1,
        )  # fmt: skip
        assert (job.run_at, job.dispatched_at) == (before.run_at, before.dispatched_at)
        assert (job.run_at, job.retry_count) != (None, 0)


def test_sync_client_has_unlimited_limits(server: Server, prefix: str) -> None:
    with SyncClient(server.url, prefix=prefix) as client:
        queue = client.queue("q")
        options = JobOptions(max_stalls="unlimited", timeout="unlimited")
        queue.configure(limits=options)
        queue.dispatch(1, id="a", options=options)
        job: Any = queue.get("a")
        assert job.options == options
