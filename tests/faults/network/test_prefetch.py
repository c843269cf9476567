"""A worker that prefetches: two of its calls are in flight when the connection is cut."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from queasy import Client, Job, SyncClient
from tests.proxy import Cut, Proxy
from tests.worker.fleet import ON_ONE_SERVER
from tests.worker.inline import PATIENCE, until_empty, working

JOBS = 2000
TROUBLE = (300, 700, 1100)  # a fault when this many jobs have begun

pytestmark = ON_ONE_SERVER


class Flow:
    """A worker on a proxy, with jobs that take no time, and a fault at some of them."""

    def __init__(self, proxy: Proxy, client: Client, trouble: Callable[[], object]) -> None:
        self.queue = client.queue("flow")
        self.runs: Counter[str] = Counter()
        self._trouble = trouble
        self._late = asyncio.Event()

        @self.queue.handler
        async def handle(data: Any, job: Job) -> None:
            self.runs[job.id] += 1
            if len(self.runs) in TROUBLE:
                self._trouble()
            if len(self.runs) > TROUBLE[-1] + 300:
                self._late.set()

    async def is_past_the_trouble(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._late.wait()


@pytest.mark.parametrize("point", Cut)
async def test_every_job_runs_once_when_prefetching_calls_are_cut(
    proxy: Proxy, direct: SyncClient, prefix: str, point: Cut
) -> None:
    """No job stays leased to a worker that never received it."""
    async with Client(proxy.url, prefix=prefix) as client:
        flow = Flow(proxy, client, lambda: proxy.cut("dequeue", point))
        jobs = direct.queue("flow").dispatch_many(range(JOBS))
        async with working(client):
            await flow.is_past_the_trouble()
            await until_empty(flow.queue)
        assert proxy.abreast == 2
        assert proxy.lost == len(TROUBLE)
        assert flow.runs == Counter(job.id for job in jobs)
        assert direct.queue("flow").audit() == []


async def test_prefetch_request_that_arrives_late_takes_nothing(
    proxy: Proxy, direct: SyncClient, prefix: str
) -> None:
    """Bug: its jobs stayed active, leased to a worker that had sent later requests."""
    arrivals: list[Any] = []
    async with Client(proxy.url, prefix=prefix) as client:
        flow = Flow(proxy, client, lambda: arrivals.append(proxy.delay("dequeue")))
        jobs = direct.queue("flow").dispatch_many(range(JOBS))
        async with working(client):
            await flow.is_past_the_trouble()
            assert direct.queue("flow").counts().waiting, "there is something to take"
            for arrive in arrivals:
                await arrive()
            await until_empty(flow.queue)
        assert flow.runs == Counter(job.id for job in jobs)
        assert direct.queue("flow").audit() == []
