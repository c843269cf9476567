"""Waits until clients wait for a job."""

import asyncio

from queasy import Queue


async def until_waiting(queue: Queue, clients: int = 1) -> None:
    """Returns when `clients` are waiters of the queue. The test's timeout is the limit."""
    while (await queue.counts()).waiters < clients:
        await asyncio.sleep(0.005)
