"""Work queues: what this protocol has beyond what every dialect promises."""

import asyncio
import re
from datetime import timedelta
from typing import Any

import pytest
import redis

from queasy import (
    Client,
    InvalidId,
    InvalidOption,
    InvalidPayload,
    InvalidQueue,
    InvalidTime,
    SyncClient,
    UndecodablePayload,
)
from queasy.interop import workqueue
from tests.docs.pages import DOCS
from tests.servers import ServerKind, start_server

GUIDE = DOCS / "guides" / "interop.md"
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


# Keys and bytes


@pytest.mark.parametrize("layout", ["document", "published"])
async def test_keys_are_those_of_the_protocol(
    client: Client, admin: redis.Redis, name: str, layout: workqueue.Layout
) -> None:
    lease = {"document": "lease", "published": "leased_by_session"}[layout]
    queue = workqueue.Queue(client, name, layout=layout)
    data = bytes(range(256))
    await queue.add_item(workqueue.Item(data, id="a"))
    await queue.add_unique_item(workqueue.Item(data, id="b"))
    assert {*admin.keys(f"{name}:*")} == {
        f"{name}:{key}".encode() for key in ("queue", "item:a", "item:b")
    }
    assert admin.lrange(f"{name}:queue", 0, -1) == [b"b", b"a"]
    assert admin.get(f"{name}:item:a") == data
    item = await queue.lease(timedelta(seconds=30))
    assert item == workqueue.Item(data, id="a")
    assert admin.lrange(f"{name}:processing", 0, -1) == [b"a"]
    assert UUID.fullmatch(admin.get(f"{name}:{lease}:a").decode())
    assert 0 < admin.pttl(f"{name}:{lease}:a") <= 30_000
    assert await queue.complete(item)
    assert {*admin.keys(f"{name}:*")} == {f"{name}:queue".encode(), f"{name}:item:b".encode()}


def test_item_without_an_id_gets_a_random_uuid() -> None:
    ids = {workqueue.Item(b"").id for _ in range(100)}
    assert len(ids) == 100
    assert all(UUID.fullmatch(id_) for id_ in ids)


def test_item_holds_bytes_text_or_json() -> None:
    assert workqueue.Item("ü").data == "ü".encode()
    assert workqueue.Item(bytearray(b"ab")).data == workqueue.Item(memoryview(b"ab")).data == b"ab"
    item = workqueue.Item.from_json_data({"page": [1, None]}, id="a")
    assert item == workqueue.Item(b'{"page":[1,null]}', "a")
    assert item.data_json() == {"page": [1, None]}
    with pytest.raises(UndecodablePayload, match="'a'"):
        workqueue.Item(b"{", id="a").data_json()
    with pytest.raises(InvalidPayload, match="JSON"):
        workqueue.Item.from_json_data(object())


async def test_ids_that_are_not_text_are_passed_on_unchanged(
    frames: workqueue.Queue[Client], admin: redis.Redis, name: str
) -> None:
    for id_ in (b"\xff\xfe", "é:{x}* ?[a]".encode()):
        admin.set(name.encode() + b":item:" + id_, b"data")
        assert await frames.deep_clean(settle=0) == 1
        item = await frames.lease(30, block=False)
        assert item is not None
        assert item.id.encode("utf-8", "surrogateescape") == id_
        assert await frames.complete(item)
        assert admin.keys(f"{name}:*") == []


def test_sync_client_has_the_same_methods_without_await(sync_client: SyncClient, name: str) -> None:
    queue = workqueue.Queue(sync_client, name)
    assert queue.add_item(workqueue.Item(b"1", id="a"))
    assert not queue.add_unique_item(workqueue.Item(b"2", id="a"))
    item = queue.lease(30, timeout=5)
    assert item == workqueue.Item(b"1", id="a")
    assert queue.lease(30, timeout=0.01) is None
    assert queue.lease(30, False) is None
    assert queue.counts() == (0, 1)
    assert (queue.queue_len(), queue.processing()) == (0, 1)
    assert (queue.light_clean(settle=0), queue.deep_clean(settle=0)) == (0, 0)
    assert queue.complete(item)
    assert not queue.complete(item)


