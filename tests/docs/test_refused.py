"""What a user in the security guide may not do is refused by name, and changes nothing."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from queasy import AccessDenied, Client, Failure, JobOptions, Queue, SyncClient, SyncQueue
from queasy.store.library import PREFIX, source
from tests.access import PASSWORD, PERMISSIONS, documented_rules
from tests.servers import Server, ServerKind, start_server


@pytest.fixture(scope="module")
def guarded(kind: ServerKind) -> Iterator[Server]:
    with start_server(kind, appendonly=True) as server:
        yield server


@pytest.fixture
async def emails(guarded: Server) -> AsyncIterator[Queue]:
    """A queue with a waiting, an active and a failed job."""
    guarded.call("FLUSHALL")
    async with Client(guarded.url_as("default", "")) as owner:
        queue = owner.queue("emails")
        for id_ in ("failed", "held"):
            await queue.dispatch(1, id=id_)
            lease = await queue.lease()
            if id_ == "failed":
                await lease.fail("no")
        await queue.dispatch(1, id="waits")
        yield queue


def dumps(server: Server) -> dict[bytes, Any]:
    with server.client(decode_responses=False) as admin:
        return {key: admin.dump(key) for key in admin.keys("*")}


def user_of(server: Server, name: str, *more: str) -> str:
    server.call("ACL", "SETUSER", name, "reset", *documented_rules(name), *more)
    return server.url_as(name, PASSWORD)


def consume_nothing(queue: Any) -> Any:
    if isinstance(queue, SyncQueue):
        return queue.consumer().__enter__()
    return queue.consumer().__aenter__()


WRITES: dict[str, Any] = {
    "dispatch": lambda q: q.dispatch(2),
    "dispatch_many": lambda q: q.dispatch_many([2, 3]),
    "cancel": lambda q: q.cancel("waits"),
    "cancel_where": lambda q: q.cancel_where(lambda _: True),
    "lease": lambda q: q.lease(timeout=0),
    "consumer": consume_nothing,
    "pause": lambda q: q.pause(),
    "resume": lambda q: q.resume(),
    "configure": lambda q: q.configure(limits=JobOptions(max_retries=1)),
    "run_now": lambda q: q.run_now("waits"),
    "requeue": lambda q: q.requeue("failed"),
    "drop": lambda q: q.drop("failed"),
    "trim": lambda q: q.trim(0),
    "destroy": lambda q: q.destroy(),
    "sweep": lambda q: q.sweep(),
    "evict": lambda q: q.evict("~somebody"),
}
READS: dict[str, Any] = {
    "get": lambda q: q.get("waits"),
    "counts": lambda q: q.counts(),
    "stats": lambda q: q.stats(),
    "clients": lambda q: q.clients(),
    "audit": lambda q: q.audit(),
}
NEITHER = {"handler", "fail_handler", "jobs", "fail_queue", "name", "codec", "keys"}


def test_every_verb_of_a_queue_is_a_read_or_a_write() -> None:
    verbs = {name for name in dir(Queue) if not name.startswith("_")}
    assert verbs - NEITHER == WRITES.keys() | READS.keys()


async def test_viewer_cannot_change_anything(guarded: Server, emails: Queue) -> None:
    before = dumps(guarded)
    async with Client(user_of(guarded, "viewer")) as client:
        queue = client.queue("emails")
        for name, write in WRITES.items():
            with pytest.raises(AccessDenied, match="'fcall'") as caught:
                await write(queue)
            assert PASSWORD not in str(caught.value), name
        for read in READS.values():
            await read(queue)
        assert [job.id async for job in queue.jobs()] == ["waits"]
        assert await client.workers(["emails"]) == []
        with pytest.raises(AccessDenied, match="'spublish'"):
            await client.tell_workers("unserve", "emails", release=True)
        queue.handler(lambda: None)
        with pytest.raises(AccessDenied, match="'fcall'"):
            await client.work(signals=False)
    assert dumps(guarded) == before


def test_viewer_cannot_change_anything_from_sync_code(guarded: Server, emails: Queue) -> None:
    before = dumps(guarded)
    with SyncClient(user_of(guarded, "viewer")) as client:
        queue = client.queue("emails")
        for write in WRITES.values():
            with pytest.raises(AccessDenied, match="'fcall'"):
                write(queue)
        for read in READS.values():
            read(queue)
        assert [job.id for job in queue.jobs()] == ["waits"]
        assert client.workers(["emails"]) == []
    assert dumps(guarded) == before


def test_viewer_cannot_call_functions_and_commands_that_write(
    guarded: Server, emails: Queue
) -> None:
    """With any client: nor can it publish, subscribe, or read keys of another prefix."""
    before = dumps(guarded)
    functions = re.findall(r"^register\('(\w+)'", source(), re.M)
    keys = emails.keys.all
    with redis.Redis.from_url(user_of(guarded, "viewer"), protocol=2) as viewer:
        for function in functions:
            with pytest.raises(redis.exceptions.NoPermissionError):
                viewer.fcall(PREFIX + function, len(keys), *keys, "")
        for command in ("SPUBLISH", "SSUBSCRIBE", "PUBLISH", "SET", "DEL", "HDEL"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                viewer.execute_command(command, "queasy:{emails}:control", "x")
        with pytest.raises(redis.exceptions.ResponseError, match="write flag"):
            viewer.execute_command("FCALL_RO", PREFIX + "sweep", len(keys), *keys, "")
        with pytest.raises(redis.exceptions.NoPermissionError):
            viewer.hgetall("other:{emails}:data")
    assert dumps(guarded) == before


def test_viewer_can_list_workers_but_cannot_give_orders(
    guarded: Server, emails: Queue, tmp_path: Path
) -> None:
    app = "import os, queasy\nclient = queasy.Client(os.environ['APP_URL'])\n"
    (tmp_path / "app.py").write_text(app + "client.queue('emails').handler(print)\n")
    url = user_of(guarded, "viewer")

    def queasy(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "queasy", *words],
            cwd=tmp_path, env={**os.environ, "APP_URL": url}, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip

    shown = queasy("workers", "app:client")
    assert (shown.returncode, shown.stderr) == (0, "")
    ordered = queasy("unserve", "app:client", "emails")
    assert ordered.returncode != 0
    assert "'spublish'" in ordered.stderr
    assert PASSWORD not in shown.stdout + ordered.stdout + ordered.stderr


async def test_producer_can_only_dispatch_and_cancel(guarded: Server, emails: Queue) -> None:
    async with Client(user_of(guarded, "producer")) as client:
        queue = client.queue("emails")
        await queue.dispatch(1, id="new")
        assert (await queue.run_now("new")).status == "already_due"
        assert await queue.cancel("waits")
        assert await queue.cancel("held", running=True)
        before = dumps(guarded)
        for name, verb in {**WRITES, **READS}.items():
            if name not in ("dispatch", "dispatch_many", "run_now", "cancel"):
                with pytest.raises(AccessDenied, match="'fcall"):
                    await verb(queue)
        with pytest.raises(AccessDenied):
            _ = [job async for job in queue.jobs()]
        assert dumps(guarded) == before


def test_producer_can_use_the_commands_of_dispatching_by_hand(
    guarded: Server, emails: Queue
) -> None:
    """The security guide says so: functions run with the permissions of their caller."""
    with redis.Redis.from_url(user_of(guarded, "producer"), protocol=2) as producer:
        assert producer.hget("queasy:{emails}:data", "waits") == b"1"
        producer.hset("queasy:{emails}:data", "waits", "2")
        with pytest.raises(redis.exceptions.NoPermissionError):
            producer.hget("other:{emails}:data", "waits")


def one_queue() -> list[str]:
    """The rules of the document for a single queue."""
    text = PERMISSIONS.read_text()
    rules = [
        *re.findall(r"`(~queasy:\{emails\}.*?)`", text),
        *re.findall(r"`(&queasy:\{w.*?)`", text),
    ]
    return ["resetkeys", "resetchannels", *" ".join(rules).split()]


async def test_worker_of_one_queue_cannot_use_another(guarded: Server, emails: Queue) -> None:
    guarded.call("ACL", "LOG", "RESET")
    async with Client(user_of(guarded, "worker", *one_queue())) as client:
        queue, gave_up_ran = client.queue("emails"), asyncio.Event()
        queue.handler(lambda: Failure("no"))

        @queue.fail_handler
        async def gave_up() -> None:
            gave_up_ran.set()

        worker = client.worker(signals=False)
        async with asyncio.TaskGroup() as group:
            group.create_task(worker.run())
            await asyncio.wait_for(gave_up_ran.wait(), 30)
            [info] = await client.workers()
            await until_orders_arrive(client, [info.group])
            worker.stop()
        with guarded.client() as admin:
            assert admin.acl_log() == []
        before = dumps(guarded)
        for write in WRITES.values():
            with pytest.raises(AccessDenied, match="key"):
                await write(client.queue("other"))
        for read in READS.values():
            with pytest.raises(AccessDenied, match="key"):
                await read(client.queue("emails-2"))
        with pytest.raises(AccessDenied, match="channel"):
            await client.tell_workers("unserve", "other")
        assert dumps(guarded) == before


async def until_orders_arrive(client: Client, groups: list[str]) -> None:
    """Wait until orders reach a worker on both channels."""
    while not await client.tell_workers("serve", "emails"):
        await asyncio.sleep(0.01)
    while not await client.tell_workers("serve", "emails", workers=groups):
        await asyncio.sleep(0.01)


async def test_producer_of_one_queue_cannot_use_another(guarded: Server, emails: Queue) -> None:
    async with Client(user_of(guarded, "producer", *one_queue())) as client:
        await client.queue("emails").dispatch(1)
        with pytest.raises(AccessDenied, match="key"):
            await client.queue("other").dispatch(1)
    assert (await emails.counts()).waiting == 2
