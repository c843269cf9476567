"""Pull leases: other programs take jobs and complete them."""

import asyncio
import time

import pytest

from queasy import Client, Dispatch, JobOptions, Lease, LeaseLost, QueasyError, UndecodablePayload
from tests.servers import Server, ServerKind, start_server


async def test_nothing_to_lease_is_none_at_once(client: Client) -> None:
    assert await client.queue("q").lease(timeout=0) is None


async def test_a_lease_waits_for_a_job_without_polling(client: Client, server: Server) -> None:
    queue = client.queue("q")
    await queue.counts()
    waiting = asyncio.create_task(queue.lease(timeout=30))
    while (await queue.counts()).waiters == 0:
        await asyncio.sleep(0.01)
    before = server.client().info("commandstats")["cmdstat_fcall"]["calls"]
    await asyncio.sleep(0.5)
    assert server.client().info("commandstats")["cmdstat_fcall"]["calls"] == before
    await queue.dispatch("now")
    lease = await asyncio.wait_for(waiting, 5)
    assert lease is not None
    assert lease.data == "now"
    await lease.complete()
    assert (await queue.counts()).waiters == 0


async def test_one_dispatch_wakes_one_of_many_clients(server: Server, prefix: str) -> None:
    clients = [Client(server.url, prefix=prefix) for _ in range(5)]
    tasks = [asyncio.create_task(c.queue("q").lease(timeout=3)) for c in clients]
    queue = clients[0].queue("q")
    while (await queue.counts()).waiters < 5:
        await asyncio.sleep(0.01)
    await queue.dispatch(1)
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1
    assert (await queue.counts()).waiters == 4
    leases = await asyncio.gather(*tasks)
    assert sum(lease is not None for lease in leases) == 1
    assert (await queue.counts()).waiters == 0
    for client in clients:
        await client.close()


async def test_a_lease_waits_for_a_scheduled_job(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1, delay=60)
    waiting = asyncio.create_task(queue.lease(timeout=30))
    while (await queue.counts()).waiters == 0:
        await asyncio.sleep(0.01)
    start = time.monotonic()
    await queue.dispatch(2, delay=0.3)  # earlier than what it waits for
    lease = await asyncio.wait_for(waiting, 5)
    assert lease is not None
    assert lease.data == 2
    assert time.monotonic() - start >= 0.3
    await lease.complete()
    await queue.cancel((await anext(queue.jobs())).id)


async def test_a_waiting_lease_takes_over_what_another_let_expire(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1, id="a")
    stale = await queue.lease(seconds=0.2, timeout=0)
    assert stale is not None
    fresh = await queue.lease(seconds=30, timeout=10)
    assert fresh is not None
    assert fresh.job.stall_count == 1
    assert fresh.token > stale.token
    assert not await stale.complete()
    assert not await stale.extend(10)
    assert not await stale.retry()
    assert stale.ended == "lost"
    assert await fresh.complete()


async def test_complete_is_true_for_exactly_one_caller(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1)
    lease = await queue.lease(timeout=0)
    assert lease is not None
    results = await asyncio.gather(*(lease.complete() for _ in range(10)))
    assert sorted(results) == [False] * 9 + [True]


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


async def test_a_with_block_leaves_a_lease_alone_that_its_body_ended(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1, id="a")
    async with queue.lease() as lease:
        assert lease is not None
        await lease.fail("not today")
    assert lease.ended == "failed"
    assert (await queue.counts()).failed == 1


async def test_a_with_block_says_when_its_lease_ran_out(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1, id="a")
    others: list[Lease | None] = []

    async def work() -> None:
        async with queue.lease(seconds=0.05):
            others.append(await queue.lease(timeout=5))

    with pytest.raises(LeaseLost, match="more seconds"):
        await work()
    (other,) = others
    assert other is not None
    assert await other.complete()


async def test_retries_run_out(client: Client) -> None:
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


async def test_backoff_doubles(client: Client) -> None:
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


async def test_a_payload_that_cannot_be_decoded_is_set_aside_alone(client: Client) -> None:
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


async def test_a_cancel_of_a_running_job_reaches_its_holder_and_outlives_it(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1, id="a")
    lease = await queue.lease(seconds=0.2, timeout=0)
    assert lease is not None
    assert await queue.cancel("a", running=True)
    assert await lease.extend(0.2)
    assert lease.cancelled
    await asyncio.sleep(0.3)  # it neither answers nor extends
    assert await queue.lease(timeout=0) is None
    assert await queue.get("a") is None


