"""Queues in a cluster whose slots move and whose servers are replaced."""

import asyncio
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.crc import key_slot

from queasy import Client, SyncClient
from queasy.store.library import LIBRARY
from tests.e2e.waiting import until_waiting
from tests.faults.load import QUEUES, load_on
from tests.groups import Cluster, start_cluster
from tests.servers import ServerKind, wait_until
from tests.worker.fleet import ON_ONE_SERVER

PREFIX = "cluster"


def slot_of(name: str) -> int:
    return key_slot(f"{{{name}}}".encode())


@pytest.fixture(scope="module")
def cluster(kind: ServerKind) -> Iterator[Cluster]:
    with start_cluster(kind, replicas=1, spares=1) as running:
        yield running


async def test_a_queue_moves_to_a_server_that_has_no_library_yet(cluster: Cluster) -> None:
    slot, new = slot_of("settler"), cluster.nodes[-1]
    async with Client(cluster.url, prefix=PREFIX) as client:
        queue = client.queue("settler")
        await queue.dispatch(0, id="0")
        await asyncio.to_thread(cluster.migrate_slot, slot, new)
        await queue.dispatch(1, id="1")
        assert new.call("FCALL_RO", f"{LIBRARY}_version", 0)
        assert [job.data async for job in queue.jobs()] == [0, 1]
        assert await queue.audit() == []


def test_servers_that_disagree_who_has_a_slot_are_given_time(cluster: Cluster) -> None:
    slot = slot_of("disputed")
    with SyncClient(cluster.url, prefix=PREFIX) as client:
        queue = client.queue("disputed")
        queue.dispatch(0, id="0")
        old = cluster.primary_of(slot)
        new = cluster.other_primary(slot, random.Random())
        cluster.begin_migration(slot, new)
        while cluster.migrate_keys(slot, new):
            pass
        owner = new.call("CLUSTER", "MYID")
        old.call("CLUSTER", "SETSLOT", slot, "NODE", owner)  # the wrong one first
        agree = ("CLUSTER", "SETSLOT", slot, "NODE", owner)
        settled = threading.Timer(0.3, new.call, agree)
        refused = old.call("INFO", "errorstats").get("errorstat_MOVED", {}).get("count", 0)
        settled.start()
        queue.dispatch(1, id="1")
        settled.join()
        cluster.wait_until_settled()
        assert [job.data for job in queue.jobs()] == [0, 1]
        assert old.call("INFO", "errorstats")["errorstat_MOVED"]["count"] > refused


async def test_a_worker_is_ordered_about_where_its_slot_is_now(cluster: Cluster) -> None:
    channel = "order:{ordered}"
    slot = key_slot(channel.encode())
    heard: asyncio.Queue[str] = asyncio.Queue()
    async with Client(cluster.url) as one, Client(cluster.url) as other:
        listener = one._store.listener
        listener.add_callback(channel, heard.put_nowait)
        await one.connect()
        await other.connect()
        assert await listener.subscribe(channel) is not None
        assert await other._store.listener.publish(channel, "first") == 1
        new = cluster.other_primary(slot, random.Random())
        await asyncio.to_thread(cluster.migrate_slot, slot, new)
        assert [await heard.get(), await heard.get()] == ["first", ""]
        assert await listener.subscribe(channel) is not None  # the first time it tries
        assert await other._store.listener.publish(channel, "second") == 1
        assert await heard.get() == "second"


@ON_ONE_SERVER
async def test_a_client_outlives_the_only_server_it_was_told_of(
    cluster: Cluster, kind: ServerKind
) -> None:
    named = cluster.primary_of(0)
    async with Client(f"redis+cluster://{named.address}", prefix=PREFIX) as client:
        names = [f"q{n}" for n in range(12)]
        queues = [client.queue(name) for name in names]
        for queue in queues:
            await queue.dispatch(0)
        named.kill()
        try:
            await asyncio.to_thread(wait_until, lambda: cluster.serves(0), "a replica serves")
            for queue in queues:
                await queue.dispatch(1)
        finally:
            named.start()
            cluster.wait_until_settled()


async def test_a_queue_that_moves_in_one_step_takes_leases_and_those_who_wait_along(
    cluster: Cluster, kind: ServerKind
) -> None:
    if kind is not ServerKind.VALKEY:
        pytest.skip("atomic slot migration is in Valkey 9 only: NOT TESTED on redis")
    slot = slot_of("atomic")
    async with Client(cluster.url, prefix=PREFIX) as client:
        queue = client.queue("atomic")
        await queue.dispatch("held", id="held")
        held = await queue.lease(60)
        waiting = asyncio.create_task(queue.lease(60, timeout=30))
        await until_waiting(queue)
        for _ in range(2):
            to = cluster.other_primary(slot, random.Random())
            await asyncio.to_thread(cluster.migrate_atomically, slot, to)
            assert not waiting.done()
        await until_waiting(queue)
        await queue.dispatch("new")
        lease = await waiting
        assert lease is not None
        assert lease.data == "new"
        assert await held.extend(60)
        assert await held.complete()
        assert await lease.complete()
        assert await queue.audit() == []


def play(cluster: Cluster, folder: Path, rng: random.Random, strikes: list[str]) -> None:
    folder.mkdir(exist_ok=True)
    slots = [slot_of(name) for name in QUEUES]
    with load_on(cluster.url, f"{PREFIX}-{rng.random()}", folder) as load:
        for strike in strikes:
            with load.struck():
                getattr(cluster, f"strike_by_{strike}")(rng.choice(slots), rng)
            print(f"  {strike}: goes on after {load.goes_on():.2f} s; {load}")
        runs = load.finish()
        print(f"  {load}")
        load.check(runs, forgets="kill" in strikes)
        load.idle_workers_are_woken()


@ON_ONE_SERVER
def test_nothing_is_lost_while_slots_move_and_servers_are_replaced(
    cluster: Cluster, tmp_path: Path, kind: ServerKind
) -> None:
    seed = random.randrange(2**32)
    print(f"\n  seed {seed}")
    moves = ["migration", "failover", "atomic_migration", "kill"]
    if kind is not ServerKind.VALKEY:
        moves.remove("atomic_migration")
    play(cluster, tmp_path, random.Random(seed), moves)


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_slots_move_and_servers_are_replaced_again_and_again(
    cluster: Cluster, tmp_path: Path, kind: ServerKind
) -> None:
    seed = random.randrange(2**32)
    print(f"\n  seed {seed}")
    rng = random.Random(seed)
    kinds = ["migration", "failover", "kill", "atomic_migration"]
    if kind is not ServerKind.VALKEY:
        kinds.remove("atomic_migration")
    moves = rng.choices(kinds[:2] + kinds[3:], k=12)
    play(cluster, tmp_path / "moves", rng, moves)  # of which nothing may be lost
    play(cluster, tmp_path / "kills", rng, rng.choices(kinds, k=12))
