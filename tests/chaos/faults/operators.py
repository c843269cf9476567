"""Actions of an operator. They are not faults, but jobs must survive them as well."""

import asyncio
from contextlib import suppress
from itertools import islice
from typing import Literal

from queasy import Client, QueasyError, SyncClient
from tests.chaos.history import Requeued, now
from tests.chaos.system import PREFIX, System
from tests.chaos.workload import QUEUES

# In these queues every id is dispatched once, so that a requeued job cannot be another dispatch.
WITH_FAILURES = ("fast", "work", "plain")


def _client(system: System) -> SyncClient:
    """A client with a short timeout: a server that is down is started only after this returns."""
    return SyncClient(system.topology.url, prefix=PREFIX, timeout=1)


def pause_queue(system: System) -> None:
    """No worker takes jobs of a queue, for a while."""
    name, began = system.random.choice(QUEUES), now()

    def resume() -> None:
        with _client(system) as client:
            client.queue(name).resume()
        system.record("pause queue", at=began, until=now())

    with suppress(QueasyError), _client(system) as client:
        client.queue(name).pause()
    system.retry_later(system.random.uniform(0.2, 3), resume)


def unserve_queue(system: System) -> None:
    """Workers stop serving a queue, finish or release their jobs of it, and serve it again."""
    name, began = system.random.choice(QUEUES), now()
    release = system.random.random() < 0.5

    def serve() -> None:
        asyncio.run(_order(system, "serve", name))
        system.record("unserve queue", at=began, until=now())

    asyncio.run(_order(system, "unserve", name, release=release))
    system.retry_later(system.random.uniform(0.2, 3), serve)


async def _order(
    system: System, do: Literal["serve", "unserve"], queue: str, *, release: bool = False
) -> None:
    async with Client(system.topology.url, prefix=PREFIX) as client:
        await client.tell_workers(do, queue, release=release)


def requeue_failed_jobs(system: System) -> None:
    """Up to five failed jobs of a queue run again."""
    name = system.random.choice(WITH_FAILURES)
    with suppress(QueasyError), _client(system) as client:
        queue = client.queue(name)
        for job in list(islice(queue.jobs("failed"), 5)):
            requested, answer = now(), "unclear"
            with suppress(QueasyError):
                answer = "yes" if queue.requeue(job.id) else "no"
            system.write(Requeued(requested, name, job.id, job.data["n"], answer))
        system.record("requeue failed jobs")