async def test_async_and_sync_clients_share_a_queue(
    frames: workqueue.Queue[Client], sync_client: SyncClient, name: str
) -> None:
    waiting = asyncio.create_task(frames.lease(30))
    sync = workqueue.Queue(sync_client, name)
    await asyncio.to_thread(sync.add_item, workqueue.Item(b"1", id="a"))
    item = await waiting
    assert item is not None
    assert await asyncio.to_thread(sync.complete, item)
    assert not await frames.complete(item)


# Foreign programs that died between two calls


async def test_item_that_was_taken_and_never_leased_is_returned(
    frames: workqueue.Queue[Client], admin: redis.Redis, name: str
) -> None:
    await frames.add_item(workqueue.Item(b"1", id="a"))
    admin.rpoplpush(f"{name}:queue", f"{name}:processing")
    assert await frames.light_clean(settle=0) == 1
    assert await frames.counts() == (1, 0)


async def test_item_that_is_in_no_list_is_returned_by_a_deep_clean(
    frames: workqueue.Queue[Client], admin: redis.Redis, name: str
) -> None:
    admin.set(f"{name}:item:added", b"1")
    admin.set(f"{name}:item:cleaned", b"2")
    admin.lpush(f"{name}:cleaning", "cleaned")
    await frames.add_item(workqueue.Item(b"3", id="waits"))
    assert await frames.light_clean(settle=0) == 0
    assert await frames.deep_clean(settle=0) == 2
    assert await frames.deep_clean(settle=0) == 0
    assert await frames.counts() == (3, 0)
    assert not admin.exists(f"{name}:cleaning")


@pytest.mark.parametrize("lease", ["lease", "leased_by_session"])
async def test_leases_of_both_layouts_are_respected(
    frames: workqueue.Queue[Client], admin: redis.Redis, name: str, lease: str
) -> None:
    await frames.add_item(workqueue.Item(b"1", id="a"))
    admin.rpoplpush(f"{name}:queue", f"{name}:processing")
    admin.set(f"{name}:{lease}:a", "session", px=60_000)
    assert await frames.light_clean(settle=0) == await frames.deep_clean(settle=0) == 0
    admin.rpoplpush(f"{name}:processing", f"{name}:queue")  # in the queue, and still leased
    assert await frames.lease(30, block=False) is None
    assert await frames.counts() == (0, 1)
    admin.delete(f"{name}:{lease}:a")
    assert await frames.light_clean(settle=0) == 1
    assert await frames.lease(30, block=False) is not None


async def test_ids_without_data_are_dropped_however_many_there_are(
    frames: workqueue.Queue[Client], admin: redis.Redis, name: str
) -> None:
    admin.lpush(f"{name}:queue", *[f"gone-{n}" for n in range(1001)])
    admin.hset(f"{name}:item:gone-7", "not", "bytes")
    await frames.add_item(workqueue.Item(b"1", id="a"))
    item = await frames.lease(30, block=False)
    assert item is not None
    assert item.id == "a"
    assert await frames.counts() == (0, 1)
    admin.lpush(f"{name}:processing", "gone")
    assert await frames.light_clean(settle=0) == 0
    assert await frames.counts() == (0, 1)


async def test_item_that_was_added_twice_by_another_library_is_leased_once(
    frames: workqueue.Queue[Client], admin: redis.Redis, name: str
) -> None:
    await frames.add_item(workqueue.Item(b"1", id="a"))
    admin.lpush(f"{name}:queue", "a")
    first = await frames.lease(30, block=False)
    assert first is not None
    assert await frames.lease(30, block=False) is None
    assert await frames.counts() == (0, 1)
    assert await frames.complete(first)


async def test_item_that_was_returned_is_removed_by_a_late_completion(
    client: Client, admin: redis.Redis, name: str
) -> None:
    for layout in ("document", "published"):
        queue = workqueue.Queue(client, name, layout=layout)
        await queue.add_item(workqueue.Item(b"1", id="a"))
        late = await queue.lease(0.001)
        assert late is not None
        async with asyncio.timeout(30):
            while not await queue.light_clean(settle=0):
                pass
        assert await queue.complete(late)
        assert not await queue.complete(late)
        assert admin.keys(f"{name}:*") == []


