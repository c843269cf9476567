"""Running a job now that was to run later."""

from queasy import Client, JobOptions, SyncClient
from tests.worker.inline import FAR, Seen, until, working


async def test_scheduled_job_becomes_due_and_keeps_the_rest(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch("data", id="a", delay=FAR, options=JobOptions(max_retries=7))
    before = await queue.get("a")
    done = await queue.run_now("a")
    assert (done.id, done.status, bool(done)) == ("a", "due", True)
    job = await queue.get("a")
    assert job is not None
    assert before is not None
    assert (job.state, job.data, job.options) == ("due", "data", JobOptions(max_retries=7))
    assert job.dispatched_at == before.dispatched_at


async def test_job_that_waits_to_be_retried_becomes_due_and_keeps_its_counts(
    client: Client,
) -> None:
    queue = client.queue("q")
    await queue.dispatch("data", id="a")
    lease = await queue.lease(timeout=5)
    assert lease is not None
    await lease.retry(after=FAR, error="busy")
    assert (await queue.run_now("a")).status == "due"
    job = await queue.get("a")
    assert job is not None
    assert (job.state, job.retry_count) == ("due", 1)
    assert job.error is not None
    assert job.error.message == "busy"


async def test_due_job_keeps_its_place(client: Client) -> None:
    queue = client.queue("q")
    for id_ in ("a", "b"):
        await queue.dispatch(1, id=id_)
    done = await queue.run_now("a")
    assert (done.status, bool(done)) == ("already_due", True)
    lease = await queue.lease(timeout=5)
    assert lease is not None
    assert lease.job.id == "a"


async def test_active_job_does_not_run_again(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1, id="a")
    async with queue.lease():
        done = await queue.run_now("a")
        assert (done.status, bool(done)) == ("active", False)
    assert await queue.lease(timeout=0) is None


async def test_absent_job_is_not_created(client: Client) -> None:
    queue = client.queue("q")
    done = await queue.run_now("a")
    assert (done.status, bool(done)) == ("absent", False)
    assert await queue.get("a") is None
    assert (await queue.counts()).waiting == 0


async def test_given_up_job_is_not_run_again(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1, id="a")
    lease = await queue.lease(timeout=5)
    assert lease is not None
    await lease.fail("no")
    assert (await queue.run_now("a")).status == "absent"


async def test_idle_worker_runs_the_job_at_once(client: Client) -> None:
    queue, seen = client.queue("q"), Seen()
    queue.handler(seen.add)
    await queue.dispatch("data", id="a", delay=FAR)

    async def worker_waits() -> bool:
        return (await queue.counts()).waiters > 0

    async with working(client):
        await until(worker_waits, "the worker waits")
        assert await queue.run_now("a")
        (job,) = await seen.runs(1)
    assert job.id == "a"


def test_sync_queue_runs_a_job_now(sync_client: SyncClient) -> None:
    queue = sync_client.queue("q")
    queue.dispatch("data", id="a", delay=FAR)
    assert queue.run_now("a").status == "due"
    assert queue.run_now("a").status == "already_due"
    assert queue.run_now("b").status == "absent"
    with queue.lease() as lease:
        assert lease.data == "data"
        assert queue.run_now("a").status == "active"
