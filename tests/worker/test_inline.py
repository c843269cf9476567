"""A worker inside the test's own event loop: what a handler is given, and what comes of it."""

import asyncio
import contextlib
import dataclasses
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from queasy import (
    Client,
    Dispatch,
    Failure,
    Job,
    JobError,
    JobOptions,
    JsonCodec,
    PermanentError,
    Queue,
    Retry,
)
from queasy.client import Running
from tests.servers import Server
from tests.worker.fleet import APP, ROOT

PATIENCE = 20.0  # only a test that fails waits that long
FAR = 3600.0


@contextlib.asynccontextmanager
async def working(client: Client, **options: Any) -> AsyncGenerator[Running]:
    worker = client.worker(signals=False, **options)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
        assert not task.done()
    finally:
        worker.stop()
        await task


async def until(condition: Callable[[], Awaitable[object]], what: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.005)


async def until_empty(queue: Queue) -> None:
    async def empty() -> bool:
        counts = await queue.counts()
        return not (counts.due or counts.scheduled or counts.active)

    await until(empty, f"{queue.name} is empty")


async def until_state(queue: Queue, id_: str, state: str) -> Job:
    found: list[Job | None] = [None]

    async def there() -> bool:
        found[0] = await queue.get(id_)
        return found[0] is not None and found[0].state == state

    await until(there, f"{id_} is {state}")
    assert found[0] is not None
    return found[0]


