"""A worker inside the test's own event loop, and ways to wait for what it does."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest

from queasy import (
    Client,
    Job,
    Queue,
)
from queasy.client import Running

PATIENCE = 20.0  # only a test that fails waits that long
FAR = 3600.0


@contextlib.asynccontextmanager
async def working(client: Client, **options: Any) -> AsyncGenerator[Running]:
    worker = client.worker(signals=False, **options)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
        assert not task.done()
    finally:
        worker.stop()
        await task


async def until(condition: Callable[[], Awaitable[object]], what: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.005)


async def until_empty(queue: Queue) -> None:
    async def empty() -> bool:
        counts = await queue.counts()
        return not (counts.due or counts.scheduled or counts.active)

    await until(empty, f"{queue.name} is empty")


async def until_state(queue: Queue, id_: str, state: str) -> Job:
    found: list[Job | None] = [None]

    async def there() -> bool:
        found[0] = await queue.get(id_)
        return found[0] is not None and found[0].state == state

    await until(there, f"{id_} is {state}")
    assert found[0] is not None
    return found[0]


class Seen:
    """Records the jobs of a handler in order, and waits for them."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.data: list[Any] = []
        self._more = asyncio.Event()

    def add(self, data: Any, job: Job) -> None:
        self.jobs.append(job)
        self.data.append(data)
        self._more.set()

    async def runs(self, count: int) -> list[Job]:
        async with asyncio.timeout(PATIENCE):
            while len(self.jobs) < count:
                self._more.clear()
                await self._more.wait()
        return self.jobs


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def emails(client: Client) -> Queue:
    return client.queue("emails")
