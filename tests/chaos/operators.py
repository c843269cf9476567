"""What operators do to a run that works: no fault, but nothing may be lost by it either."""

import asyncio
from contextlib import suppress
from itertools import islice
from typing import Literal

from queasy import Client, QueasyError, SyncClient
from tests.chaos.history import Requeued, now
from tests.chaos.load import QUEUES
from tests.chaos.world import PREFIX, World

# Each id of these is dispatched once, so that what is requeued is nobody else's by then.
WITH_FAILURES = ("fast", "work", "plain")


def _client(world: World) -> SyncClient:
    """One that gives up soon: a server that is away comes back only when this returns."""
    return SyncClient(world.stage.url, prefix=PREFIX, timeout=1)


def pause_queue(world: World) -> None:
    """Nobody takes anything of it, for a while."""
    name, begun = world.random.choice(QUEUES), now()

    def resume() -> None:
        with _client(world) as client:
            client.queue(name).resume()
        world.note("pause queue", at=begun, until=now())

    with suppress(QueasyError), _client(world) as client:
        client.queue(name).pause()
    world.insist(world.random.uniform(0.2, 3), resume)


def unserve_queue(world: World) -> None:
    """Workers leave it, with or without what they run of it, and come back to it."""
    name, begun = world.random.choice(QUEUES), now()
    release = world.random.random() < 0.5

    def serve() -> None:
        asyncio.run(_tell(world, "serve", name))
        world.note("unserve queue", at=begun, until=now())

    asyncio.run(_tell(world, "unserve", name, release=release))
    world.insist(world.random.uniform(0.2, 3), serve)


async def _tell(
    world: World, do: Literal["serve", "unserve"], queue: str, *, release: bool = False
) -> None:
    async with Client(world.stage.url, prefix=PREFIX) as client:
        await client.tell_workers(do, queue, release=release)


def requeue_failed(world: World) -> None:
    """Some of those that were given up have another chance."""
    name = world.random.choice(WITH_FAILURES)
    with suppress(QueasyError), _client(world) as client:
        queue = client.queue(name)
        for job in list(islice(queue.jobs("failed"), 5)):
            asked, word = now(), "unclear"
            with suppress(QueasyError):
                word = "yes" if queue.requeue(job.id) else "no"
            world.pen(Requeued(asked, name, job.id, job.data["n"], word))
        world.note("requeue failed")
