"""Each user in the security guide has the permissions it needs, and no others."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from queasy import (
    AccessDenied,
    Client,
    JobOptions,
    NotDurable,
    Queue,
)
from queasy.store.command import Command
from tests.access import PASSWORD, documented_rules
from tests.client.waiting import until_waiting
from tests.servers import Server, ServerKind, start_replica, start_server


def user_of(server: Server, name: str, *, without: str = "") -> str:
    """The URL of a new user with the rules of the document, or with one rule less."""
    rules = [rule for rule in documented_rules(name) if rule != without]
    server.call("ACL", "SETUSER", name, "reset", *rules)
    return server.url_as(name, PASSWORD)


@pytest.fixture(scope="module")
def guarded(kind: ServerKind) -> Iterator[Server]:
    """A server with a replica and without persistence, so that clients log a warning."""
    with start_server(kind) as primary, start_replica(primary):
        yield primary


@pytest.fixture(autouse=True)
def _without_a_library(request: pytest.FixtureRequest) -> None:
    if "guarded" in request.fixturenames:
        request.getfixturevalue("guarded").call("FLUSHALL")


def warnings_in(caplog: pytest.LogCaptureFixture) -> int:
    """How many clients were permitted to read the settings, and logged the warning."""
    return caplog.text.count("no persistence")


# What each user is for


async def work(client: Client, queue: Queue) -> None:
    """Every operation."""
    await queue.configure(fail_handler=True, limits=JobOptions(max_retries=1))
    await queue.dispatch_many([1, 2, 3])
    await queue.dispatch(4, id="four", delay=60, durability="replicated")
    await queue.cancel("four")
    async with queue.lease() as lease:
        assert lease is not None
        await queue.cancel(lease.job.id, running=True)
        await queue.dispatch(0, id=lease.job.id)
        await lease.extend(5)
    for _ in range(3):
        lease = await queue.lease(timeout=0)
        assert lease is not None
        await lease.fail("no")
    async with queue.fail_queue.lease() as failure:
        assert failure is not None
    assert await queue.lease(timeout=0) is None
    await lease_after_waiting(queue)
    assert await queue.requeue([job.id async for job in queue.jobs("failed")]) == 3
    held = await queue.lease(timeout=0)
    assert held is not None
    assert await queue.evict((await queue.clients())[0].id)
    assert not await held.complete()
    await queue.dispatch(5, id="five", delay=60, if_exists="skip")
    assert await queue.run_now("five")
    assert await queue.cancel_where(lambda job: job.id == "five") == 1
    async with queue.consumer(concurrency=1) as jobs:
        lease = await anext(jobs)
        await lease.complete()
        assert await client.evict(jobs.id, queues=[queue.name])
    await client.tell_workers("serve", queue.name)
    assert (await client.health(queues=[queue.name])).queues
    await queue.pause()
    await queue.resume()
    await queue.trim(0)
    await queue.sweep()
    await queue.destroy()
    await queue.dispatch_many(range(101))  # two pages
    await look(client, queue)


async def lease_after_waiting(queue: Queue) -> None:
    """A lease that waits for its job. It raises what the lease raises, however soon."""
    waits = asyncio.create_task(queue.lease(timeout=60))
    watch = asyncio.create_task(until_waiting(queue))
    try:
        done, _ = await asyncio.wait({waits, watch}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        await queue.dispatch("wakes the lease")
        async with await waits as lease:
            assert lease is not None
    finally:
        for task in (waits, watch):
            task.cancel()
        await asyncio.gather(waits, watch, return_exceptions=True)


async def look(client: Client, queue: Queue) -> None:
    """Every operation that only reads."""
    counts = await queue.counts()
    ids = {s: [job.id async for job in queue.jobs(s)] for s in ("waiting", "active", "failed")}
    assert len(ids["waiting"]) == counts.waiting
    for state in ("blocked", "broken"):
        assert [job async for job in queue.jobs(state)] == []
    assert await queue.get(ids["waiting"][0])
    assert await queue.get("absent") is None
    assert await queue.stats()
    await queue.clients()
    await client.workers([queue.name])
    assert await queue.audit() == []
    assert await queue.fail_queue.audit() == []


async def produce(client: Client, queue: Queue) -> None:
    """Dispatch and cancel jobs in every state."""
    await queue.dispatch(1, id="a", delay=60, options=JobOptions(max_retries=2))
    await queue.dispatch(2, id="a", delay=30, update_run_at="if_earlier", update_options=False)
    await queue.dispatch_many([1, 2, 3])
    assert await queue.cancel("a")
    assert not await queue.cancel("absent", running=True)
    assert await queue.cancel("held", running=True)


def send(connection: Any, command: Command[Any]) -> Any:
    return command.answer(connection.execute_command(*command.words()))


async def hand(server: Server, queue: Queue) -> None:
    """A small job is handed off with the wake-up; a large one waits in the queue."""
    commands = queue._commands
    with server.client(decode_responses=False) as admin, admin.pubsub() as ears:
        ears.ssubscribe(commands.keys.channel("taker"))
        ears.get_sharded_message(timeout=5)
        send(admin, commands.register("taker", 5))
        for data, word in ((1, b"job:"), ("x" * 70_000, b"wake")):
            taken = send(
                admin,
                commands.dequeue(
                    "taker", lease=5, limit=1, waiter="taker", waits=3, accepts_hand_off=True
                ),
            )
            assert not taken.count
            await queue.dispatch(data)
            said = ears.get_sharded_message(timeout=1)
            if not said or not said["data"].startswith(word):
                raise TimeoutError("the worker has to request the job")
        assert send(admin, commands.counts()).waiting == 1


Purpose = Callable[[Client, Queue], Awaitable[None]]
PURPOSES: dict[str, Purpose] = {"worker": work, "producer": produce, "viewer": look}


async def use(server: Server, url: str, name: str, purpose: Purpose, patience: float) -> None:
    """Use a URL for its purpose, on a queue with jobs in every state and a waiting lease."""
    if purpose is work:
        server.call("FUNCTION", "FLUSH")
        async with Client(url) as client:
            await work(client, client.queue(name))
            await hand(server, client.queue(f"{name}-handed"))
        return
    async with Client(server.url_as("default", "")) as owner:
        queue = owner.queue(name)
        await queue.dispatch_many([1, 2])
        await (await queue.lease()).fail("no")
        await queue.dispatch(3, id="held")
        while (await queue.lease()).job.id != "held":
            pass
        waiting = asyncio.create_task(queue.lease(timeout=60))
        try:
            await until_waiting(queue)
            if purpose is look:
                await queue.dispatch_many(range(102))  # two pages
            async with Client(url) as client:
                await purpose(client, client.queue(name))
                if purpose is produce:
                    await hand(server, client.queue(f"{name}-handed"))
            async with asyncio.timeout(patience):
                assert await waiting is not None
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.parametrize("user", PURPOSES)
async def test_a_user_can_do_what_it_is_for(
    guarded: Server, user: str, caplog: pytest.LogCaptureFixture
) -> None:
    guarded.call("ACL", "LOG", "RESET")
    await use(guarded, user_of(guarded, user), "q", PURPOSES[user], patience=30)
    assert warnings_in(caplog) == 1
    with guarded.client() as admin:
        refused = {entry["object"] for entry in admin.acl_log()}
    assert refused <= ({"info", "config|get"} if user != "worker" else set())


async def test_only_server_functions_write(guarded: Server) -> None:
    """All other commands of a client read, or are about its connection."""
    with guarded.client() as admin, admin.monitor() as monitor:
        await use(guarded, user_of(guarded, "worker"), "q", work, patience=30)
        admin.echo("the end")
        seen: set[str] = set()
        while "ECHO" not in seen:
            entry: dict[str, str] = monitor.next_command()
            if entry["client_type"] != "lua":
                seen.add(entry["command"].partition(" ")[0].upper())
        writes = {name.upper() for name in admin.acl_cat("write")}
    assert len(seen) > 5
    assert {"HSET", "ZADD"} <= writes
    assert not seen & writes


async def test_producer_on_a_server_without_library_raises_what_to_do(guarded: Server) -> None:
    guarded.call("FUNCTION", "FLUSH")
    url = user_of(guarded, "producer")
    with pytest.raises(AccessDenied, match=r"no library yet.* Connect a worker first"):
        async with Client(url):
            pass
    async with Client(user_of(guarded, "worker")), Client(url) as producer:
        await producer.queue("q").dispatch(1)


@pytest.mark.parametrize("user", PURPOSES)
async def test_user_without_one_of_its_permissions_cannot_do_its_work(
    guarded: Server, user: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Without each of them an operation fails, a wake-up is late, or a warning is missing."""
    spare: list[str] = []
    for number, rule in enumerate(documented_rules(user)):
        if not rule.startswith(("+", "~", "&", "%")):
            continue
        caplog.clear()
        url = user_of(guarded, user, without=rule)
        try:
            await use(guarded, url, f"q{number}", PURPOSES[user], patience=0.5)
        except (AccessDenied, NotDurable, TimeoutError):  # late: no wake-up was sent
            pass
        else:
            if user != "worker" or warnings_in(caplog):
                spare.append(rule)
    assert spare == []
