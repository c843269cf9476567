"""Clients of Sentinel and of a cluster, through failovers and migrations."""

import asyncio
from collections.abc import Iterator

import pytest
from redis.crc import key_slot

from queasy import Client, Durability, Lease, NotDurable, Queue, Replicated, SyncClient
from tests.client.waiting import until_waiting
from tests.groups import Cluster, SentinelGroup, start_cluster, start_sentinel
from tests.servers import ServerKind, start_replica, start_server


@pytest.fixture(scope="module")
def cluster(kind: ServerKind) -> Iterator[Cluster]:
    with start_cluster(kind, primaries=3, replicas=1) as running:
        yield running


@pytest.fixture(scope="module")
def sentinels(kind: ServerKind) -> Iterator[SentinelGroup]:
    with start_sentinel(kind, sentinels=1) as running:
        yield running


async def live(queue: Queue) -> None:
    """Uses most methods of a queue, and checks their results."""
    await queue.configure(fail_handler=True)
    await queue.dispatch_many(range(20))
    for n in range(20):
        lease = await queue.lease(timeout=10)
        assert lease is not None
        assert lease.data == n
        assert await lease.complete()
    await queue.dispatch("doomed")
    doomed = await queue.lease(timeout=10)
    assert doomed is not None
    assert await doomed.fail()
    async with queue.fail_queue.lease(timeout=10) as failure:
        assert failure is not None
    assert (await queue.counts()).failed == 1
    assert await queue.trim(0) == 1
    assert await queue.audit() == []


async def woken(queue: Queue) -> Lease:
    """A lease that waited for its job."""
    waiting = asyncio.create_task(queue.lease(timeout=20))
    await until_waiting(queue)
    await queue.dispatch("wake up")
    lease = await asyncio.wait_for(waiting, 10)
    assert lease is not None
    return lease


async def test_queues_live_on_every_node_of_a_cluster(cluster: Cluster) -> None:
    async with Client(cluster.url) as client:
        names = [f"q{n}" for n in range(12)]
        nodes = {cluster.primary_of(key_slot(f"{{{name}}}".encode())).pid for name in names}
        assert len(nodes) == 3
        for name in names:
            await live(client.queue(name))
            assert await (await woken(client.queue(name))).complete()


def test_sync_client_uses_a_cluster(cluster: Cluster) -> None:
    with SyncClient(cluster.url) as client:
        for n in range(6):
            queue = client.queue(f"s{n}")
            queue.dispatch_many(range(10))
            for expected in range(10):
                with queue.lease(timeout=10) as lease:  # type: ignore[union-attr]
                    assert lease.data == expected


async def test_queue_keeps_its_jobs_when_its_slot_moves(cluster: Cluster) -> None:
    async with Client(cluster.url) as client:
        queue = client.queue("moving")
        await queue.dispatch(0, id="0")
        slot = key_slot(b"{moving}")
        old = cluster.primary_of(slot)
        new = next(node for node in cluster.running if node is not old and not is_replica(node))
        stop = asyncio.Event()
        count = 1

        async def produce() -> None:
            nonlocal count
            while not stop.is_set():
                await queue.dispatch(count, id=str(count))
                count += 1

        task = asyncio.create_task(produce())
        await asyncio.to_thread(cluster.migrate_slot, slot, new)
        seen = count
        while count < seen + 20:
            await asyncio.sleep(0.01)
        stop.set()
        await task
        assert await queue.audit() == []
        assert [job.data async for job in queue.jobs()] == list(range(count))
        assert await (await woken_after(queue, count)).complete()


async def woken_after(queue: Queue, jobs: int) -> Lease:
    for _ in range(jobs):
        async with queue.lease(timeout=10):
            pass
    return await woken(queue)


def is_replica(node: object) -> bool:
    return node.client().info("replication")["role"] == "slave"  # type: ignore[attr-defined]


async def test_cluster_failover_loses_no_job(cluster: Cluster) -> None:
    async with Client(cluster.url) as client:
        queue = client.queue("failing-over")
        await queue.dispatch_many(range(10))
        primary = cluster.primary_of(key_slot(b"{failing-over}"))
        await asyncio.to_thread(cluster.failover, primary)
        for n in range(10):
            async with queue.lease(timeout=10) as lease:
                assert lease is not None
                assert lease.data == n
        assert await (await woken(queue)).complete()


async def test_client_finds_the_primary_through_sentinel(sentinels: SentinelGroup) -> None:
    async with Client(sentinels.url) as client:
        await live(client.queue("q"))
        assert await (await woken(client.queue("q"))).complete()


async def test_sentinel_failover_keeps_replicated_jobs(sentinels: SentinelGroup) -> None:
    async with Client(sentinels.url, timeout=30) as client:
        queue = client.queue("over")
        await queue.dispatch(1, durability="replicated")
        before = sentinels.primary
        await asyncio.to_thread(sentinels.failover)
        assert sentinels.primary is not before
        await queue.dispatch(2)
        for n in (1, 2):
            async with queue.lease(timeout=10) as lease:
                assert lease is not None
                assert lease.data == n
        assert await (await woken(queue)).complete()
        assert await queue.audit() == []


def test_sync_client_survives_a_sentinel_failover(sentinels: SentinelGroup) -> None:
    with SyncClient(sentinels.url, timeout=30) as client:
        queue = client.queue("sync-over")
        queue.dispatch(1, durability="replicated")
        sentinels.failover()
        with queue.lease(timeout=10) as lease:  # type: ignore[union-attr]
            assert lease.data == 1


async def test_replicated_dispatch_waits_for_the_replica(kind: ServerKind) -> None:
    with start_server(kind) as primary, start_replica(primary):
        async with Client(primary.url) as client:
            queue = client.queue("q")
            assert (await queue.dispatch(1, durability="replicated")).status == "created"


async def test_dispatch_waits_for_as_many_replicas_as_it_asks_for(kind: ServerKind) -> None:
    with (
        start_server(kind) as primary,
        start_replica(primary),
        start_replica(primary) as second,
        SyncClient(primary.url, timeout=1) as sync,
    ):
        async with Client(primary.url, timeout=1) as client:
            queue, sync_queue = client.queue("q"), sync.queue("q")

            async def dispatch_in_every_way(durability: Durability) -> None:
                assert (await queue.dispatch(1, durability=durability)).status == "created"
                assert len(await queue.dispatch_many([1, 2], durability=durability)) == 2
                assert sync_queue.dispatch(1, durability=durability).status == "created"
                assert len(sync_queue.dispatch_many([1, 2], durability=durability)) == 2

            await dispatch_in_every_way(Replicated(2))
            second.pause()
            try:
                await dispatch_in_every_way(Replicated())
                known = (
                    r"^dispatch of queue 'q' was accepted, but 1 of 2 replicas confirmed it "
                    r"within 0\.4 s\. It runs, unless a replica that lacks it"
                )
                with pytest.raises(NotDurable, match=known):
                    await queue.dispatch(1, durability=Replicated(2))
                with pytest.raises(NotDurable, match=known):
                    await queue.dispatch_many([1], durability=Replicated(2))
                with pytest.raises(NotDurable, match=known):
                    sync_queue.dispatch(1, durability=Replicated(2))
                with pytest.raises(NotDurable, match=known):
                    sync_queue.dispatch_many([1], durability=Replicated(2))
            finally:
                second.resume()
            assert sync_queue.counts().waiting == 16  # all were accepted
