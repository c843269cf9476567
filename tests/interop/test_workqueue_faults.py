"""Work queues on servers that fail, move keys, lack the library, or restrict their users."""

import asyncio
import random
import re
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from queasy import (
    AccessDenied,
    Client,
    InvalidQueue,
    NotRunning,
    SyncClient,
    Unanswered,
)
from queasy.interop import workqueue
from queasy.interop.library import LIBRARY
from tests.access import PASSWORD
from tests.docs.pages import DOCS
from tests.groups import start_cluster
from tests.proxy import Proxy
from tests.servers import HOST, Server, ServerKind, free_port, start_server, wait_until

GUIDE = DOCS / "guides" / "interop.md"


@pytest.mark.parametrize("sync", [False, True])
async def test_item_of_a_lease_whose_answer_was_lost_goes_back_to_the_front(
    proxy: Proxy, frames: workqueue.Queue[Client], name: str, sync: bool
) -> None:
    for id_ in ("a", "b", "c"):
        await frames.add_item(workqueue.Item(b"1", id=id_))
    proxy.lose_answer_to(f"{LIBRARY.prefix}workqueue_take")
    if sync:
        client = SyncClient(proxy.url)  # the proxy is in this event loop, so a thread connects
        try:
            item = await asyncio.to_thread(workqueue.Queue(client, name).lease, 60, timeout=20)
            await until_undone(frames, client)
        finally:
            client.close()
    else:
        async with Client(proxy.url) as other:
            item = await workqueue.Queue(other, name).lease(60, timeout=20)
    assert item is not None
    assert proxy.lost == 1
    async with asyncio.timeout(30):
        while (await frames.counts()) != (2, 1):
            await asyncio.sleep(0)
    left = {(await leased(frames)).id for _ in range(2)}
    assert left | {item.id} == {"a", "b", "c"}


async def until_undone(frames: workqueue.Queue[Client], client: SyncClient) -> None:
    """A sync client repeats what it has to undo when it leases again."""
    store = client._store
    async with asyncio.timeout(30):
        while (await frames.counts()).active > 1:
            await asyncio.to_thread(store.undos.attempt)


async def leased(queue: workqueue.Queue[Client]) -> workqueue.Item:
    item = await queue.lease(60, block=False)
    assert item is not None
    return item


async def test_completion_and_addition_whose_answer_was_lost_are_not_reported_as_refused(
    proxy: Proxy, name: str, frames: workqueue.Queue[Client]
) -> None:
    async with Client(proxy.url) as other:
        queue = workqueue.Queue(other, name)
        item = workqueue.Item(b"1", id="a")
        proxy.lose_answer_to(f"{LIBRARY.prefix}workqueue_add")
        with pytest.raises(Unanswered, match="add of work queue"):
            await queue.add_item(item)
        assert await frames.queue_len() == 1
        held = await leased(frames)
        proxy.lose_answer_to(f"{LIBRARY.prefix}workqueue_finish")
        with pytest.raises(Unanswered, match="complete of work queue"):
            await queue.complete(held)
        assert await frames.counts() == (0, 0)


async def test_lease_waits_for_a_server_that_restarts(kind: ServerKind) -> None:
    with start_server(kind, appendonly=True) as own:
        async with Client(own.url) as client:
            queue = workqueue.Queue(client, "frames")
            waiting = asyncio.create_task(queue.lease(30, timeout=60))
            with own.client() as admin:
                async with asyncio.timeout(20):
                    while not any("blmove" in one["cmd"] for one in admin.client_list()):
                        await asyncio.sleep(0.01)
            await asyncio.to_thread(own.restart)
            async with Client(own.url) as producer:
                await workqueue.Queue(producer, "frames").add_item(workqueue.Item(b"1", id="a"))
            assert await waiting == workqueue.Item(b"1", id="a")


async def test_hundred_waiting_leases_share_one_connection(
    frames: workqueue.Queue[Client], admin: redis.Redis
) -> None:
    waiting = [asyncio.create_task(frames.lease(30)) for _ in range(100)]
    async with asyncio.timeout(20):
        while not (blocked := blocked_clients(admin)):
            await asyncio.sleep(0)
    assert len(blocked) == 1
    for number in range(100):
        await frames.add_item(workqueue.Item(b"1", id=str(number)))
    items = await asyncio.gather(*waiting)
    assert {item.id for item in items if item} == {str(number) for number in range(100)}
    wait_until(lambda: not blocked_clients(admin), "no call waits on the server")


def blocked_clients(admin: redis.Redis) -> list[Any]:
    return [one for one in admin.client_list() if one["cmd"] == "blmove" and "b" in one["flags"]]


def test_server_that_is_not_running_is_named() -> None:
    address = f"{HOST}:{free_port()}"
    queue = workqueue.Queue(SyncClient(f"redis://{address}", timeout=1), "frames")
    for call in (queue.counts, lambda: queue.lease(30), queue.light_clean):
        with pytest.raises(NotRunning, match=address):
            call()


