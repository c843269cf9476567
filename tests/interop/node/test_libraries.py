"""Which library is on the server: ours, that of Queasy for Node, or a newer one."""

import asyncio
from collections.abc import Iterator

import pytest
import redis

from queasy import Client, SyncClient
from queasy.interop import node
from queasy.interop.node_library import NODE
from tests.groups import start_cluster
from tests.interop.node.harness import NodeQueue
from tests.interop.node.stub import stub_source
from tests.servers import Server, ServerKind


@pytest.fixture
def admin(own_server: Server) -> Iterator[redis.Redis]:
    with own_server.client() as connection:
        yield connection


def is_theirs(admin: redis.Redis) -> bool:
    """Whether the library on the server is the stub: it replies OK where ours replies an id."""
    queue = NodeQueue(admin, "which")
    reply = queue.dispatch()
    queue.clear()
    return reply == "OK"


async def run_one(queue: node.Queue[Client], id_: str) -> None:
    """One job through every function."""
    await queue.dispatch([id_], id=id_)
    (job,) = await queue.dequeue(10)
    assert (job.id, job.data, job.retry_count) == (id_, [id_], 0)
    assert await queue.bump(job)
    assert await queue.retry(job, delay=0)
    (job,) = await queue.dequeue(10)
    assert job.retry_count == 1
    assert await queue.counts() == (0, 0, 1)
    assert await queue.fail(job, "no")
    (failed,) = await queue.fail_queue.dequeue()
    assert failed.data == [id_, [id_], {"message": "no"}]
    assert await queue.fail_queue.finish(failed)
    await queue.dispatch(1, id=id_)
    assert await queue.cancel(id_)
    assert not await queue.cancel(id_)


async def test_ours_is_loaded_where_there_is_none(own_server: Server, admin: redis.Redis) -> None:
    async with Client(own_server.url) as client:
        await run_one(node.Queue(client, "q"), "a")
    assert not is_theirs(admin)


async def test_theirs_is_used_and_left_alone(own_server: Server, admin: redis.Redis) -> None:
    admin.function_load(stub_source())
    async with Client(own_server.url) as client:
        await run_one(node.Queue(client, "q"), "a")
    with SyncClient(own_server.url) as client:
        assert node.Queue(client, "q").dequeue() == []
    assert is_theirs(admin)


async def test_newer_one_is_used_and_left_alone(own_server: Server, admin: redis.Redis) -> None:
    admin.function_load(stub_source(version=2))
    async with Client(own_server.url) as client:
        await run_one(node.Queue(client, "q"), "a")
    assert admin.fcall("queasy_version", 0) == 2


async def test_theirs_may_replace_ours_while_we_work_and_the_reverse(
    own_server: Server, admin: redis.Redis
) -> None:
    async with Client(own_server.url) as client:
        queue = node.Queue(client, "q")
        for source in (stub_source(), NODE.source(), stub_source()):
            await run_one(queue, "a")
            await queue.dispatch(1, id="held")
            (job,) = await queue.dequeue()
            await queue.dispatch(2, id="held", run_at=1_700_000_000)  # blocked
            await queue.dispatch(3, id="waits", run_at=1_700_000_000)
            admin.function_load(source, replace=True)
            assert await queue.bump(job)
            assert await queue.finish(job)
            rest = await queue.dequeue(10)
            assert {one.id: one.data for one in rest} == {"held": 2, "waits": 3}
            for one in rest:
                assert await queue.finish(one)
            assert NodeQueue(admin, "q").audit().problems() == []


async def test_ours_is_loaded_again_where_it_is_gone(
    own_server: Server, admin: redis.Redis
) -> None:
    async with Client(own_server.url) as client:
        queue = node.Queue(client, "q")
        await queue.dispatch(1, id="a")
        admin.function_flush()
        (job,) = await queue.dequeue()
        admin.function_flush()
        assert await queue.finish(job)
        admin.function_flush()
        assert await queue.counts() == (0, 0, 0)


async def test_queues_live_on_every_node_of_a_cluster(kind: ServerKind) -> None:
    with start_cluster(kind) as cluster:
        async with Client(cluster.url) as client:
            for name in ("a", "b", "c", "d", "e", "f"):
                await run_one(node.Queue(client, name), "job")


async def test_many_clients_that_start_together_load_one_library(
    own_server: Server, admin: redis.Redis
) -> None:
    async def start(number: int) -> None:
        async with Client(own_server.url) as client:
            await node.Queue(client, "q").dispatch(number, id=str(number))

    await asyncio.gather(*(start(number) for number in range(20)))
    names = [one[1] for one in admin.function_list("queasy")]
    assert names == ["queasy"]
    assert len(NodeQueue(admin, "q").ids(now=1, limit=100)) == 20
