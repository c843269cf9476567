"""`node.Queue`: the protocol from Python, with a client that awaits and one that does not."""

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta

import pytest

from queasy import (
    Client,
    InvalidInput,
    InvalidOption,
    InvalidPayload,
    InvalidQueue,
    SyncClient,
    UndecodablePayload,
)
from queasy.interop import node
from tests.interop.node.harness import NodeQueue

FAR = 60.0


@pytest.fixture
def emails(client: Client, foreign: NodeQueue) -> node.Queue[Client]:
    return node.Queue(client, foreign.key[1:-1])


def now_ms() -> int:
    return round(time.time() * 1000)


async def test_job_of_another_client_is_taken_with_its_data_and_finished(
    emails: node.Queue[Client], foreign: NodeQueue
) -> None:
    foreign.dispatch("a", 0, '{"to":"x@example.org"}')
    (job,) = await emails.dequeue(10, expires_in=FAR)
    assert (job.id, job.data) == ("a", {"to": "x@example.org"})
    assert (job.retry_count, job.stall_count) == (0, 0)
    assert await emails.counts() == (0, 0, 1)
    assert await emails.bump(job, expires_in=FAR)
    assert await emails.finish(job)
    assert not await emails.finish(job)
    assert await emails.counts() == (0, 0, 0)


async def test_job_of_ours_is_taken_by_another_client(
    emails: node.Queue[Client], foreign: NodeQueue
) -> None:
    id_ = await emails.dispatch({"to": "ü"})
    ((job),) = foreign.dequeue("c", now_ms())
    assert job["id"] == id_
    assert json.loads(job["data"]) == {"to": "ü"}
    assert await emails.dispatch({"to": "y"}, id=id_) == id_
    assert await emails.counts() == (0, 1, 1)
    assert foreign.finish(id_) == 1
    assert await emails.counts() == (1, 0, 0)
    assert await emails.cancel(id_)
    assert not await emails.cancel(id_)


async def test_options_of_a_dispatch_are_those_of_the_protocol(
    emails: node.Queue[Client], foreign: NodeQueue
) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    await emails.dispatch(1, id="a", run_at=at)
    assert foreign.score() == round(at.timestamp() * 1000)
    await emails.dispatch(2, id="a", run_at=at + timedelta(1), update_run_at="if_earlier")
    await emails.dispatch(3, id="a", update_data=False, update_run_at="if_later")
    assert foreign.score() == round(at.timestamp() * 1000)
    assert foreign.waiting()["data"] == "2"
    assert await emails.dequeue() == []
    await emails.dispatch(3, id="a", update_data=False)
    (job,) = await emails.dequeue()
    assert job.data == 2


async def test_retry_waits_and_counts(emails: node.Queue[Client], foreign: NodeQueue) -> None:
    await emails.dispatch(1, id="a")
    (job,) = await emails.dequeue()
    assert job.backoff == 2.0
    assert await emails.retry(job, delay=0)
    (job,) = await emails.dequeue()
    assert (job.retry_count, job.backoff) == (1, 4.0)
    before = now_ms()
    assert await emails.retry(job)
    score = foreign.score()
    assert score is not None
    assert before + 4000 <= score <= now_ms() + 4001
    assert not await emails.retry(job)
    with pytest.raises(InvalidOption, match="got both"):
        await emails.retry(job, delay=1, run_at=FAR)


async def test_failed_job_is_in_the_fail_queue_with_its_data_and_error(
    emails: node.Queue[Client],
) -> None:
    class Refused(Exception):
        def __init__(self) -> None:
            super().__init__("no such address")
            self.code, self.password = 550, "hidden"

    await emails.dispatch({"to": "x"}, id="a")
    (job,) = await emails.dequeue()
    assert await emails.fail(job, Refused())
    assert not await emails.fail(job, Refused())
    (failed,) = await emails.fail_queue.dequeue(10)
    id_, data, error = failed.data
    assert (id_, data, error["name"], error["message"]) == (
        "a", {"to": "x"}, "Refused", "no such address",
    )  # fmt: skip
    assert (error["code"], error["password"]) == (550, "[redacted]")
    with pytest.raises(InvalidOption, match="fail queue"):
        await emails.fail_queue.fail(failed, "again")
    with pytest.raises(InvalidQueue, match="fail queue"):
        _ = emails.fail_queue.fail_queue
    assert await emails.fail_queue.finish(failed)


