"""Hand-offs: jobs sent with the wake-up message, when that is lost, repeated or late."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from queasy import Client, Job, Queue, SyncClient
from queasy.errors import Unanswered
from queasy.store.command import Command
from queasy.store.store import AsyncStore
from queasy.worker.lease_times import DEFAULT_TIMES
from queasy.worker.plan import safety_interval
from tests.proxy import Proxy
from tests.servers import Server, ServerKind, start_replica, start_server
from tests.store.harness import Harness, load
from tests.worker.fleet import ON_ONE_SERVER
from tests.worker.inline import Seen, until, until_empty, working

IDLE_LEASE = DEFAULT_TIMES.idle_lease
LEASE = DEFAULT_TIMES.lease

pytestmark = ON_ONE_SERVER


HANDED = b"job:"  # a hand-off message begins with this


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
async def proxied(proxy: Proxy, prefix: str) -> AsyncIterator[Client]:
    """A client through the proxy, which withholds a hand-off when a test asks for it."""
    async with Client(proxy.url, prefix=prefix) as client:
        yield client


async def wake(direct: SyncClient, server: Server) -> None:
    """Has the worker poll its queue, as it does by itself after a while."""
    (worker,) = direct.queue("emails").clients()
    channel = direct.queue("emails").keys.channel(worker.id)
    assert await asyncio.to_thread(server.call, "SPUBLISH", channel, "wake") == 1


async def hand_over(proxy: Proxy, direct: SyncClient, id_: str) -> None:
    """Dispatches a job that is handed to the waiting worker, in a message that is withheld."""
    await until_it_waits(direct)
    proxy.withhold(HANDED)
    direct.queue("emails").dispatch(1, id=id_)
    async with asyncio.timeout(20):
        await proxy.withheld()


def emails_of(client: Client, seen: Seen, over: asyncio.Event | None = None) -> Queue:
    """A queue with a handler that records its jobs, and then waits for `over` if given."""
    emails = client.queue("emails")

    @emails.handler
    async def handle(data: Any, job: Job) -> None:
        seen.add(data, job)
        if over is not None:
            await over.wait()

    return emails


async def until_it_waits(direct: SyncClient) -> None:
    async def waits() -> bool:
        return await asyncio.to_thread(lambda: direct.queue("emails").counts().waiters) > 0

    await until(waits, "the worker waits")


async def until_it_accepts_handoffs(
    direct: SyncClient, seen: Seen, server: Server, prefix: str
) -> list[str]:
    """Waits until the worker accepts hand-offs of this queue, as it does for the queue of its last
    job. Returns the ids of the jobs this took.
    """
    emails, key = direct.queue("emails"), f"{prefix}:{{emails}}:waiter_info"
    had: list[str] = []
    for n in range(50):
        had.append(emails.dispatch(0, id=f"before-{n}").id)
        await seen.runs(len(had))
        await until_empty_and_waiting(direct)
        records = await asyncio.to_thread(records_of_waiters, server, key)
        if any(record.get("hand") for record in records):
            return had
    raise AssertionError("the worker never accepted hand-offs")


def records_of_waiters(server: Server, key: str) -> list[dict[str, Any]]:
    with server.client(decode_responses=False) as connection:
        return [msgspec.msgpack.decode(raw) for raw in connection.hvals(key)]


async def until_empty_and_waiting(direct: SyncClient) -> None:
    async def waits() -> bool:
        counts = await asyncio.to_thread(direct.queue("emails").counts)
        return counts.waiters > 0 and not counts.active and not counts.waiting

    await until(waits, "all is reported, and the worker waits")


async def test_lost_handoff_message_returns_the_job(
    proxy: Proxy, direct: SyncClient, prefix: str, seen: Seen
) -> None:
    async with Client(proxy.url, prefix=prefix) as client:
        emails = emails_of(client, seen)
        async with working(client):
            await until_it_waits(direct)
            proxy.stall(60)
            direct.queue("emails").dispatch(1, id="a")
            assert direct.queue("emails").counts().active == 1, "the server leased it to the worker"
            proxy.cut_all()
            proxy.calm()
            await seen.runs(1)
            await until_empty(emails)
        assert [(job.id, job.stall_count) for job in seen.jobs] == [("a", 0)]


async def test_worker_finds_the_lease_of_a_lost_handoff_by_polling(
    proxy: Proxy, server: Server, direct: SyncClient, proxied: Client, seen: Seen
) -> None:
    """For example: its connection is dead, and neither end has noticed yet."""
    emails = emails_of(proxied, seen)
    async with working(proxied):
        await hand_over(proxy, direct, "a")
        await wake(direct, server)
        await seen.runs(1)
        await until_empty(emails)
    assert [(job.id, job.stall_count) for job in seen.jobs] == [("a", 0)]


async def test_late_handoff_of_a_released_job_does_not_start_it(
    proxy: Proxy, server: Server, direct: SyncClient, proxied: Client, seen: Seen
) -> None:
    """Another client may have leased the job by then. Here the same worker has another lease."""
    emails = emails_of(proxied, seen)
    async with working(proxied):
        await hand_over(proxy, direct, "a")
        await wake(direct, server)
        await seen.runs(1)
        proxy.deliver()
        await until_empty(emails)
        direct.queue("emails").dispatch(2, id="b")
        await seen.runs(2)
    assert [(job.id, job.stall_count) for job in seen.jobs] == [("a", 0), ("b", 0)]


async def test_handoff_during_a_reconcile_is_not_interrupted(
    monkeypatch: pytest.MonkeyPatch, server: Server, direct: SyncClient, client: Client, seen: Seen
) -> None:
    """The server lists the leases for the reconcile, and hands the job off after that."""
    answered, over, run = asyncio.Event(), asyncio.Event(), AsyncStore.run
    asked, lost = asyncio.Event(), asyncio.Event()

    async def run_slowly(store: AsyncStore, command: Command[Any]) -> Any:
        answer = await run(store, command)
        if command.function == "dequeue" and not lost.is_set():
            lost.set()
            raise Unanswered("the answer was lost, so the worker reconciles")
        if command.function == "leases":
            asked.set()
            await answered.wait()
        return answer

    emails = emails_of(client, seen, over)
    async with working(client):
        await until_it_waits(direct)
        monkeypatch.setattr(AsyncStore, "run", run_slowly)
        await wake(direct, server)
        await asked.wait()
        direct.queue("emails").dispatch(1, id="a")
        await seen.runs(1)
        answered.set()
        direct.queue("emails").dispatch(2, id="b")
        await seen.runs(2)  # taken after the comparison is over
        over.set()
        await until_empty(emails)
    assert [job.id for job in seen.jobs] == ["a", "b"], "a was not interrupted"


async def test_handoff_before_the_answer_of_the_dequeue_makes_the_worker_poll_again(
    monkeypatch: pytest.MonkeyPatch, direct: SyncClient, client: Client, seen: Seen
) -> None:
    """Bug: the answer arrived after the message, on another connection; the worker then slept
    without being a waiter."""
    answered, run = asyncio.Event(), AsyncStore.run

    async def run_slowly(store: AsyncStore, command: Command[Any]) -> Any:
        answer = await run(store, command)
        if command.function == "dequeue":
            await answered.wait()
        return answer

    monkeypatch.setattr(AsyncStore, "run", run_slowly)
    emails = emails_of(client, seen)
    async with working(client):
        await until_it_waits(direct)
        direct.queue("emails").dispatch(1, id="a")
        await seen.runs(1)
        answered.set()
        async with asyncio.timeout(safety_interval(1) / 2):  # before its safety poll
            await until_empty(emails)
            direct.queue("emails").dispatch(2, id="b")
            await seen.runs(2)


async def test_repeated_handoff_runs_the_job_once(
    proxy: Proxy, direct: SyncClient, proxied: Client, seen: Seen
) -> None:
    """A replica publishes what its primary published: a client of both receives it twice."""
    over = asyncio.Event()
    emails = emails_of(proxied, seen, over)
    async with working(proxied):
        await hand_over(proxy, direct, "a")
        proxy.deliver()
        await seen.runs(1)
        proxy.deliver()
        direct.queue("emails").dispatch(2, id="while it runs")
        await seen.runs(2)
        over.set()
        await until_empty(emails)
        proxy.deliver()
        direct.queue("emails").dispatch(3, id="when it has ended")
        await seen.runs(3)
        await until_empty(emails)
    assert [job.id for job in seen.jobs] == ["a", "while it runs", "when it has ended"]


async def test_handoff_received_after_its_lease_is_released(
    proxy: Proxy,
    direct: SyncClient,
    proxied: Client,
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after a freeze: the lease of the job may have expired."""
    emails = emails_of(proxied, seen)
    async with working(proxied):
        await hand_over(proxy, direct, "a")
        (handed,) = direct.queue("emails").jobs("active")
        clock = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: clock() + IDLE_LEASE + LEASE)
        proxy.deliver()
        (job,) = await seen.runs(1)
        await until_empty(emails)
    assert len(seen.jobs) == 1
    assert job.token > handed.token, "under another lease"