async def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(client: Client) -> None:
    queue = client.queue("q")
    await queue.pause()
    assert (await queue.counts()).paused
    await queue.dispatch(1)
    assert await queue.lease(timeout=0) is None
    waiting = asyncio.create_task(queue.lease(timeout=30))
    while (await queue.counts()).waiters == 0:
        await asyncio.sleep(0.01)
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


async def test_counters_count(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch_many(range(5))
    for _ in range(5):
        async with queue.lease():
            pass
    totals = {stat.kind: stat.count for stat in await queue.stats() if stat.minute is None}
    assert totals["dispatched"] == totals["dequeued"] == totals["finished"] == 5


async def test_leases_that_wait_in_one_client_do_not_forget_each_other(client: Client) -> None:
    """One of them got a job and took the whole client off the list of those to be woken."""
    queue = client.queue("q")
    waiting = [asyncio.create_task(queue.lease(timeout=30)) for _ in range(5)]
    for n in range(5):
        while (await queue.counts()).waiters == 0:
            await asyncio.sleep(0.005)
        await queue.dispatch(n)
        done, _ = await asyncio.wait(waiting, timeout=5, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        lease = done.pop().result()
        assert lease is not None
        assert lease.data == n
        assert await lease.complete()
        waiting = [task for task in waiting if not task.done()]


async def test_a_burst_reaches_every_lease_that_waits(server: Server, prefix: str) -> None:
    clients = [Client(server.url, prefix=prefix) for _ in range(3)]
    tasks = [asyncio.create_task(c.queue("q").lease(timeout=30)) for c in clients for _ in range(4)]
    queue = clients[0].queue("q")
    while (await queue.counts()).waiters < 3:
        await asyncio.sleep(0.005)
    await queue.dispatch_many(range(12))
    leases = await asyncio.wait_for(asyncio.gather(*tasks), 5)
    assert sorted(lease.data for lease in leases if lease is not None) == list(range(12))
    for lease in leases:
        assert lease is not None
        assert await lease.complete()
    for client in clients:
        await client.close()


async def test_a_wake_up_nobody_wants_is_passed_on(server: Server, prefix: str) -> None:
    async with (
        Client(server.url, prefix=prefix) as gone,
        Client(server.url, prefix=prefix) as stays,
    ):
        first = asyncio.create_task(gone.queue("q").lease(timeout=60))
        queue = stays.queue("q")
        while (await queue.counts()).waiters < 1:
            await asyncio.sleep(0.005)
        second = asyncio.create_task(queue.lease(timeout=60))
        while (await queue.counts()).waiters < 2:
            await asyncio.sleep(0.005)
        first.cancel()
        await asyncio.wait([first])
        await queue.dispatch("for the one who stays")
        lease = await asyncio.wait_for(second, 5)
        assert lease is not None
        assert await lease.complete()


async def test_a_lease_that_is_cancelled_on_its_way_is_given_back(client: Client) -> None:
    """The server had leased the job, but nobody was there any more to take it."""
    queue = client.queue("q")
    await queue.dispatch_many(range(20))
    for _ in range(20):
        task = asyncio.create_task(queue.lease(seconds=600, timeout=0))
        for _ in range(4):  # far enough to have sent it
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and (lease := task.result()):
            await lease.release()
    await client.close()
    assert (await queue.counts()).active == 0
    jobs = [job async for job in queue.jobs()]
    assert [job.data for job in jobs] == list(range(20))
    assert {job.stall_count for job in jobs} == {0}
    await client.close()


async def test_a_fail_job_that_is_requeued_still_knows_its_origin(client: Client) -> None:
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


async def test_a_consumer_with_the_wrong_codec_loses_nothing(client: Client) -> None:
    """It had set thousands of jobs aside, more than the record of broken jobs could hold."""
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


async def test_a_lease_may_be_used_in_a_with_block_of_its_own(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1)
    if lease := await queue.lease(timeout=1):
        async with lease:
            assert lease.data == 1
    assert lease is not None
    assert lease.ended == "finished"


async def test_the_first_word_on_how_a_lease_ended_stands(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1)
    lease = await queue.lease()
    assert await lease.complete()
    assert not await lease.complete()
    assert not await lease.extend(5)
    assert lease.ended == "finished"


async def test_jobs_can_be_taken_away_while_they_are_listed(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch_many(range(250))
    async for job in queue.jobs():
        assert await queue.cancel(job.id)
    assert (await queue.counts()).waiting == 0
    at = time.time() + 3600
    await queue.dispatch_many(Dispatch(n, id=f"{n:03}", run_at=at) for n in range(150))
    for n in range(150, 320):  # all for one instant: the same score, page after page
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


async def test_hundreds_of_calls_at_once_stand_in_line(client: Client, server: Server) -> None:
    """More than a hundred got errors, or waited for seconds: the pool of connections was full."""
    queue = client.queue("q")
    await queue.dispatch(1, id="a")
    jobs = await asyncio.gather(*(queue.get("a") for _ in range(1000)))
    assert all(job is not None and job.id == "a" for job in jobs)
    assert len(server.client().client_list()) < 60


async def test_every_cancellation_of_a_wait_is_heard(client: Client) -> None:
    """Half of them were swallowed, by where in its way through the loop they met the call."""
    queue = client.queue("q")
    await queue.counts()
    for turns in range(40):
        task = asyncio.create_task(queue.lease())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=2)
        assert done, f"cancelled after {turns} turns of the loop, it went on"
        assert task.cancelled()


async def test_who_keeps_the_time_is_replaced_when_he_leaves(server: Server, prefix: str) -> None:
    """The job was late by the safety poll: only the one who had left knew of it."""
    async with Client(server.url, prefix=prefix) as one, Client(server.url, prefix=prefix) as two:
        for leaves in ("in time", "by force"):
            first = asyncio.create_task(one.queue("q").lease(timeout=0.6))
            queue = two.queue("q")
            while (await queue.counts()).waiters < 1:
                await asyncio.sleep(0.005)
            second = asyncio.create_task(queue.lease())
            while (await queue.counts()).waiters < 2:
                await asyncio.sleep(0.005)
            due = time.monotonic() + 1
            await queue.dispatch(leaves, delay=1)
            if leaves == "by force":
                first.cancel()
            await asyncio.wait([first])
            lease = await asyncio.wait_for(second, 5)
            assert 0 <= time.monotonic() - due < 2
            assert await lease.complete()


async def test_a_waiter_hears_of_a_lease_that_runs_out_before_he_looks(
    server: Server, prefix: str
) -> None:
    async with Client(server.url, prefix=prefix) as one, Client(server.url, prefix=prefix) as two:
        queue = one.queue("q")
        waiting = asyncio.create_task(two.queue("q").lease())
        while (await queue.counts()).waiters < 1:
            await asyncio.sleep(0.005)
        await queue.dispatch_many(["first", "second"])
        taken = await waiting
        dropped = await queue.lease(seconds=0.5)
        assert await taken.complete()
        start = time.monotonic()
        again = await asyncio.wait_for(two.queue("q").lease(), 5)
        assert again.data == dropped.data
        assert time.monotonic() - start < 2
        assert await again.complete()


async def test_all_of_many_clients_are_woken_for_as_many_jobs(server: Server, prefix: str) -> None:
    clients = [Client(server.url, prefix=prefix) for _ in range(130)]
    tasks = [asyncio.create_task(one.queue("q").lease()) for one in clients]
    queue = clients[0].queue("q")
    while (await queue.counts()).waiters < 130:
        await asyncio.sleep(0.02)
    await queue.dispatch_many(range(130))
    leases = await asyncio.wait_for(asyncio.gather(*tasks), 6)
    assert sorted(lease.data for lease in leases) == list(range(130))
    for client in clients:
        await client.close()


async def test_a_token_is_not_given_out_again_after_the_server_forgot(kind: ServerKind) -> None:
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


async def test_a_fail_id_that_somebody_took_is_left_to_him(client: Client) -> None:
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


async def test_closing_a_client_ends_those_who_wait(server: Server, prefix: str) -> None:
    client = Client(server.url, prefix=prefix)
    tasks = [asyncio.create_task(client.queue("q").lease()) for _ in range(5)]
    while (await client.queue("q").counts()).waiters < 1:
        await asyncio.sleep(0.005)
    await client.close()
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
    assert all(isinstance(result, QueasyError) for result in results), results
    await client.close()
