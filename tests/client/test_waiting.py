"""Leases that wait for a job: they do not poll, and every one is woken."""

import asyncio
import time

from queasy import Client, QueasyError
from tests.client.waiting import until_waiting
from tests.servers import Server


async def test_a_lease_waits_for_a_job_without_polling(client: Client, server: Server) -> None:
    queue = client.queue("q")
    await queue.counts()
    waiting = asyncio.create_task(queue.lease(timeout=30))
    await until_waiting(queue)
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
    await until_waiting(queue, 5)
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
    await until_waiting(queue)
    start = time.monotonic()
    await queue.dispatch(2, delay=0.3)  # due before the job it waits for
    lease = await asyncio.wait_for(waiting, 5)
    assert lease is not None
    assert lease.data == 2
    assert time.monotonic() - start >= 0.3
    await lease.complete()
    await queue.cancel((await anext(queue.jobs())).id)


async def test_waiting_lease_takes_a_job_with_an_expired_lease(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1, id="a")
    stale = await queue.lease(seconds=0.2, timeout=0)
    assert stale is not None
    fresh = await queue.lease(seconds=30, timeout=10)
    assert fresh is not None
    assert (fresh.job.expiry_count, fresh.job.stall_count) == (1, 0)
    assert fresh.token > stale.token
    assert not await stale.complete()
    assert not await stale.extend(10)
    assert not await stale.retry()
    assert stale.ended == "lost"
    assert await fresh.complete()


async def test_waiting_leases_of_one_client_are_all_woken(client: Client) -> None:
    """Bug: when one of them got a job, the whole client was removed from the waiters."""
    queue = client.queue("q")
    waiting = [asyncio.create_task(queue.lease(timeout=30)) for _ in range(5)]
    for n in range(5):
        await until_waiting(queue)
        await queue.dispatch(n)
        done, _ = await asyncio.wait(waiting, timeout=5, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        lease = done.pop().result()
        assert lease is not None
        assert lease.data == n
        assert await lease.complete()
        waiting = [task for task in waiting if not task.done()]


async def test_burst_of_jobs_reaches_every_waiting_lease(server: Server, prefix: str) -> None:
    clients = [Client(server.url, prefix=prefix) for _ in range(3)]
    tasks = [asyncio.create_task(c.queue("q").lease(timeout=30)) for c in clients for _ in range(4)]
    queue = clients[0].queue("q")
    await until_waiting(queue, 3)
    await queue.dispatch_many(range(12))
    leases = await asyncio.wait_for(asyncio.gather(*tasks), 5)
    assert sorted(lease.data for lease in leases if lease is not None) == list(range(12))
    for lease in leases:
        assert lease is not None
        assert await lease.complete()
    for client in clients:
        await client.close()


async def test_unused_wake_up_is_forwarded_to_the_next_waiter(server: Server, prefix: str) -> None:
    async with (
        Client(server.url, prefix=prefix) as gone,
        Client(server.url, prefix=prefix) as stays,
    ):
        first = asyncio.create_task(gone.queue("q").lease(timeout=60))
        queue = stays.queue("q")
        await until_waiting(queue)
        second = asyncio.create_task(queue.lease(timeout=60))
        await until_waiting(queue, 2)
        first.cancel()
        await asyncio.wait([first])
        await queue.dispatch("for the waiter that stays")
        lease = await asyncio.wait_for(second, 5)
        assert lease is not None
        assert await lease.complete()


async def test_lease_cancelled_in_flight_is_released(client: Client) -> None:
    """Bug: the server had leased the job to a caller that no longer waited."""
    queue = client.queue("q")
    await queue.dispatch_many(range(20))
    for _ in range(20):
        task = asyncio.create_task(queue.lease(seconds=600, timeout=0))
        for _ in range(4):  # enough passes of the loop to send it
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


async def test_thousand_concurrent_calls_share_a_few_connections(
    client: Client, server: Server
) -> None:
    """Bug: with more than a hundred calls the pool was full: errors, or seconds of waiting."""
    queue = client.queue("q")
    await queue.dispatch(1, id="a")
    jobs = await asyncio.gather(*(queue.get("a") for _ in range(1000)))
    assert all(job is not None and job.id == "a" for job in jobs)
    assert len(server.client().client_list()) < 60


async def test_cancelled_wait_ends_wherever_it_is_cancelled(client: Client) -> None:
    """Bug: half of the cancellations were lost, depending on how far the call had come."""
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


async def test_another_waiter_takes_over_timekeeping_when_one_leaves(
    server: Server, prefix: str
) -> None:
    """Bug: only the waiter that left knew when the job was due: it ran at the safety poll."""
    async with Client(server.url, prefix=prefix) as one, Client(server.url, prefix=prefix) as two:
        for leaves in ("in time", "by force"):
            first = asyncio.create_task(one.queue("q").lease(timeout=0.6))
            queue = two.queue("q")
            await until_waiting(queue)
            second = asyncio.create_task(queue.lease())
            await until_waiting(queue, 2)
            due = time.monotonic() + 1
            await queue.dispatch(leaves, delay=1)
            if leaves == "by force":
                first.cancel()
            await asyncio.wait([first])
            lease = await asyncio.wait_for(second, 5)
            assert time.monotonic() >= due
            assert await lease.complete()


async def test_waiter_is_woken_for_a_lease_that_expires_before_it_polls(
    server: Server, prefix: str
) -> None:
    async with Client(server.url, prefix=prefix) as one, Client(server.url, prefix=prefix) as two:
        queue = one.queue("q")
        waiting = asyncio.create_task(two.queue("q").lease())
        await until_waiting(queue)
        await queue.dispatch_many(["first", "second"])
        taken = await waiting
        dropped = await queue.lease(seconds=0.5)
        assert await taken.complete()
        again = await asyncio.wait_for(two.queue("q").lease(), 5)
        assert again.data == dropped.data
        assert await again.complete()


async def test_eviction_of_a_client_wakes_a_lease_that_waits(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1, id="a")
    evicted = await queue.lease(seconds=600, timeout=0)
    waiting = asyncio.create_task(queue.lease(timeout=60))
    await until_waiting(queue)
    assert await queue.evict(evicted.job.client) == 1
    lease = await asyncio.wait_for(waiting, 5)  # it polls by itself later than that
    assert lease.job.id == "a"
    assert await lease.complete()


async def test_many_clients_are_all_woken_for_as_many_jobs(server: Server, prefix: str) -> None:
    clients = [Client(server.url, prefix=prefix) for _ in range(130)]
    tasks = [asyncio.create_task(one.queue("q").lease()) for one in clients]
    queue = clients[0].queue("q")
    await until_waiting(queue, 130)
    await queue.dispatch_many(range(130))
    leases = await asyncio.wait_for(asyncio.gather(*tasks), 6)
    assert sorted(lease.data for lease in leases) == list(range(130))
    for client in clients:
        await client.close()


async def test_closing_a_client_ends_its_waiting_leases(server: Server, prefix: str) -> None:
    client = Client(server.url, prefix=prefix)
    tasks = [asyncio.create_task(client.queue("q").lease()) for _ in range(5)]
    await until_waiting(client.queue("q"))
    await client.close()
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
    assert all(isinstance(result, QueasyError) for result in results), results
    await client.close()
