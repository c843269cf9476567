"""What a handler returns or raises, and what happens to its job."""

import asyncio
import dataclasses
import threading
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from queasy import (
    Client,
    Dispatch,
    Failure,
    Job,
    JsonCodec,
    PermanentError,
    Queue,
    Retry,
)
from queasy.outcomes import Finish, RetryLater
from queasy.worker.execution import executor
from tests.servers import Server
from tests.worker.inline import FAR, PATIENCE, Seen, until_empty, until_state, working

# Results and exceptions


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
        return "any other result finishes the job"

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
async def test_failure_fails_the_job_whatever_retries_it_has_left(
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
async def test_exception_with_retry_at_schedules_the_retry(
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


async def test_exception_with_an_invalid_retry_at_retries_after_the_backoff(
    client: Client, emails: Queue
) -> None:
    @emails.handler(min_backoff=FAR, max_backoff=FAR)
    async def handle(data: Any) -> None:
        raise Busy("soon")

    await emails.dispatch(1, id="job")
    async with working(client):
        job = await until_state(emails, "job", "scheduled")
    assert job.retry_count == 1
    assert job.run_at_epoch > time.time() + FAR - PATIENCE
    await emails.cancel("job")


async def test_exception_fails_the_job_at_once_if_the_handler_asks_for_it(
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
    """A BaseException, as trio, gevent and pytest define them."""


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize(
    "wild", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, Unusual]
)
async def test_base_exception_of_a_handler_retries_its_job_and_spares_the_worker(
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
        await seen.runs(3)  # the first job again, and the other
        await until_empty(emails)
    assert {(job.id, job.retry_count) for job in seen.jobs} == {
        ("wild", 0), ("wild", 1), ("tame", 0)
    }  # fmt: skip


# Payloads and queues


async def test_undecodable_job_is_quarantined_and_the_rest_of_its_batch_runs(
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


async def test_payload_of_the_wrong_type_is_quarantined(client: Client, seen: Seen) -> None:
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


async def test_queue_without_a_handler_is_not_served(
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


async def test_outcome_the_server_rejects_fails_its_job_and_delays_no_other(
    client: Client, emails: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No handler can cause this; a bug in the worker could."""
    never = RetryLater(at=float("nan"))
    monkeypatch.setattr(executor, "outcome_of", lambda result, _: never if result else Finish())

    @emails.handler
    async def handle(data: str) -> object:
        return data == "bad"

    await emails.dispatch_many([Dispatch("bad", id="bad"), Dispatch("good", id="good")])
    async with working(client):
        job = await until_state(emails, "bad", "failed")
        await until_empty(emails)
    assert job.error is not None
    assert job.error.type == "EndingRefused"
    assert (await emails.counts()).failed == 1


async def test_jobs_without_a_thread_are_released_and_run_later(
    monkeypatch: pytest.MonkeyPatch, emails: Queue, client: Client
) -> None:
    """As in a container that limits the number of processes and threads."""
    ran: list[str] = []
    refused, start = 2, threading.Thread.start

    @emails.handler
    def handle(data: Any, job: Job) -> None:
        ran.append(job.id)

    def start_some(thread: threading.Thread) -> None:
        nonlocal refused
        if thread.name == "queasy-function" and refused:
            refused -= 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    async with working(client):
        ids = [job.id for job in await emails.dispatch_many(range(4))]
        await until_empty(emails)
    assert sorted(ran) == sorted(ids)
    assert not refused


async def test_more_outcomes_than_one_call_may_carry_take_a_few_calls(
    server: Server, emails: Queue, client: Client
) -> None:
    """Bug: the server refused all of them in one call, and each was then reported by itself."""
    over, running = asyncio.Event(), 0

    def refused() -> int:
        with server.client() as admin:
            errors = admin.info("errorstats")
            return sum(errors[name]["count"] for name in errors if "QUEASY" in name)

    @emails.handler(size=1)
    async def handle(data: Any) -> None:
        nonlocal running
        running += 1
        await over.wait()

    async with working(client, capacity=1500):
        before = refused()
        await emails.dispatch_many(range(1500))
        async with asyncio.timeout(PATIENCE):
            while running < 1500:
                await asyncio.sleep(0.01)
        over.set()
        await until_empty(emails)
        assert refused() == before
