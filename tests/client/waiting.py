"""Waiting for others to wait."""

import asyncio

from queasy import Queue


async def until_waiting(queue: Queue, clients: int = 1) -> None:
    """Returns when so many clients wait for a job of the queue; the test's timeout bounds it."""
    while (await queue.counts()).waiters < clients:
        await asyncio.sleep(0.005)
