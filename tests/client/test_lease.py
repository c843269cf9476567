"""Pull leases: a program takes a job, extends the lease and ends it."""

import asyncio
import time

import pytest

from queasy import Client, Dispatch, JobOptions, Lease, LeaseLost, UndecodablePayload
from tests.client.waiting import until_waiting
from tests.servers import ServerKind, start_server


async def test_lease_of_an_empty_queue_returns_none_at_once(client: Client) -> None:
    assert await client.queue("q").lease(timeout=0) is None


async def test_complete_is_true_for_exactly_one_caller(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1)
    lease = await queue.lease(timeout=0)
    assert lease is not None
    results = await asyncio.gather(*(lease.complete() for _ in range(10)))
    assert sorted(results) == [False] * 9 + [True]


async def test_job_completed_before_its_work_never_runs_again(client: Client) -> None:
    """At most once: a program that dies after it completed the job has lost it, and that is all."""
    queue = client.queue("q")
    await queue.dispatch("charge the card", id="a")
    dies = await queue.lease(seconds=0.1, timeout=0)
    assert await dies.complete()  # and only then begins its work
    assert await queue.sweep() == 0
    assert await queue.lease(timeout=0.3) is None
    late = await queue.dispatch("charge the card", id="b")
    first = await queue.lease(seconds=0.05, timeout=0)
    second = await queue.lease(seconds=30, timeout=5)  # the lease of the first ran out
    assert (first.job.id, second.job.id) == (late.id, late.id)
    assert [await first.complete(), await second.complete()] == [False, True]


async def test_extend_keeps_a_lease_alive(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1)
    lease = await queue.lease(seconds=0.3, timeout=0)
    assert lease is not None
    for _ in range(4):
        await asyncio.sleep(0.15)
        assert await lease.extend(0.3)
        assert await queue.lease(timeout=0) is None
    assert await lease.complete()


async def test_a_with_block_completes_on_success(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1)
    async with queue.lease() as lease:
        assert lease is not None
    assert lease.ended == "finished"


async def test_a_with_block_retries_on_an_exception(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1, id="a", options=JobOptions(min_backoff=0, max_backoff=0))
    with pytest.raises(ZeroDivisionError):
        async with queue.lease():
            _ = 1 / 0
    job = await queue.get("a")
    assert job is not None
    assert (job.state, job.retry_count) == ("due", 1)
    assert job.error is not None
    assert (job.error.type, job.error.kind) == ("ZeroDivisionError", "retriable")
    assert "1 / 0" in job.error.traceback
    await queue.cancel("a")


async def test_a_with_block_that_is_cancelled_releases(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1, id="a")
    inside = asyncio.Event()

    async def work() -> None:
        async with queue.lease():
            inside.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    job = await queue.get("a")
    assert job is not None
    assert (job.state, job.retry_count, job.stall_count) == ("due", 0, 0)


async def test_with_block_keeps_the_outcome_its_body_chose(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1, id="a")
    async with queue.lease() as lease:
        assert lease is not None
        await lease.fail("not today")
    assert lease.ended == "failed"
    assert (await queue.counts()).failed == 1


async def test_with_block_raises_when_its_lease_expired(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1, id="a")
    others: list[Lease | None] = []

    async def work() -> None:
        async with queue.lease(seconds=0.05):
            others.append(await queue.lease(timeout=5))

    with pytest.raises(LeaseLost, match="another client may run the job again"):
        await work()
    (other,) = others
    assert other is not None
    assert await other.complete()


async def test_with_block_raises_when_the_answer_to_extend_was_that_its_lease_is_over(
    client: Client,
) -> None:
    """Bug: it did not, so a program that ignored the answer took its work for done."""
    queue = client.queue("q")
    await queue.dispatch(1, id="a")

    async def work() -> None:
        async with queue.lease() as lease:
            assert lease is not None
            await queue.evict(lease.job.client)
            assert not await lease.extend(60)

    with pytest.raises(LeaseLost):
        await work()
    await queue.cancel("a")


async def test_with_block_whose_body_learned_how_its_lease_ended_does_not_raise(
    client: Client,
) -> None:
    queue = client.queue("q")
    await queue.dispatch(1, id="a")
    async with queue.lease() as lease:
        assert lease is not None
        await queue.evict(lease.job.client)
        assert not await lease.complete()
    await queue.cancel("a")


