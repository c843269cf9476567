"""The heartbeat: the leases that it extends, and those that it ends."""

import asyncio
import time

from queasy.store.commands import QueueCommands
from queasy.store.keys import QueueKeys
from queasy.worker.lease_times import DEFAULT_TIMES
from queasy.worker.liveness.heartbeat import Heartbeat, WorkerLeases
from queasy.worker.liveness.inflight_table import InflightTable
from queasy.worker.plan import Place
from tests.servers import Server

BUMP_EVERY = DEFAULT_TIMES.bump_every
IDLE_LEASE = DEFAULT_TIMES.idle_lease


def test_idle_inline_worker_with_a_blocked_loop_is_not_kept_alive() -> None:
    """Bug: a job handed to it stayed leased while its loop was blocked and others were idle."""
    table, now, queue = InflightTable(2, 1), 1000.0, QueueCommands(QueueKeys("p", "q"))
    pulse = WorkerLeases("c", [queue] * 2, table, lambda: None, lambda *_: None, inline=True)
    table.set_idle_until(0, now + 1)
    table.loop_turned(now - 1)
    assert pulse.lease_due(0, now) == IDLE_LEASE
    table.loop_turned(now - 30)
    assert pulse.lease_due(0, now) is None
    table.add_held(1, 1)  # leases of a job are kept, however long the loop is blocked
    assert pulse.lease_due(0, now) == IDLE_LEASE


async def test_one_heartbeat_returns_all_jobs_of_a_dead_client(server: Server, prefix: str) -> None:
    """Bug: one call returns at most 100 jobs, and a worker without room sends few calls."""
    place = Place(server.url, prefix, 5.0, None)
    commands, store = place.commands("q", fail=False), place.store()
    jobs, table = 1000, InflightTable(1, 1)
    heartbeat = Heartbeat(store)
    heartbeat.add(WorkerLeases("full", [commands], table, lambda: None, lambda *_: None))
    table.set_idle_until(0, time.monotonic())
    try:
        for client, lease in (("full", IDLE_LEASE), ("dead", 0.1)):
            await store.run(commands.register(client, lease))
        await store.run(commands.put([str(n) for n in range(jobs)], [b"1"] * jobs))
        assert (await store.run(commands.dequeue("dead", lease=0.1, limit=jobs))).count == jobs
        await asyncio.sleep(0.2)
        beats = asyncio.create_task(heartbeat.run())
        began = time.monotonic()
        while (await store.run(commands.counts())).active:
            await asyncio.sleep(0.01)
        assert time.monotonic() - began < BUMP_EVERY * jobs / 100 / 2
        beats.cancel()
    finally:
        await store.close()
