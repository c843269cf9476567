"""Queues in a cluster during slot migrations and failovers."""

import asyncio
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.crc import key_slot

from queasy import Client, SyncClient
from queasy.store.library import LIBRARY
from tests.client.waiting import until_waiting
from tests.faults.load import QUEUES, load_on
from tests.groups import Cluster, start_cluster
from tests.servers import ServerKind, wait_until
from tests.worker.fleet import ON_ONE_SERVER
from tests.worker.inline import PATIENCE, until, working

PREFIX = "cluster"


def slot_of(name: str) -> int:
    return key_slot(f"{{{name}}}".encode())


@pytest.fixture(scope="module")
def cluster(kind: ServerKind) -> Iterator[Cluster]:
    with start_cluster(kind, replicas=1, spares=1) as running:
        yield running


async def test_queue_moves_to_a_server_without_the_library(cluster: Cluster) -> None:
    slot, new = slot_of("settler"), cluster.nodes[-1]
    async with Client(cluster.url, prefix=PREFIX) as client:
        queue = client.queue("settler")
        await queue.dispatch(0, id="0")
        await asyncio.to_thread(cluster.migrate_slot, slot, new)
        await queue.dispatch(1, id="1")
        assert new.call("FCALL_RO", f"{LIBRARY}_version", 0)
        assert [job.data async for job in queue.jobs()] == [0, 1]
        assert await queue.audit() == []


def test_call_waits_while_servers_disagree_about_a_slot(cluster: Cluster) -> None:
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
        old.call(
            "CLUSTER", "SETSLOT", slot, "NODE", owner
        )  # in the wrong order: the old owner first
        agree = ("CLUSTER", "SETSLOT", slot, "NODE", owner)
        settled = threading.Timer(0.3, new.call, agree)
        refused = old.call("INFO", "errorstats").get("errorstat_MOVED", {}).get("count", 0)
        settled.start()
        queue.dispatch(1, id="1")
        settled.join()
        cluster.wait_until_settled()
        assert [job.data for job in queue.jobs()] == [0, 1]
        assert old.call("INFO", "errorstats")["errorstat_MOVED"]["count"] > refused


async def test_worker_hears_orders_where_its_slot_has_moved(cluster: Cluster) -> None:
    slot, ran = slot_of("ordered"), asyncio.Event()
    async with (
        Client(cluster.url, prefix=PREFIX) as one,
        Client(cluster.url, prefix=PREFIX) as other,
    ):
        queue = one.queue("ordered")

        @queue.handler
        async def handle() -> None:
            ran.set()

        async with working(one):
            await until(lambda: other.tell_workers("unserve", "ordered"), "the worker listens")
            new = cluster.other_primary(slot, random.Random())
            await asyncio.to_thread(cluster.migrate_slot, slot, new)
            await until(lambda: other.tell_workers("serve", "ordered"), "it listens there")
            await other.queue("ordered").dispatch(1)
            async with asyncio.timeout(PATIENCE):
                await ran.wait()


@ON_ONE_SERVER
async def test_client_survives_the_death_of_the_only_server_in_its_url(
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


async def test_queue_keeps_leases_and_waiters_in_an_atomic_migration(
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
def test_nothing_is_lost_in_many_migrations_and_failovers(
    cluster: Cluster, tmp_path: Path, kind: ServerKind
) -> None:
    seed = random.randrange(2**32)
    print(f"\n  seed {seed}")
    rng = random.Random(seed)
    kinds = ["migration", "failover", "kill", "atomic_migration"]
    if kind is not ServerKind.VALKEY:
        kinds.remove("atomic_migration")
    moves = rng.choices(kinds[:2] + kinds[3:], k=12)
    play(cluster, tmp_path / "moves", rng, moves)  # migrations and orderly failovers lose nothing
    play(cluster, tmp_path / "kills", rng, rng.choices(kinds, k=12))
