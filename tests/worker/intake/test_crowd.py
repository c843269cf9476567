"""A crowd of idle workers: how many calls they make for one event. See also `benchmarks/crowd.py`.

The tests count calls of server functions, which no clock decides.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

import pytest
import redis

from queasy import Client, Queue
from tests.servers import Server
from tests.worker.fleet import ON_ONE_SERVER
from tests.worker.inline import until, until_empty, working

pytestmark = ON_ONE_SERVER

WORKERS = 12
QUEUES = ("q0", "q1", "q2", "q3")


@pytest.fixture
def connection(server: Server) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as connected:
        yield connected


@contextlib.asynccontextmanager
async def crowd(server: Server, prefix: str) -> AsyncGenerator[None]:
    """Workers with connections of their own, which all wait for jobs."""

    async def handle(data: None) -> None:
        pass

    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(Client(server.url, prefix=prefix))
            for _ in range(WORKERS)
        ]
        for client in clients:
            for name in QUEUES:
                client.queue(name).handler(handle)
            await stack.enter_async_context(working(client))
        await all_wait(clients[0])
        yield


async def all_wait(client: Client) -> None:
    async def are_waiters() -> bool:
        counts = [await client.queue(name).counts() for name in QUEUES]
        return all(count.waiters == WORKERS for count in counts)

    await until(are_waiters, "all are waiters")


class Calls:
    """Counts the calls of functions that write: those of workers, not those of `counts`."""

    def __init__(self, connection: redis.Redis) -> None:
        self._connection = connection
        self._before = self._total()

    def _total(self) -> int:
        stats = self._connection.info("commandstats")
        return stats.get("cmdstat_fcall", {}).get("calls", 0)

    @property
    def made(self) -> int:
        return self._total() - self._before


async def calls_until_quiet(connection: redis.Redis, event: Callable[[], Awaitable[object]]) -> int:
    """How many calls an event causes. The crowd is quiet if no call came for half a second."""
    calls = Calls(connection)
    await event()
    last = -1
    while calls.made != last:
        last = calls.made
        await asyncio.sleep(0.5)
    return last


async def test_two_workers_of_a_crowd_poll_when_a_job_comes_due(
    server: Server, prefix: str, client: Client, connection: redis.Redis
) -> None:
    """Bug: each worker that polled before the job was due polled again when it was."""
    queue = client.queue("q0")
    await queue.dispatch(None, delay=4)
    async with crowd(server, prefix):
        calls = await calls_until_quiet(connection, lambda: until_empty(queue))
    assert calls <= 4, "two polls, one of which takes the job, its outcome, and perhaps one more"


async def test_scheduled_dispatch_to_a_crowd_costs_two_calls_beyond_the_work(
    server: Server, prefix: str, client: Client, connection: redis.Redis
) -> None:
    queue = client.queue("q0")

    async def dispatch() -> None:
        for _ in range(5):
            await queue.dispatch(None, delay=0.2)
            await until_empty(queue)

    async with crowd(server, prefix):
        calls = await calls_until_quiet(connection, dispatch)
    assert calls <= 5 * (3 + 2)


async def test_dispatch_into_a_paused_queue_makes_no_worker_poll(
    server: Server, prefix: str, client: Client, connection: redis.Redis
) -> None:
    """Bug: each dispatch woke a worker, which found the queue paused."""
    queue = client.queue("q0")
    async with crowd(server, prefix):
        await queue.pause()
        calls = await calls_until_quiet(connection, lambda: _dispatch_many(queue, 8))
        assert calls == 8
        await queue.resume()
        await until_empty(queue)


async def test_resume_wakes_no_more_workers_than_there_are_jobs(
    server: Server, prefix: str, client: Client, connection: redis.Redis
) -> None:
    """Bug: it woke all of them."""
    queue, jobs = client.queue("q0"), 3
    async with crowd(server, prefix):
        await queue.pause()
        await _dispatch_many(queue, jobs)
        calls = await calls_until_quiet(connection, queue.resume)
    assert calls <= 1 + 3 * jobs < WORKERS


async def test_crowd_that_lost_its_connections_polls_each_queue_once(
    server: Server, prefix: str, client: Client, connection: redis.Redis
) -> None:
    """Bug: each worker made four to five calls for each queue, all at the same moment."""
    await client.queue("q0").counts()
    async with crowd(server, prefix):
        first = list[int]()

        async def cut() -> None:
            calls = Calls(connection)
            connection.client_kill_filter(_type="pubsub")
            connection.client_kill_filter(_type="normal", skipme=True)
            await asyncio.sleep(0.05)
            first.append(calls.made)
            await all_wait(client)

        calls = await calls_until_quiet(connection, cut)
        await all_wait(client)
    pairs = WORKERS * len(QUEUES)
    assert pairs <= calls < 1.5 * pairs
    assert first[0] < pairs / 2, "they come back one after the other"


async def test_idle_workers_of_a_crowd_poll_less_often_than_each_would_alone(
    server: Server, prefix: str, connection: redis.Redis
) -> None:
    """Bug: each worker polled each queue every 8 seconds, however many there were."""
    async with crowd(server, prefix):
        calls = Calls(connection)
        await asyncio.sleep(2.5 * 8)
        assert calls.made < 1.5 * WORKERS * len(QUEUES), "alone, each polls twice in that time"


async def _dispatch_many(queue: Queue, count: int) -> None:
    for _ in range(count):
        await queue.dispatch(None)
