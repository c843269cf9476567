"""A client across event loops: one after another, closed, or several at once."""

import asyncio
import gc
import threading
import warnings

import pytest

from queasy import Client, QueasyError
from tests.servers import Server


def test_client_works_in_one_event_loop_after_another(server: Server, prefix: str) -> None:
    client = Client(server.url, prefix=prefix)

    async def work(n: int) -> None:
        await client.queue("q").dispatch(n)

    async def end() -> None:
        assert (await client.queue("q").counts()).waiting == 2
        await client.close()

    asyncio.run(work(1))
    with warnings.catch_warnings():
        # The connection of the first loop was never closed: Python warns of it, rightly.
        warnings.simplefilter("ignore", ResourceWarning)
        asyncio.run(work(2))
        asyncio.run(end())
        gc.collect()


def test_closed_client_serves_concurrent_calls_in_another_loop(server: Server, prefix: str) -> None:
    client = Client(server.url, prefix=prefix)

    async def work() -> int:
        queue = client.queue("q")
        await asyncio.gather(*(queue.dispatch(n) for n in range(5)))
        waiting = (await queue.counts()).waiting
        await client.close()
        return waiting

    assert [asyncio.run(work()) for _ in range(3)] == [5, 10, 15]


def test_loop_closed_with_pending_dispatches_does_not_break_the_client(
    server: Server, prefix: str
) -> None:
    async def leave() -> None:
        tasks = [asyncio.create_task(_dispatch(client)) for _ in range(5)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)

    async def end() -> None:
        await asyncio.gather(*(_dispatch(client) for _ in range(5)))
        assert 5 <= (await client.queue("q").counts()).waiting <= 10
        await client.close()

    client = Client(server.url, prefix=prefix)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the connection was never closed
        asyncio.run(leave())
        gc.collect()
        asyncio.run(end())
        gc.collect()


async def test_client_used_in_two_loops_at_once_raises(client: Client) -> None:
    await client.queue("q").dispatch(1)
    problems: list[BaseException] = []

    def elsewhere() -> None:
        try:
            asyncio.run(_dispatch(client))
        except QueasyError as problem:
            problems.append(problem)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    await asyncio.to_thread(thread.join)
    (problem,) = problems
    assert "another event loop" in str(problem)


async def _dispatch(client: Client) -> None:
    await client.queue("q").dispatch(2)


async def test_a_closed_client_may_be_used_again(client: Client) -> None:
    await client.queue("q").dispatch(1)
    await client.close()
    await client.queue("q").dispatch(2)
    assert (await client.queue("q").counts()).waiting == 2


def test_lease_that_is_never_awaited_warns(server: Server) -> None:
    client = Client(server.url)
    with pytest.warns(RuntimeWarning, match="never awaited"):
        client.queue("q").lease()
