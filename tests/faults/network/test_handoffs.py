"""Jobs that come with the message that wakes a worker: when that is lost, or heard too late."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from queasy import Client, Job, Queue, SyncClient
from queasy.store.command import Command
from queasy.store.store import AsyncStore
from queasy.worker.inline import safety_interval
from queasy.worker.intake.scheduler import Intake
from queasy.worker.intake.subscription import Line
from queasy.worker.plan import LEASE
from tests.proxy import Proxy
from tests.servers import Server, ServerKind, start_replica, start_server
from tests.store.harness import Harness, load
from tests.worker.fleet import ON_ONE_SERVER
from tests.worker.inline import Seen, until, until_empty, working

pytestmark = ON_ONE_SERVER


class Post:
    """What is said to a worker; a job that is handed out is kept back until a test delivers it."""

    def __init__(self) -> None:
        self.keep = True
        self._kept: list[tuple[Intake, Line, str]] = []
        self._came = asyncio.Event()

    def told(self, intake: Intake, line: Line, message: str) -> None:
        if message.startswith("job:") and self.keep and not self._kept:
            self._kept.append((intake, line, message))
            self._came.set()
        else:
            TOLD(intake, line, message)

    async def line(self) -> Line:
        """Of the job that is on its way."""
        async with asyncio.timeout(20):
            await self._came.wait()
        return self._kept[0][1]

    def compare(self) -> None:
        intake, line, _ = self._kept[0]
        line.doubt()
        intake.fill_soon()

    def look(self) -> None:
        """As it does by itself, after a while."""
        intake, line, _ = self._kept[0]
        line.next_look = 0.0
        intake.fill_soon()

    def deliver(self) -> None:
        TOLD(*self._kept[0])


TOLD = Intake.told


@pytest.fixture
def post(monkeypatch: pytest.MonkeyPatch) -> Post:
    post = Post()
    monkeypatch.setattr(Intake, "told", lambda *said: post.told(*said))
    return post


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
async def client(server: Server, prefix: str) -> AsyncIterator[Client]:
    async with Client(server.url, prefix=prefix) as client:
        yield client


def emails_of(client: Client, seen: Seen, over: asyncio.Event | None = None) -> Queue:
    """With a handler that notes what it is given, and waits if that is to be."""
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


async def until_it_waits_by_hand(
    direct: SyncClient, seen: Seen, server: Server, prefix: str
) -> list[str]:
    """As it does, sooner or later, for jobs of the queue that it had one of last. Those it had."""
    emails, waiters = direct.queue("emails"), f"{prefix}:{{emails}}:waiters"
    had: list[str] = []
    for n in range(50):
        had.append(emails.dispatch(0, id=f"before-{n}").id)
        await seen.runs(len(had))
        await until_empty_and_waiting(direct)
        found = await asyncio.to_thread(server.call, "ZRANGE", waiters, 0, 0, "WITHSCORES")
        if found and float(found[1]) % 0.5 == 0.25:
            return had
    raise AssertionError("it never took jobs by hand")


async def until_empty_and_waiting(direct: SyncClient) -> None:
    async def waits() -> bool:
        counts = await asyncio.to_thread(direct.queue("emails").counts)
        return counts.waiters > 0 and not counts.active and not counts.waiting

    await until(waits, "all is reported, and the worker waits")


async def test_a_job_is_given_back_when_the_message_with_it_is_lost(
    proxy: Proxy, direct: SyncClient, prefix: str, seen: Seen
) -> None:
    async with Client(proxy.url, prefix=prefix) as client:
        emails = emails_of(client, seen)
        async with working(client):
            await until_it_waits(direct)
            proxy.stall(60)
            direct.queue("emails").dispatch(1, id="a")
            assert direct.queue("emails").counts().active == 1, "it was taken for the worker"
            proxy.cut_all()
            proxy.calm()
            await seen.runs(1)
            await until_empty(emails)
        assert [(job.id, job.stall_count) for job in seen.jobs] == [("a", 0)]


async def test_a_worker_sees_by_itself_that_it_holds_what_it_never_heard_of(
    post: Post, direct: SyncClient, client: Client, seen: Seen
) -> None:
    """The line is dead, say, and nobody has told its ends yet."""
    emails = emails_of(client, seen)
    async with working(client):
        await until_it_waits(direct)
        direct.queue("emails").dispatch(1, id="a")
        await post.line()
        post.look()
        await seen.runs(1)
        await until_empty(emails)
    assert [(job.id, job.stall_count) for job in seen.jobs] == [("a", 0)]


async def test_a_job_that_was_given_back_does_not_start_when_it_is_heard_of(
    post: Post, direct: SyncClient, client: Client, seen: Seen
) -> None:
    """Others may have it by then: here, this worker itself, under another lease."""
    emails = emails_of(client, seen)
    async with working(client):
        await until_it_waits(direct)
        direct.queue("emails").dispatch(1, id="a")
        await post.line()
        post.compare()
        await seen.runs(1)
        post.deliver()
        await until_empty(emails)
        direct.queue("emails").dispatch(2, id="b")
        await seen.runs(2)
    assert [(job.id, job.stall_count) for job in seen.jobs] == [("a", 0), ("b", 0)]


async def test_a_job_that_is_handed_out_while_leases_are_compared_is_not_cut_off(
    monkeypatch: pytest.MonkeyPatch, server: Server, direct: SyncClient, client: Client, seen: Seen
) -> None:
    """The server had not given it out when it was asked what it knows."""
    answered, over, run = asyncio.Event(), asyncio.Event(), AsyncStore.run
    asked = asyncio.Event()

    async def run_slowly(store: AsyncStore, command: Command[Any]) -> Any:
        answer = await run(store, command)
        if command.function == "list":
            asked.set()
            await answered.wait()
        return answer

    async def compared() -> bool:
        return not any(line.unsure for line in worker._worker._lines)

    emails = emails_of(client, seen, over)
    worker: Any
    async with working(client) as worker:
        await until_it_waits(direct)
        monkeypatch.setattr(AsyncStore, "run", run_slowly)
        await asyncio.to_thread(server.call, "CLIENT", "KILL", "TYPE", "pubsub")
        await asked.wait()
        direct.queue("emails").dispatch(1, id="a")
        await seen.runs(1)
        answered.set()
        await until(compared, "the comparison is over, with which it was cut off")
        over.set()
        await until_empty(emails)
    assert [job.id for job in seen.jobs] == ["a"]


async def test_who_hears_of_a_job_before_the_answer_that_it_waits_looks_again(
    monkeypatch: pytest.MonkeyPatch, direct: SyncClient, client: Client, seen: Seen
) -> None:
    """Two lines, and the answer came second: it slept, and the server did not know that it did."""
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
        async with asyncio.timeout(safety_interval(1) / 2):  # then it would look by itself
            await until_empty(emails)
            direct.queue("emails").dispatch(2, id="b")
            await seen.runs(2)


async def test_a_job_that_is_heard_of_twice_runs_once(
    post: Post, direct: SyncClient, client: Client, seen: Seen
) -> None:
    """A replica says again what its primary said: who listens to both hears it so."""
    over = asyncio.Event()
    emails = emails_of(client, seen, over)
    async with working(client):
        await until_it_waits(direct)
        direct.queue("emails").dispatch(1, id="a")
        await post.line()
        post.deliver()
        await seen.runs(1)
        post.deliver()
        direct.queue("emails").dispatch(2, id="while it runs")
        await seen.runs(2)
        over.set()
        await until_empty(emails)
        post.deliver()
        direct.queue("emails").dispatch(3, id="when it has ended")
        await seen.runs(3)
        await until_empty(emails)
    assert [job.id for job in seen.jobs] == ["a", "while it runs", "when it has ended"]


async def test_a_job_that_is_heard_of_too_late_is_given_back(
    post: Post, direct: SyncClient, client: Client, seen: Seen
) -> None:
    """As after a freeze: the lease that it came with may be over."""
    emails = emails_of(client, seen)
    async with working(client):
        await until_it_waits(direct)
        direct.queue("emails").dispatch(1, id="a")
        line = await post.line()
        (handed,) = direct.queue("emails").jobs("active")
        line._sure_until = time.monotonic() - 0.1
        line.asked_for_jobs = time.monotonic() - LEASE
        line._table.keep(line.index, 0.0)
        post.deliver()
        (job,) = await seen.runs(1)
        await until_empty(emails)
    assert len(seen.jobs) == 1
    assert job.token > handed.token, "under another lease"


async def test_a_job_for_which_there_is_no_room_any_more_is_given_back(
    post: Post, direct: SyncClient, client: Client, server: Server, prefix: str, seen: Seen
) -> None:
    emails, over = emails_of(client, seen), asyncio.Event()

    @client.queue("whole").handler(size=100)
    async def fill(data: Any, job: Job) -> None:
        seen.add(data, job)
        await over.wait()

    async def waits() -> bool:
        job = await emails.get("small")
        return job is not None and job.state == "due"

    post.keep = False
    async with working(client):
        had = await until_it_waits_by_hand(direct, seen, server, prefix)
        post.keep = True
        direct.queue("emails").dispatch(1, id="small")
        await post.line()
        direct.queue("whole").dispatch(1, id="large")
        await seen.runs(len(had) + 1)
        post.deliver()
        await until(waits, "it waits again")
        over.set()
        await seen.runs(len(had) + 2)
        await until_empty(emails)
    assert [job.id for job in seen.jobs] == [*had, "large", "small"]


async def test_who_runs_something_else_is_handed_nothing(
    direct: SyncClient, client: Client, server: Server, prefix: str, seen: Seen
) -> None:
    """It may be held up by that, and could not hear of it."""
    handed: list[int] = []
    emails = emails_of(client, seen)

    @client.queue("slow").handler
    async def block(data: Any, job: Job) -> None:
        direct.queue("emails").dispatch(2, id="meanwhile")  # the event loop stands still
        handed.append(direct.queue("emails").counts().active)

    async with working(client):
        had = await until_it_waits_by_hand(direct, seen, server, prefix)
        direct.queue("slow").dispatch(1)
        await seen.runs(len(had) + 1)
        await until_empty(emails)
    assert handed == [0]


async def test_a_job_does_not_run_twice_at_once_when_a_lost_line_still_listens(
    direct: SyncClient, client: Client, server: Server, prefix: str, seen: Seen
) -> None:
    """The server has not heard yet that a line of the worker is dead, and counts it."""
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


def test_nothing_is_handed_to_one_who_listens_to_a_replica(kind: ServerKind) -> None:
    """As to what was the primary, after a failover. The message was heard there, and whoever sent
    it did not know: the job was taken back, and ran twice at once.
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
        assert not h.take("c1", lease=5, waiter="c1", waits=3, by_hand=True)
        h.dispatch("a")
        assert ears.get_sharded_message(timeout=5)["data"] == b"wake"
        assert h.take_one("c1").id == "a"