async def test_job_retried_with_an_empty_error_can_be_read(client: Client) -> None:
    """Bug: its record held the error as an empty array, and the job was set aside as broken."""
    queue = client.queue("q")
    await queue.dispatch(1, id="a")
    lease = await queue.lease(timeout=5)
    assert lease is not None
    await lease.retry(after=0, error="")
    async with queue.lease(timeout=5) as again:
        assert again is not None
        assert (again.job.retry_count, again.job.error) == (1, None)


async def test_job_fails_when_its_retries_are_used_up(client: Client) -> None:
    queue = client.queue("q")
    await queue.configure(fail_handler=True, limits=JobOptions(max_retries=2))
    await queue.dispatch({"n": 1}, id="a")
    for expected in ("retried", "retried", "failed"):
        lease = await queue.lease(timeout=5)
        assert lease is not None
        await lease.retry(after=0, error=ValueError("bad luck"))
        assert lease.ended == expected
    failed = await queue.get("a")
    assert failed is not None
    assert (failed.state, failed.retry_count, failed.data) == ("failed", 2, {"n": 1})
    assert failed.ended_at is not None
    async with queue.fail_queue.lease() as failure:
        assert failure is not None
        origin = failure.job.origin
        assert origin is not None
        assert origin.error is not None
        assert (failure.data, origin.retry_count, origin.error.message) == ({"n": 1}, 2, "bad luck")
    assert await queue.requeue("a") == 1
    async with queue.lease() as lease:
        assert lease is not None
        assert lease.job.retry_count == 0


async def test_backoff_doubles_up_to_its_maximum(client: Client) -> None:
    queue = client.queue("q")
    options = JobOptions(min_backoff=100, max_backoff=300)
    await queue.dispatch(1, id="a", options=options)
    for expected in (100, 200, 300, 300):
        await queue.dispatch(1, id="a", reset_counts=False)
        lease = await queue.lease(timeout=0)
        assert lease is not None
        before = time.time()
        await lease.retry()
        job = await queue.get("a")
        assert job is not None
        assert job.run_at_epoch - before == pytest.approx(expected, abs=5)


async def test_undecodable_payload_is_quarantined_and_others_are_leased(client: Client) -> None:
    raw, queue = client.queue("q", codec="raw"), client.queue("q")
    await raw.dispatch(b"{not json", id="bad")
    await queue.dispatch("good", id="good")
    lease = await queue.lease(timeout=1)
    assert lease is not None
    assert lease.data == "good"
    await lease.complete()
    assert await queue.lease(timeout=0) is None
    broken = await queue.get("bad")
    assert broken is not None
    assert (broken.state, broken.payload) == ("broken", b"{not json")
    assert broken.error is not None
    assert broken.error.kind == "broken"
    assert await raw.requeue("bad", kind="broken") == 1
    async with raw.lease() as fixed:
        assert fixed is not None
        assert fixed.data == b"{not json"


async def test_cancel_of_an_active_job_reaches_its_holder_and_outlasts_its_lease(
    client: Client,
) -> None:
    queue = client.queue("q")
    await queue.dispatch(1, id="a")
    lease = await queue.lease(seconds=0.2, timeout=0)
    assert lease is not None
    assert await queue.cancel("a", running=True)
    assert await lease.extend(0.2)
    assert lease.cancelled
    # Whole milliseconds: at 0 the last one may not be over yet.
    while any(holder.expires_in >= 0 for holder in await queue.clients()):
        await asyncio.sleep(0.01)  # the holder neither ends nor extends the lease
    assert await queue.lease(timeout=0) is None
    assert await queue.get("a") is None


async def test_paused_queue_leases_nothing_until_it_is_resumed(client: Client) -> None:
    queue = client.queue("q")
    await queue.pause()
    assert (await queue.counts()).paused
    await queue.dispatch(1)
    assert await queue.lease(timeout=0) is None
    waiting = asyncio.create_task(queue.lease(timeout=30))
    await until_waiting(queue)
    await queue.resume()
    lease = await asyncio.wait_for(waiting, 5)
    assert lease is not None
    await lease.complete()


async def test_evicting_a_client_returns_its_jobs_at_once(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1, id="a")
    lease = await queue.lease(seconds=600, timeout=0)
    assert lease is not None
    (holder,) = await queue.clients()
    assert (holder.leases, holder.id) == (1, lease.job.client)
    assert await queue.evict(holder.id) == 1
    async with queue.lease() as again:
        assert again is not None
        assert again.job.stall_count == 1
    assert not await lease.complete()


