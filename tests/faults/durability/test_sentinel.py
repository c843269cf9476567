"""Failovers by Sentinel, under load."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from queasy import Client, SyncClient
from tests.faults.load import load_on
from tests.groups import SentinelGroup, start_sentinel
from tests.servers import ServerKind, wait_until
from tests.worker.fleet import ON_ONE_SERVER, fleet_on

PREFIX = "sentinel"


@pytest.fixture(scope="module")
def group(kind: ServerKind) -> Iterator[SentinelGroup]:
    with start_sentinel(kind) as running:
        yield running


@ON_ONE_SERVER
async def test_a_client_leaves_a_primary_that_froze(group: SentinelGroup, kind: ServerKind) -> None:
    with SyncClient(group.url, prefix=PREFIX, timeout=4) as sync:
        async with Client(group.url, prefix=PREFIX, timeout=4) as client:
            await client.queue("frozen").dispatch(0)
            sync.queue("frozen").dispatch(1)
            old = group.primary
            old.pause()
            try:
                group.wait_until_settled()
                # The call hangs at the frozen primary, and finds the new one before its timeout.
                await client.queue("frozen").dispatch(2)
                sync.queue("frozen").dispatch(3)
                assert sync.queue("frozen").audit() == []
            finally:
                old.resume()
                group.wait_until_settled()


@ON_ONE_SERVER
async def test_client_starts_while_a_primary_is_being_elected(
    group: SentinelGroup, kind: ServerKind
) -> None:
    old = group.kill_primary()
    try:
        async with Client(group.url, prefix=PREFIX) as client:
            await client.queue("early").dispatch(1)
        group.wait_until_settled()
    finally:
        old.start()
        group.wait_until_settled()


def play(group: SentinelGroup, folder: Path, rng: random.Random, strikes: list[str]) -> None:
    with load_on(group.url, f"{PREFIX}-{rng.random()}", folder) as load:
        for strike in strikes:
            with load.struck():
                getattr(group, f"strike_by_{strike}")(rng)
            print(f"  {strike}: goes on after {load.goes_on():.2f} s; {load}")
        runs = load.finish()
        print(f"  {load}")
        load.check(runs, forgets=True)
        load.idle_workers_are_woken()


@ON_ONE_SERVER
def test_nothing_replicated_is_lost_when_the_primary_is_replaced(
    group: SentinelGroup, tmp_path: Path, kind: ServerKind
) -> None:
    seed = random.randrange(2**32)
    print(f"\n  seed {seed}")
    play(group, tmp_path, random.Random(seed), ["failover", "kill"])


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_nothing_replicated_is_lost_in_many_failovers(group: SentinelGroup, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"\n  seed {seed}")
    rng = random.Random(seed)
    play(group, tmp_path, rng, rng.choices(["failover", "kill", "pause"], k=12))


@pytest.mark.chaos
def test_idle_worker_notices_that_its_primary_froze(group: SentinelGroup, tmp_path: Path) -> None:
    """With this number of queues, its safety poll of one queue comes every half a minute."""
    with fleet_on(group.url, f"{PREFIX}-rest", tmp_path) as fleet:
        fleet.serve(processes=1)
        with SyncClient(group.url, prefix=f"{PREFIX}-rest") as client:
            queue = client.queue("waits")
            wait_until(lambda: queue.counts().waiters == 1, "the worker waits")
        old = group.primary
        old.pause()
        try:
            group.wait_until_settled()
            with SyncClient(group.url, prefix=f"{PREFIX}-rest") as client:
                client.queue("waits").dispatch(None, id="a")
                fleet.journal.wait_for("end", id="a", seconds=20)
        finally:
            old.resume()
            group.wait_until_settled()