async def test_completion_of_the_packages_that_is_half_done_counts_as_the_first(
    client: Client, admin: redis.Redis, name: str
) -> None:
    """The packages remove the id first and delete the data later. Between the two, theirs is the
    first completion.
    """
    queue = workqueue.Queue(client, name, layout="published")
    await queue.add_item(workqueue.Item(b"1", id="a"))
    item = await queue.lease(30)
    assert item is not None
    assert admin.lrem(f"{name}:processing", 0, "a") == 1
    assert not await queue.complete(item)
    assert admin.exists(f"{name}:item:a")


async def test_clean_leaves_an_item_that_is_leased_between_its_two_looks(
    frames: workqueue.Queue[Client], admin: redis.Redis, name: str
) -> None:
    await frames.add_item(workqueue.Item(b"1", id="a"))
    admin.rpoplpush(f"{name}:queue", f"{name}:processing")  # and the lease follows
    looks = frames._dialect.clean(deep=False, settle=0)
    step: Any = next(looks)
    store = client_store(frames)
    while not hasattr(step, "seconds"):  # the pause between both looks
        step = looks.send(await store.run(step))
    admin.set(f"{name}:lease:a", "session", px=60_000)
    step = looks.send(None)
    with pytest.raises(StopIteration) as done:
        looks.send(await store.run(step))
    assert done.value.value == 0


def client_store(queue: workqueue.Queue[Client]) -> Any:
    return queue._store


async def test_deep_clean_of_many_items_uses_scan_and_never_keys(
    frames: workqueue.Queue[Client], kind: ServerKind
) -> None:
    with start_server(kind) as own, own.client(decode_responses=False) as admin:
        async with Client(own.url) as client:
            queue = workqueue.Queue(client, "many*[of]?\\them")
            for prefix in ("many*[of]?\\them", "manyX[of]", "many"):
                admin.mset({f"{prefix}:item:{n}": b"1" for n in range(2500)})
            admin.lpush("many*[of]?\\them:queue", *range(1200))
            assert await queue.deep_clean(settle=0) == 1300
            assert await queue.counts() == (2500, 0)
            assert "cmdstat_keys" not in own.call("INFO", "commandstats")


def test_guide_names_every_method() -> None:
    text = GUIDE.read_text()
    methods = [name for name in vars(workqueue.Queue) if not name.startswith("_")]
    assert len(methods) == 9
    assert [name for name in methods if f"frames.{name}(" not in text] == []


# Bad input


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda q: q.add_item(b"1"), InvalidPayload, "workqueue.Item"),
        (lambda q: q.complete("a"), InvalidPayload, "workqueue.Item"),
        (lambda q: q.add_item(workqueue.Item(bytes(2**20 + 1))), InvalidPayload, "max_payload"),
        (lambda q: q.lease("30"), InvalidTime, "seconds"),
        (lambda q: q.lease(0), InvalidOption, "millisecond"),
        (lambda q: q.lease(86_401), InvalidOption, "86400"),
        (lambda q: q.lease(1, "yes"), InvalidOption, "block"),
        (lambda q: q.lease(1, timeout=-1), InvalidTime, "timeout"),
        (lambda q: q.light_clean(settle=-1), InvalidTime, "settle"),
        (lambda q: q.deep_clean(settle="1"), InvalidTime, "settle"),
    ],
)
async def test_bad_argument_is_refused_and_nothing_is_written(
    frames: workqueue.Queue[Client], admin: redis.Redis, name: str, call: Any, error: Any, says: str
) -> None:
    with pytest.raises(error, match=says):
        await call(frames)
    assert admin.keys(f"{name}:*") == []


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: workqueue.Item(1), InvalidPayload, "bytes"),
        (lambda: workqueue.Item(b"", id=""), InvalidId, "id"),
        (lambda: workqueue.Item(b"", id=1), InvalidId, "str"),
        (lambda: workqueue.Item(b"", id="x" * 2000), InvalidId, "bytes"),
        (lambda: workqueue.Queue("redis://", "q"), InvalidOption, "SyncClient"),
        (lambda: workqueue.Queue(SyncClient("redis://x"), ""), InvalidQueue, "prefix"),
        (lambda: workqueue.Queue(SyncClient("redis://x"), b"q"), InvalidQueue, "str"),
        (lambda: workqueue.Queue(SyncClient("redis://x"), "q" * 201), InvalidQueue, "200"),
        (
            lambda: workqueue.Queue(SyncClient("redis://x"), "q", layout="old"),
            InvalidOption,
            "published",
        ),
    ],
)
def test_bad_item_or_queue_is_refused(make: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        make()