async def test_handoff_without_capacity_is_released(
    proxy: Proxy, direct: SyncClient, proxied: Client, server: Server, prefix: str, seen: Seen
) -> None:
    emails, over = emails_of(proxied, seen), asyncio.Event()

    @proxied.queue("whole").handler(size=100)
    async def fill(data: Any, job: Job) -> None:
        seen.add(data, job)
        await over.wait()

    async def waits() -> bool:
        job = await emails.get("small")
        return job is not None and job.state == "due"

    async with working(proxied):
        had = await until_it_accepts_handoffs(direct, seen, server, prefix)
        await hand_over(proxy, direct, "small")
        direct.queue("whole").dispatch(1, id="large")
        await seen.runs(len(had) + 1)
        proxy.deliver()
        await until(waits, "it waits again")
        over.set()
        await seen.runs(len(had) + 2)
        await until_empty(emails)
    assert [job.id for job in seen.jobs] == [*had, "large", "small"]


async def test_busy_worker_gets_no_handoff(
    direct: SyncClient, client: Client, server: Server, prefix: str, seen: Seen
) -> None:
    """A handler may block the event loop of the worker, which then could not read the message."""
    handed: list[int] = []
    emails = emails_of(client, seen)

    @client.queue("slow").handler
    async def block(data: Any, job: Job) -> None:
        direct.queue("emails").dispatch(2, id="meanwhile")  # while this blocks the event loop
        handed.append(direct.queue("emails").counts().active)

    async with working(client):
        had = await until_it_accepts_handoffs(direct, seen, server, prefix)
        direct.queue("slow").dispatch(1)
        await seen.runs(len(had) + 1)
        await until_empty(emails)
    assert handed == [0]