async def test_counters_match_what_happened(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch_many(range(5))
    for _ in range(5):
        async with queue.lease():
            pass
    totals = {stat.kind: stat.count for stat in await queue.stats() if stat.minute is None}
    assert totals["dispatched"] == totals["dequeued"] == totals["finished"] == 5


async def test_requeued_fail_job_keeps_its_origin(client: Client) -> None:
    queue = client.queue("q")
    await queue.configure(fail_handler=True)
    await queue.dispatch(1, id="a")
    await (await queue.lease()).fail("why")
    failures = queue.fail_queue
    await (await failures.lease()).fail("the fail handler failed too")
    (given_up,) = [job async for job in failures.jobs("failed")]
    assert given_up.origin is not None
    assert await failures.requeue(given_up.id) == 1
    async with failures.lease() as lease:
        assert lease.job.origin is not None
        assert lease.job.origin.id == "a"
        assert lease.job.origin.error is not None
        assert lease.job.origin.error.message == "why"


async def test_consumer_with_the_wrong_codec_loses_no_job(client: Client) -> None:
    """Bug: it quarantined thousands of jobs, more than the broken record could hold."""
    raw, wrong = client.queue("q", codec="raw"), client.queue("q")
    await raw.configure(broken_limit=15)
    await raw.dispatch_many(b"{not json %d" % n for n in range(40))
    for _ in range(3):
        with pytest.raises(UndecodablePayload, match="Is this the codec"):
            await wrong.lease(timeout=0)
    counts = await raw.counts()
    assert (counts.broken, counts.waiting, counts.active) == (15, 25, 0)
    broken = [job.id async for job in raw.jobs("broken")]
    assert await raw.requeue(broken, kind="broken") == 15
    payloads = {job.payload async for job in raw.jobs()}
    assert payloads == {b"{not json %d" % n for n in range(40)}


async def test_awaited_lease_can_be_used_in_a_with_block(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1)
    if lease := await queue.lease(timeout=1):
        async with lease:
            assert lease.data == 1
    assert lease is not None
    assert lease.ended == "finished"


async def test_first_outcome_of_a_lease_stands(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1)
    lease = await queue.lease()
    assert await lease.complete()
    assert not await lease.complete()
    assert not await lease.extend(5)
    assert lease.ended == "finished"


async def test_jobs_can_be_removed_while_they_are_listed(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch_many(range(250))
    async for job in queue.jobs():
        assert await queue.cancel(job.id)
    assert (await queue.counts()).waiting == 0
    at = time.time() + 3600
    await queue.dispatch_many(Dispatch(n, id=f"{n:03}", run_at=at) for n in range(150))
    for n in range(150, 320):  # the same run_at, and so the same score, on several pages
        await queue.dispatch(n, id=f"{n:03}", run_at=at)
    assert len({job.id async for job in queue.jobs("scheduled")}) == 320
    await queue.configure(failed_limit=1000)
    for job in [job async for job in queue.jobs()]:
        await queue.dispatch(1, id=job.id)
    for _ in range(320):
        await (await queue.lease()).fail()
    async for job in queue.jobs("failed"):
        assert await queue.requeue(job.id) == 1
    assert (await queue.counts()).failed == 0
    leases = [await queue.lease(seconds=60) for _ in range(230)]
    assert len({job.id async for job in queue.jobs("active")}) == 230
    for lease in leases:
        await lease.complete()


async def test_token_is_not_reused_after_the_server_was_flushed(kind: ServerKind) -> None:
    with start_server(kind) as server:
        async with Client(server.url) as client:
            queue = client.queue("q")
            await queue.dispatch("old", id="x")
            stale = await queue.lease()
            server.client().flushall()
            await queue.dispatch("new", id="x")
            fresh = await queue.lease()
            assert not await stale.complete()
            assert await fresh.complete()


async def test_fail_job_gets_another_id_if_its_own_is_taken(client: Client) -> None:
    queue = client.queue("q")
    await queue.configure(fail_handler=True)
    await queue.dispatch("doomed", id="a")
    doomed = await queue.lease()
    await queue.fail_queue.dispatch("mine", id=f"a:{doomed.token}")
    mine = await queue.fail_queue.lease()
    await doomed.fail()
    other = await queue.fail_queue.lease(timeout=1)
    assert other is not None
    assert (mine.data, other.data) == ("mine", "doomed")
    assert await mine.complete()
    assert await other.complete()