async def test_data_that_is_not_json_is_refused_by_data_and_can_be_failed(
    emails: node.Queue[Client], foreign: NodeQueue
) -> None:
    foreign.dispatch("a", 0, "{not json")
    (job,) = await emails.dequeue()
    assert job.payload == b"{not json"
    with pytest.raises(UndecodablePayload, match="'a'"):
        _ = job.data
    assert await emails.fail(job, {"message": "broken"})
    (failed,) = await emails.fail_queue.dequeue()
    assert failed.data == ["a", "{not json", {"message": "broken"}]


async def test_lost_jobs_are_refused_and_run_elsewhere(emails: node.Queue[Client]) -> None:
    await emails.dispatch(1, id="a")
    (late,) = await emails.dequeue(expires_in=0.001)
    (job,) = await emails.dequeue(timeout=10, expires_in=FAR)
    assert (job.id, job.stall_count) == ("a", 1)
    assert not await emails.bump(late)
    assert not await emails.finish(late)
    assert not await emails.retry(late, delay=0)
    assert not await emails.fail(late, "late")
    assert await emails.counts() == (0, 0, 1)
    assert await emails.finish(job)


async def test_dequeue_waits_for_a_job_that_comes_later(emails: node.Queue[Client]) -> None:
    assert await emails.dequeue() == []
    assert await emails.dequeue(timeout=0.05) == []
    waiting = asyncio.create_task(emails.dequeue(timeout=30))
    await asyncio.sleep(0)
    await emails.dispatch(1, id="a")
    (job,) = await waiting
    assert job.id == "a"


async def test_jobs_of_a_dequeue_that_is_cancelled_return_at_once(
    emails: node.Queue[Client],
) -> None:
    for number in range(20):
        await emails.dispatch(number, id="a")
        taking = asyncio.create_task(emails.dequeue(expires_in=FAR))
        await asyncio.sleep(0)
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        assert taking.cancelled()
        (job,) = await emails.dequeue(timeout=5, expires_in=FAR)
        assert await emails.finish(job)


async def test_arguments_are_refused_before_anything_is_written(
    emails: node.Queue[Client], foreign: NodeQueue, client: Client
) -> None:
    with pytest.raises(InvalidPayload):
        await emails.dispatch(object())
    for options in ({"update_run_at": "later"}, {"update_data": 1}, {"reset_counts": "no"}):
        with pytest.raises(InvalidOption):
            await emails.dispatch(1, **options)  # type: ignore[arg-type]
    for bad in ("", "a{b", "{}", "{a}b", 7):
        with pytest.raises(InvalidQueue):
            node.Queue(client, bad)  # type: ignore[arg-type]
    for call in (
        lambda: emails.dispatch(1, run_at=1),
        lambda: emails.dispatch(1, id=""),
        lambda: emails.dequeue(0),
        lambda: emails.dequeue(expires_in=0),
        lambda: emails.finish("a"),  # type: ignore[arg-type]
        lambda: emails.cancel(""),
    ):
        with pytest.raises(InvalidInput):
            await call()
    assert foreign.keys() == {}


def test_names_in_braces_are_keys(sync_client: SyncClient) -> None:
    assert node.Queue(sync_client, "emails").prefix == "{emails}"
    assert node.Queue(sync_client, "{emails}").prefix == "{emails}"
    assert node.Queue(sync_client, "emails").fail_queue.prefix == "{emails}-fail"


def test_sync_client_has_the_same_methods(sync_client: SyncClient, foreign: NodeQueue) -> None:
    emails = node.Queue(sync_client, foreign.key)
    assert emails.dispatch([1], id="a") == "a"
    (job,) = emails.dequeue(timeout=1)
    assert emails.bump(job)
    assert emails.retry(job, delay=0)
    (job,) = emails.dequeue()
    assert emails.fail(job, ValueError("no"))
    (failed,) = emails.fail_queue.dequeue()
    assert failed.data == ["a", [1], {"name": "ValueError", "message": "no"}]
    assert emails.fail_queue.finish(failed)
    assert emails.counts() == (0, 0, 0)
