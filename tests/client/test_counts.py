"""What a queue counts, and what it keeps."""

from queasy import Client, JobOptions


async def test_counts_say_how_many_jobs_wait_are_scheduled_leased_and_held(client: Client) -> None:
    """For autoscaling: a lease that its holder abandoned counts as active until it ends."""
    queue = client.queue("q")
    await queue.dispatch_many([1, 2, 3])
    await queue.dispatch(4, delay=60)
    abandoned = await queue.lease(seconds=60, timeout=0)
    await queue.dispatch(5, id=abandoned.job.id)
    counts = await queue.counts()
    assert (counts.waiting, counts.due, counts.scheduled) == (3, 2, 1)
    assert (counts.active, counts.blocked, counts.clients) == (1, 1, 1)
    assert counts.latency > 0
    assert await abandoned.complete()
    counts = await queue.counts()
    assert (counts.waiting, counts.active, counts.blocked, counts.clients) == (4, 0, 0, 0)


async def test_queue_with_a_failed_limit_of_0_keeps_no_record(client: Client) -> None:
    queue = client.queue("q")
    await queue.configure(failed_limit=0, limits=JobOptions(max_retries=0))
    await queue.dispatch("gone", id="a")
    lease = await queue.lease(timeout=0)
    assert await lease.fail("no")
    assert lease.ended == "failed"
    assert await queue.get("a") is None
    assert (await queue.counts()).failed == 0