async def test_handed_off_job_runs_once_while_a_dead_connection_still_counts(
    direct: SyncClient, client: Client, server: Server, prefix: str, seen: Seen
) -> None:
    """The server still counts a dead connection of the worker as a subscriber."""
    over = asyncio.Event()
    emails = emails_of(client, seen, over)
    async with Client(server.url, prefix=prefix) as second, working(client):
        await until_it_waits(direct)
        emails_of(second, seen, over)
        with server.client() as other, other.pubsub() as ears:
            pattern = f"{prefix}:{{emails}}:client:*"
            ears.ssubscribe(*other.execute_command("PUBSUB SHARDCHANNELS", pattern))
            assert ears.get_sharded_message(timeout=5)
            async with working(second):
                direct.queue("emails").dispatch(1, id="a")
                await seen.runs(1)
                direct.queue("emails").dispatch_many([2, 3])
                await seen.runs(3)
                over.set()
                await until_empty(emails)
    assert sorted(seen.data) == [1, 2, 3]


def test_subscriber_of_a_replica_gets_no_handoff(kind: ServerKind) -> None:
    """Bug: after a failover, a client of the old primary received the message, but the sender saw
    no subscriber and took the job back: it ran twice at once.
    """
    with (
        start_server(kind) as primary,
        start_replica(primary) as replica,
        primary.client(decode_responses=False) as connection,
        replica.client(decode_responses=False) as other,
        other.pubsub() as ears,
    ):
        load(connection)
        h = Harness(connection)
        ears.ssubscribe(h.keys.channel("c1"))
        assert ears.get_sharded_message(timeout=5)["data"] == 1
        h.join("c1", lease=5)
        assert not h.take("c1", lease=5, waiter="c1", waits=3, accepts_hand_off=True)
        h.dispatch("a")
        assert ears.get_sharded_message(timeout=5)["data"] == b"wake"
        assert h.take_one("c1").id == "a"