class Seen:
    """The jobs that a handler was given, in order; and a way to wait for them."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.data: list[Any] = []
        self._more = asyncio.Event()

    def add(self, data: Any, job: Job) -> None:
        self.jobs.append(job)
        self.data.append(data)
        self._more.set()

    async def runs(self, count: int) -> list[Job]:
        async with asyncio.timeout(PATIENCE):
            while len(self.jobs) < count:
                self._more.clear()
                await self._more.wait()
        return self.jobs


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def emails(client: Client) -> Queue:
    return client.queue("emails")


# What a handler may say


def say(verdict: BaseException, *, by_raising: bool) -> BaseException:
    if by_raising:
        raise verdict
    return verdict


@pytest.mark.parametrize("by_raising", [False, True], ids=["returned", "raised"])
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
async def test_a_retry_runs_the_job_again_and_counts(
    client: Client, emails: Queue, seen: Seen, by_raising: bool, is_async: bool
) -> None:
    loop = asyncio.get_running_loop()

    def plain(data: Any, job: Job) -> object:
        loop.call_soon_threadsafe(seen.add, data, job)
        if not job.retry_count:
            return say(Retry("busy", after=0), by_raising=by_raising)
        return "anything else finishes it"

    async def coroutine(data: Any, job: Job) -> object:
        return plain(data, job)

    emails.handler(coroutine if is_async else plain)
    await emails.dispatch(1, id="job")
    async with working(client):
        first, second = await seen.runs(2)
        await until_empty(emails)
    assert (first.retry_count, first.error) == (0, None)
    assert second.retry_count == 1
    assert second.error is not None
    assert (second.error.type, second.error.message) == ("Retry", "busy")
    assert len(seen.jobs) == 2


@pytest.mark.parametrize("by_raising", [False, True], ids=["returned", "raised"])
async def test_a_retry_at_a_time_waits_until_then(
    client: Client, emails: Queue, by_raising: bool
) -> None:
    at = round(time.time() + FAR, 3)

    @emails.handler
    async def handle(data: str) -> object:
        retry = Retry(at=at) if data == "at" else Retry(after=FAR)
        return say(retry, by_raising=by_raising)

    before = time.time()
    await emails.dispatch_many([Dispatch("at", id="at"), Dispatch("after", id="after")])
    async with working(client):
        by_time = await until_state(emails, "at", "scheduled")
        by_delay = await until_state(emails, "after", "scheduled")
    assert by_time.run_at_epoch == pytest.approx(at, abs=0.001)
    assert before + FAR <= by_delay.run_at_epoch <= time.time() + FAR
    await emails.cancel("at")
    await emails.cancel("after")


@pytest.mark.parametrize("by_raising", [False, True], ids=["returned", "raised"])
@pytest.mark.parametrize("verdict", [Failure, PermanentError])
async def test_a_failure_gives_the_job_up_whatever_it_has_left(
    client: Client, emails: Queue, seen: Seen, by_raising: bool, verdict: type[Failure]
) -> None:
    @emails.handler
    async def handle(data: Any, job: Job) -> object:
        seen.add(data, job)
        return say(verdict("no such address"), by_raising=by_raising)

    await emails.dispatch(1, id="job")
    async with working(client):
        failed = await until_state(emails, "job", "failed")
    assert len(seen.jobs) == 1
    assert failed.error is not None
    assert (failed.error.type, failed.error.message) == (verdict.__name__, "no such address")
    assert failed.error.kind == "permanent"


class Busy(Exception):
    def __init__(self, retry_at: Any) -> None:
        super().__init__("busy")
        self.retry_at = retry_at


@pytest.mark.parametrize("as_datetime", [False, True], ids=["epoch", "datetime"])
async def test_an_exception_may_say_when_in_retry_at(
    client: Client, emails: Queue, as_datetime: bool
) -> None:
    at = float(int(time.time() + FAR))

    @emails.handler(on_exception="fail")
    async def handle(data: Any) -> None:
        raise Busy(datetime.fromtimestamp(at, UTC) if as_datetime else at)

    await emails.dispatch(1, id="job")
    async with working(client):
        job = await until_state(emails, "job", "scheduled")
    assert job.run_at_epoch == at
    assert job.retry_count == 1
    await emails.cancel("job")


async def test_a_retry_at_that_is_no_time_means_the_backoff(client: Client, emails: Queue) -> None:
    @emails.handler(min_backoff=FAR, max_backoff=FAR)
    async def handle(data: Any) -> None:
        raise Busy("soon")

    await emails.dispatch(1, id="job")
    async with working(client):
        job = await until_state(emails, "job", "scheduled")
    assert job.retry_count == 1
    assert job.run_at_epoch > time.time() + FAR - PATIENCE
    await emails.cancel("job")


async def test_an_exception_gives_up_at_once_where_the_handler_says_so(
    client: Client, emails: Queue, seen: Seen
) -> None:
    @emails.handler(on_exception="fail")
    async def handle(data: Any, job: Job) -> None:
        seen.add(data, job)
        raise ValueError("not an address")

    await emails.dispatch(1, id="job")
    async with working(client):
        failed = await until_state(emails, "job", "failed")
    assert len(seen.jobs) == 1
    assert failed.error is not None
    assert (failed.error.type, failed.error.kind) == ("ValueError", "permanent")
    assert "not an address" in failed.error.traceback


class Unusual(BaseException):
    """As trio, gevent and pytest have them."""


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize(
    "wild", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, Unusual]
)
async def test_whatever_a_handler_raises_is_its_jobs_affair_and_not_the_workers(
    client: Client, emails: Queue, seen: Seen, wild: type[BaseException], is_async: bool
) -> None:
    loop = asyncio.get_running_loop()

    def plain(data: Any, job: Job) -> None:
        loop.call_soon_threadsafe(seen.add, data, job)
        if data == "wild" and not job.retry_count:
            raise wild("out of here")

    async def coroutine(data: Any, job: Job) -> None:
        plain(data, job)

    emails.handler(coroutine if is_async else plain, min_backoff=0)
    await emails.dispatch("wild", id="wild")
    async with working(client):
        await seen.runs(1)
        await emails.dispatch("tame", id="tame")
        await seen.runs(3)  # the wild one again, and the other
        await until_empty(emails)
    assert {(job.id, job.retry_count) for job in seen.jobs} == {
        ("wild", 0), ("wild", 1), ("tame", 0)
    }  # fmt: skip


# What cannot be read


async def test_what_cannot_be_decoded_is_set_aside_and_the_rest_of_its_batch_runs(
    client: Client, emails: Queue, seen: Seen
) -> None:
    @emails.handler
    async def handle(data: Any, job: Job) -> None:
        seen.add(data, job)

    raw = client.queue("emails", codec="raw")
    payloads = [b"%d" % n for n in range(10)]
    payloads[4] = b"\xff\x00 no json"
    await raw.dispatch_many([Dispatch(payload, id=f"{n}") for n, payload in enumerate(payloads)])
    async with working(client):
        broken = await until_state(raw, "4", "broken")
        await until_empty(emails)
    assert sorted(seen.data) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert broken.payload == payloads[4]
    assert broken.error is not None
    assert (broken.error.kind, broken.error.type) == ("broken", "DecodeError")
    counts = await emails.counts()
    assert (counts.broken, counts.failed) == (1, 0)


@dataclasses.dataclass
class Letter:
    to: str
    copies: int = 1


async def test_what_is_not_of_the_codecs_type_is_set_aside(client: Client, seen: Seen) -> None:
    letters = client.queue("letters", codec=JsonCodec(Letter))

    @letters.handler
    async def handle(data: Letter, job: Job) -> None:
        seen.add(data, job)

    anything = client.queue("letters")
    await anything.dispatch_many(
        [Dispatch({"to": "x", "copies": 2}, id="good"), Dispatch({"to": 7}, id="bad")]
    )
    await letters.dispatch(Letter("y"))
    async with working(client):
        broken = await until_state(anything, "bad", "broken")
        await until_empty(letters)
    assert sorted(seen.data, key=lambda letter: letter.to) == [Letter("x", 2), Letter("y")]
    assert broken.error is not None
    assert broken.error.type == "ValidationError"
    assert "$.to" in broken.error.message


async def test_a_queue_without_a_handler_is_never_taken_from(
    client: Client, emails: Queue, seen: Seen
) -> None:
    @emails.handler
    async def handle(data: Any, job: Job) -> None:
        seen.add(data, job)

    strange = client.queue("strange")
    await strange.dispatch(1)
    await emails.dispatch(1)
    async with working(client):
        await seen.runs(1)
        await until_empty(emails)
        assert await strange.clients() == []
        assert (await strange.counts()).due == 1
    assert [job.queue for job in seen.jobs] == ["emails"]


async def test_only_the_queues_named_are_served(client: Client, seen: Seen) -> None:
    queues = [client.queue(name) for name in ("one", "two")]
    for queue in queues:

        @queue.handler
        async def handle(data: Any, job: Job) -> None:
            seen.add(data, job)

        await queue.dispatch(1)
    async with working(client, queues=["two"]):
        await seen.runs(1)
        await until_empty(queues[1])
    assert [job.queue for job in seen.jobs] == ["two"]
    assert (await queues[0].counts()).due == 1


# What a job is


async def test_a_job_says_all_there_is_to_know_about_it(
    client: Client, emails: Queue, seen: Seen
) -> None:
    @emails.handler(max_retries=7, min_backoff=0, max_backoff=20, timeout=30)
    async def handle(data: Any, job: Job) -> None:
        seen.add(data, job)
        if job.retry_count == 0:
            raise ValueError("once")

    before = time.time()
    await emails.dispatch({"to": "x"}, id="job", options=JobOptions(max_stalls=5, timeout=40))
    after = time.time()
    async with working(client):
        first, second = await seen.runs(2)
        await until_empty(emails)
    assert seen.data == [{"to": "x"}] * 2
    assert (first.id, first.queue, first.state, first.data) == (
        "job", "emails", "active", {"to": "x"}
    )  # fmt: skip
    assert 0 < first.token < second.token
    assert first.dispatched_at is not None
    assert first.run_at is not None
    slack = 0.01  # clocks of one machine, but milliseconds
    assert before - slack <= first.dispatched_at.timestamp() <= after + slack
    assert first.run_at.timestamp() == pytest.approx(first.dispatched_at.timestamp(), abs=slack)
    assert second.dispatched_at == first.dispatched_at
    assert (first.retry_count, first.stall_count, first.timeout_count) == (0, 0, 0)
    assert (second.retry_count, second.stall_count, second.timeout_count) == (1, 0, 0)
    assert first.options == JobOptions(
        max_retries=7, max_stalls=5, max_timeouts=3, min_backoff=0, max_backoff=20, timeout=40
    )
    assert not first.cancelled


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
async def test_a_run_learns_that_it_is_cancelled(
    client: Client, emails: Queue, seen: Seen, is_async: bool
) -> None:
    loop = asyncio.get_running_loop()
    told: list[bool] = []

    def plain(data: Any, job: Job) -> None:
        loop.call_soon_threadsafe(seen.add, data, job)
        deadline = time.monotonic() + PATIENCE
        while not job.cancelled and time.monotonic() < deadline:
            time.sleep(0.005)
        told.append(job.cancelled)
        raise RuntimeError("as good as any way to end")

    async def coroutine(data: Any, job: Job) -> None:
        seen.add(data, job)
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            told.append(job.cancelled)
            raise

    emails.handler(coroutine if is_async else plain)
    await emails.dispatch(1, id="job")
    async with working(client):
        await seen.runs(1)
        assert await emails.cancel("job", running=True)
        await until_empty(emails)
    assert told == [True]
    assert len(seen.jobs) == 1
    assert await emails.get("job") is None


# Options


async def test_what_a_job_asked_for_goes_before_what_its_handler_says(
    client: Client, emails: Queue, seen: Seen
) -> None:
    @emails.handler(max_retries=5, min_backoff=0)
    async def handle(data: Any, job: Job) -> None:
        seen.add(data, job)
        raise ValueError("no")

    await emails.dispatch(1, id="strict", options=JobOptions(max_retries=0))
    await emails.dispatch(2, id="easy")
    async with working(client):
        await until_state(emails, "strict", "failed")
        await until_state(emails, "easy", "failed")
    assert seen.data.count(1) == 1
    assert seen.data.count(2) == 6


async def test_options_of_a_later_worker_hold_for_what_is_queued_already(
    server: Server, prefix: str, client: Client, emails: Queue, seen: Seen
) -> None:
    @emails.handler(max_retries=9, min_backoff=0)
    async def handle(data: Any, job: Job) -> Retry:
        seen.add(data, job)
        return Retry("patience", after=0 if job.retry_count < 2 else FAR)

    await emails.dispatch(1, id="job")
    async with working(client):
        await seen.runs(3)
        await until_state(emails, "job", "scheduled")
    async with Client(server.url, prefix=prefix) as other:
        strict = other.queue("emails")

        @strict.handler(max_retries=1)
        async def give_up(data: Any, job: Job) -> None:
            seen.add(data, job)
            raise ValueError("no")

        # Only its time changes: its counts and options stay as they are.
        await emails.dispatch(1, id="job", update_data=False)
        async with working(other):
            failed = await until_state(emails, "job", "failed")
    assert [job.retry_count for job in seen.jobs] == [0, 1, 2, 3]
    assert [job.options.max_retries for job in seen.jobs] == [9, 9, 9, 1]
    assert failed.error is not None
    assert failed.error.message == "no"


# Fail handlers


async def test_a_fail_handler_gets_the_job_as_it_was_and_why(
    client: Client, emails: Queue, seen: Seen
) -> None:
    errors: list[JobError] = []

    @emails.handler(max_retries=1, min_backoff=0)
    async def handle(data: Any, job: Job) -> None:
        raise ValueError(f"try {job.retry_count}")

    @emails.fail_handler
    async def tell(data: Any, job: Job, error: JobError) -> None:
        errors.append(error)
        seen.add(data, job)

    await emails.dispatch({"to": "x"}, id="job")
    async with working(client):
        (job,) = await seen.runs(1)
        await until_empty(emails.fail_queue)
    assert seen.data == [{"to": "x"}]
    assert (job.id, job.queue, job.data) == ("job", "emails", {"to": "x"})
    assert job.retry_count == 1
    assert (errors[0].type, errors[0].message) == ("ValueError", "try 1")
    assert (await emails.counts()).failed == 1


async def test_a_fail_handler_is_retried_by_options_of_its_own(
    client: Client, emails: Queue, seen: Seen
) -> None:
    @emails.handler(max_retries=0)
    async def handle(data: Any) -> None:
        raise ValueError("no")

    @emails.fail_handler(max_retries=3, min_backoff=0)
    async def tell(data: Any, job: Job, error: JobError) -> None:
        seen.add(data, job)
        assert error.message == "no"
        raise OSError("the mail server is away")

    await emails.dispatch(1, id="job")
    async with working(client):
        await seen.runs(4)
        await until_empty(emails.fail_queue)
        assert (await emails.fail_queue.counts()).failed == 1
    assert len(seen.jobs) == 4
    assert {job.id for job in seen.jobs} == {"job"}


async def test_a_fail_handler_hears_of_a_timeout(client: Client, emails: Queue, seen: Seen) -> None:
    errors: list[JobError] = []

    @emails.handler(timeout=0.2, max_timeouts=1)
    async def handle(data: Any) -> None:
        await asyncio.sleep(PATIENCE)

    @emails.fail_handler
    async def tell(data: Any, job: Job, error: JobError) -> None:
        errors.append(error)
        seen.add(data, job)

    await emails.dispatch(1, id="job")
    async with working(client):
        (job,) = await seen.runs(1)
        await until_empty(emails.fail_queue)
    assert (job.id, job.timeout_count) == ("job", 1)
    assert errors[0].kind == "timeout"


async def test_a_fail_handler_hears_of_a_stall(client: Client, emails: Queue, seen: Seen) -> None:
    errors: list[JobError] = []

    @emails.handler(max_stalls=1)
    async def handle(data: Any) -> None:
        raise AssertionError("nobody runs it again")

    @emails.fail_handler
    async def tell(data: Any, job: Job, error: JobError) -> None:
        errors.append(error)
        seen.add(data, job)

    async with working(client):  # whose options hold from now on
        await until(lambda: client.workers(), "it works")
    await emails.dispatch(1, id="job")
    lease = await emails.lease(60)
    (holder,) = await emails.clients()
    assert await emails.evict(holder.id) == 1
    async with working(client):
        (job,) = await seen.runs(1)
        await until_empty(emails.fail_queue)
    assert (job.id, job.stall_count) == ("job", 1)
    assert errors[0].kind == "stall"
    assert not await lease.complete()


# Ends that were asked for


async def test_a_run_that_is_too_long_and_finishes_all_the_same_has_finished(
    client: Client, emails: Queue, seen: Seen
) -> None:
    asked: list[bool] = []

    @emails.handler(timeout=0.2)
    async def handle(data: Any, job: Job) -> None:
        seen.add(data, job)
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            asked.append(True)

    await emails.dispatch(1, id="job")
    async with working(client):
        await seen.runs(1)
        await until_empty(emails)
    assert asked == [True]
    assert len(seen.jobs) == 1
    kinds = {stat.kind: stat.count for stat in await emails.stats() if stat.minute is None}
    assert kinds.get("finished") == 1


async def test_an_async_handler_that_waits_is_packed_by_the_hundred(
    client: Client, emails: Queue
) -> None:
    running = most = ended = 0

    @emails.handler
    async def handle(data: Any) -> None:
        nonlocal running, most, ended
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.5)
        running -= 1
        ended += 1

    await emails.dispatch_many(range(100))
    async with working(client):
        await until_empty(emails)
    assert ended == 100
    assert most > 30, "10 units each would allow 10 at once"
    assert most <= 100


async def test_an_async_handler_with_a_size_is_not_packed(client: Client, emails: Queue) -> None:
    running = most = 0

    @emails.handler(size=20)
    async def handle(data: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.1)
        running -= 1

    await emails.dispatch_many(range(25))
    async with working(client):
        await until_empty(emails)
    assert most == 5


# Serving and not


async def test_a_queue_is_left_alone_and_served_again_by_code(
    client: Client, emails: Queue, seen: Seen
) -> None:
    @emails.handler
    async def handle(data: Any, job: Job) -> None:
        seen.add(data, job)

    async with working(client) as worker:
        await emails.dispatch(1)
        await seen.runs(1)
        await worker.unserve("emails")
        assert await emails.clients() == []
        await emails.dispatch(2)
        assert (await emails.counts()).due == 1
        await worker.serve("emails")
        await seen.runs(2)
        await until_empty(emails)
    assert seen.data == [1, 2]


@pytest.mark.parametrize("release", [False, True], ids=["may end", "released"])
async def test_what_runs_of_a_queue_no_longer_served_may_end_or_is_released(
    client: Client, emails: Queue, seen: Seen, release: bool
) -> None:
    go_on = asyncio.Event()

    @emails.handler
    async def handle(data: Any, job: Job) -> None:
        seen.add(data, job)
        await go_on.wait()

    await emails.dispatch(1, id="job")
    async with working(client) as worker:
        await seen.runs(1)
        leaving = asyncio.create_task(worker.unserve("emails", release=release))
        if not release:
            await asyncio.wait([leaving], timeout=0.1)
            assert not leaving.done()
            go_on.set()
        await leaving
        job = await emails.get("job")
        if not release:
            assert job is None
            return
        assert job is not None
        assert (job.state, job.retry_count, job.stall_count) == ("due", 0, 0)
        go_on.set()
        await worker.serve("emails")
        await seen.runs(2)
        await until_empty(emails)
    assert [job.stall_count for job in seen.jobs] == [0, 0]


async def test_running_workers_are_told_what_to_serve(
    client: Client, emails: Queue, seen: Seen
) -> None:
    @emails.handler
    async def handle(data: Any, job: Job) -> None:
        seen.add(data, job)

    async def serving() -> bool:
        return bool(await emails.clients())

    async with working(client):
        await until(serving, "it works")
        (info,) = await client.workers()
        assert await client.tell_workers("unserve", "emails") == 1

        async def left() -> bool:
            return not await serving()

        await until(left, "it has left the queue")
        await emails.dispatch(1)
        assert (await emails.counts()).due == 1
        assert await client.tell_workers("serve", "emails", workers=[info.group]) == 1
        await seen.runs(1)
        await until_empty(emails)
    assert await client.tell_workers("serve", "emails") == 0


async def test_the_command_line_tells_running_workers_too(
    server: Server, prefix: str, client: Client, seen: Seen, tmp_path: Any
) -> None:
    plain = client.queue("plain")  # of tests.worker.app, which the command loads

    @plain.handler
    async def handle(data: Any, job: Job) -> None:
        seen.add(data, job)

    def queasy(*words: str) -> "subprocess.CompletedProcess[str]":
        environment = {
            **os.environ,
            "TEST_URL": server.url,
            "TEST_PREFIX": prefix,
            "TEST_JOURNAL": str(tmp_path / "journal"),
        }
        return subprocess.run(
            [sys.executable, "-m", "queasy", *words],
            cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip

    async def left() -> bool:
        return not await plain.clients()

    async with working(client):
        await until(plain.clients, "it works")
        answer = await asyncio.to_thread(queasy, "unserve", APP, "plain")
        assert (answer.returncode, answer.stdout) == (0, "1 heard it\n"), answer.stderr
        await until(left, "it has left the queue")
        await plain.dispatch(1)
        assert (await plain.counts()).due == 1
        (info,) = await client.workers() or [None]
        # One that serves nothing is known by its group only.
        assert info is None or info.queues == ()
    answer = await asyncio.to_thread(queasy, "serve", APP, "plain")
    assert answer.returncode == 1
    assert "no worker heard it" in answer.stderr


async def test_everybody_can_see_who_works_on_what_since_when(
    server: Server, prefix: str, client: Client, emails: Queue, seen: Seen
) -> None:
    go_on = asyncio.Event()

    @emails.handler(size=25)
    async def handle(data: Any, job: Job) -> None:
        seen.add(data, job)
        await go_on.wait()

    client.queue("other").handler(handle)
    await emails.dispatch(1, id="job")
    before = time.time()
    async with (
        working(client, capacity=50),
        Client(server.url, prefix=prefix) as elsewhere,
    ):
        (run,) = await seen.runs(1)
        (info,) = await elsewhere.workers(["emails"])
        go_on.set()
        await until_empty(emails)
        (idle,) = await elsewhere.workers(["emails"])
    assert (info.host, info.pid, info.supervisor) == (socket.gethostname(), os.getpid(), 0)
    assert sorted(info.queues) == ["emails", "other"]
    assert (info.capacity, info.load) == (50, 0.5)
    slack = 0.01
    assert before - slack <= info.started_at.timestamp() <= time.time() + slack
    (job,) = info.jobs
    assert (job.queue, job.id, job.token) == ("emails", "job", run.token)
    assert job.leased_at is not None
    assert before - slack <= job.leased_at.timestamp() <= time.time() + slack
    assert (idle.id, idle.jobs, idle.load) == (info.id, (), 0.0)
    assert await client.workers() == []
    assert await emails.clients() == []


async def test_cancelling_work_releases_what_runs(
    client: Client, emails: Queue, seen: Seen
) -> None:
    @emails.handler
    async def handle(data: Any, job: Job) -> None:
        seen.add(data, job)
        await asyncio.sleep(PATIENCE)

    await emails.dispatch(1, id="job")
    work = asyncio.create_task(client.work(signals=False))
    await seen.runs(1)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    job = await emails.get("job")
    assert job is not None
    assert (job.state, job.retry_count, job.stall_count) == ("due", 0, 0)
    assert await emails.clients() == []


async def test_stopping_lets_what_runs_end(client: Client, emails: Queue, seen: Seen) -> None:
    go_on = asyncio.Event()

    @emails.handler(size=100)  # nothing else is being taken meanwhile
    async def handle(data: Any, job: Job) -> None:
        seen.add(data, job)
        await go_on.wait()

    await emails.dispatch("job")
    worker = client.worker(signals=False)
    work = asyncio.create_task(worker.run())
    await seen.runs(1)
    worker.stop()
    await emails.dispatch("late")
    go_on.set()
    await work
    assert seen.data == ["job"]
    counts = await emails.counts()
    assert (counts.due, counts.active) == (1, 0)


async def test_a_queue_that_is_the_last_a_worker_served_can_be_served_again(
    client: Client,
) -> None:
    """Workers used to be found through the queues they serve: one that served none was deaf."""
    queue, ran = client.queue("only"), asyncio.Event()

    @queue.handler
    async def run() -> None:
        ran.set()

    worker = client.worker(signals=False)
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        while not await client.workers():
            await asyncio.sleep(0.01)
        assert await client.tell_workers("unserve", "only") == 1
        while await client.workers():
            await asyncio.sleep(0.01)
        await queue.dispatch(1)
        assert await client.tell_workers("serve", "only") == 1
        await asyncio.wait_for(ran.wait(), 30)
        worker.stop()


async def test_the_last_of_many_orders_stands(client: Client) -> None:
    """Orders are carried out side by side, since one may have to wait for jobs to end."""
    queue, ran = client.queue("only"), asyncio.Event()

    @queue.handler
    async def run() -> None:
        ran.set()

    worker = client.worker(signals=False)
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        while not await client.workers():
            await asyncio.sleep(0.01)
        orders = [order for _ in range(20) for order in (worker.unserve, worker.serve)]
        await asyncio.gather(*(order("only") for order in orders))
        (info,) = await client.workers()
        assert info.queues == ("only",)
        await queue.dispatch(1)
        await asyncio.wait_for(ran.wait(), 30)
        await asyncio.gather(*(order("only") for order in reversed(orders)))
        assert await client.workers() == []
        worker.stop()