async def test_cluster_needs_a_hash_tag(kind: ServerKind) -> None:
    with start_cluster(kind, primaries=3, replicas=0) as cluster:
        async with Client(cluster.url) as client:
            for prefix in ("frames", "frames{}", "frames}{"):
                with pytest.raises(InvalidQueue, match="hash tag"):
                    workqueue.Queue(client, prefix)
            for number in range(6):
                queue = workqueue.Queue(client, f"{{frames{number}}}")
                waiting = asyncio.create_task(queue.lease(30))
                await queue.add_item(workqueue.Item(b"1", id="a"))
                item = await waiting
                assert item is not None
                assert await queue.light_clean(settle=0) == await queue.deep_clean(settle=0) == 0
                assert await queue.complete(item)


@pytest.mark.parametrize("moved", [1, 2, 3])
async def test_slot_that_moves_delays_calls_and_each_takes_effect_once(
    kind: ServerKind, moved: int
) -> None:
    slot = key_slot(b"frames")
    with start_cluster(kind, primaries=2, replicas=0) as cluster:
        async with Client(cluster.url, timeout=30) as client:
            queue = workqueue.Queue(client, "{frames}")
            await queue.add_item(workqueue.Item(b"1", id="a"))
            await queue.add_item(workqueue.Item(b"2", id="b"))
            held = await leased(queue)
            old, new = cluster.primary_of(slot), cluster.other_primary(slot, random.Random())
            await asyncio.to_thread(cluster.begin_migration, slot, new)
            await asyncio.to_thread(cluster.migrate_keys, slot, new, moved)
            calls = asyncio.gather(
                queue.complete(held),
                queue.lease(60, block=False),
                queue.add_item(workqueue.Item(b"3", id="c")),
            )
            async with asyncio.timeout(20):
                while not refusals(old) + refusals(new):
                    await asyncio.sleep(0.01)
            while await asyncio.to_thread(cluster.migrate_keys, slot, new):
                pass
            await asyncio.to_thread(cluster.end_migration, slot, new)
            completed, item, added = await calls
            assert (completed, added) == (True, True)
            assert item is not None
            assert item.id == "b"
            assert await queue.counts() == (1, 1)
            assert await queue.deep_clean(settle=0) == 0


def refusals(server: Server) -> int:
    found = server.call("INFO", "commandstats").get("cmdstat_fcall", {})
    return int(found.get("rejected_calls", 0)) + int(found.get("failed_calls", 0))


# The library and the permissions


async def test_library_is_loaded_beside_the_native_one_and_never_downgraded(
    kind: ServerKind,
) -> None:
    current = LIBRARY.source()
    stamp = f"local VERSION = {{ 1, {LIBRARY.revision()} }}"
    with start_server(kind) as own:
        for revision in (None, 0, LIBRARY.revision() + 7):
            own.call("FUNCTION", "FLUSH")
            if revision is not None:
                other = current.replace(stamp, f"local VERSION = {{ 1, {revision} }}")
                own.call("FUNCTION", "LOAD", other)
            async with Client(own.url) as client:
                queue = workqueue.Queue(client, "frames")
                assert await queue.counts() == (0, 0)
                assert await client.queue("native").lease(timeout=0) is None
                found = own.call("FCALL_RO", f"{LIBRARY.prefix}version", 0)
                assert found == [1, max(revision or 0, LIBRARY.revision())]
                own.call("FUNCTION", "FLUSH")  # as after a failover to an empty server
                assert await queue.counts() == (0, 0)


async def use_everything(client: Client, name: str) -> None:
    queue = workqueue.Queue(client, name)
    waiting = asyncio.create_task(queue.lease(30, timeout=20))
    await queue.add_item(workqueue.Item(b"1", id="a"))
    item = await waiting
    assert item is not None
    assert await queue.complete(item)
    await queue.add_item(workqueue.Item(b"1", id="b"))
    assert await queue.lease(0.001) is not None
    async with asyncio.timeout(30):
        while not await queue.light_clean(settle=0):
            pass
    assert await queue.deep_clean(settle=0) == 0
    assert await queue.counts() == (1, 0)


async def test_user_of_the_guide_can_use_its_queues_and_no_others(kind: ServerKind) -> None:
    rules = re.search(r"^ACL SETUSER interop (.*)$", GUIDE.read_text(), re.M)
    assert rules is not None
    with start_server(kind) as own:
        own.call("ACL", "SETUSER", "interop", "reset", *rules[1].split())
        async with Client(own.url_as("interop", PASSWORD)) as client:
            await use_everything(client, "frames")
            with pytest.raises(AccessDenied):
                await workqueue.Queue(client, "others").add_item(workqueue.Item(b"1"))
