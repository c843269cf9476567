"""Bad input is refused with a typed error before anything is written."""

import math
from typing import Any

import pytest

from queasy import (
    Client,
    Dispatch,
    InvalidId,
    InvalidInput,
    InvalidOption,
    InvalidPayload,
    InvalidTime,
    JobError,
    JobOptions,
    QueasyError,
    ServerError,
    SyncClient,
)
from tests.servers import HOST, Server
from tests.unit.test_codec import BAD_DATA
from tests.unit.test_dispatch import BAD_DISPATCHES

NAN, INF = math.nan, math.inf


async def test_bad_dispatch_is_refused_and_nothing_is_written(client: Client) -> None:
    queue = client.queue("q")
    for arguments, error, says in BAD_DISPATCHES:
        with pytest.raises(error, match=says):
            await queue.dispatch(1, **arguments)
        with pytest.raises(error, match=says):
            await queue.dispatch_many([Dispatch(1, **arguments)])
    counts = await queue.counts()
    assert (counts.waiting, counts.broken) == (0, 0)


async def test_an_unknown_durability_is_refused(client: Client) -> None:
    with pytest.raises(InvalidOption, match="fsynced"):
        await client.queue("q").dispatch(1, durability="sure")  # type: ignore[arg-type]


async def test_data_that_cannot_be_encoded_is_refused_and_nothing_is_written(
    client: Client,
) -> None:
    queue = client.queue("q")
    for data in BAD_DATA:
        with pytest.raises(InvalidPayload, match="cannot be encoded"):
            await queue.dispatch(data)
    assert (await queue.counts()).waiting == 0


async def test_unusual_json_values_come_back_unchanged(client: Client) -> None:
    queue = client.queue("q")
    for data in (None, {}, [], "", 0, False, "null", {"a": None}, [None, 1.5], 2**63):
        await queue.dispatch(data)
        async with queue.lease() as lease:
            assert lease is not None
            assert lease.data == data


async def test_a_payload_over_the_limit_is_refused(server: Any, prefix: str) -> None:
    async with Client(server.url, prefix=prefix, max_payload=1000) as client:
        queue = client.queue("q", codec="raw")
        await queue.dispatch(b"x" * 1000)
        with pytest.raises(InvalidPayload, match="1001 bytes, the limit is 1000"):
            await queue.dispatch(b"x" * 1001)
        with pytest.raises(InvalidPayload, match="expected bytes"):
            await queue.dispatch("text")
        assert (await queue.counts()).waiting == 1


async def test_default_payload_limit_is_one_mebibyte(client: Client) -> None:
    queue = client.queue("q", codec="raw")
    await queue.dispatch(b"x" * 1024 * 1024)
    with pytest.raises(InvalidPayload):
        await queue.dispatch(b"x" * (1024 * 1024 + 1))


async def test_bad_arguments_of_other_calls_are_refused(client: Client) -> None:
    queue = client.queue("q")
    bad: list[tuple[Any, type[QueasyError]]] = [
        (lambda: queue.cancel(""), InvalidId),
        (lambda: queue.get(5), InvalidId),  # type: ignore[arg-type]
        (lambda: queue.requeue([""]), InvalidId),
        (lambda: queue.requeue("a", kind="lost"), InvalidOption),  # type: ignore[arg-type]
        (lambda: queue.drop("a", kind="waiting"), InvalidOption),  # type: ignore[arg-type]
        (lambda: queue.trim(-1), InvalidOption),
        (lambda: queue.configure(failed_limit=-1), InvalidOption),
        (lambda: anext(queue.jobs("asleep")), InvalidOption),  # type: ignore[arg-type]
        (lambda: queue.evict("no such:client"), InvalidInput),
    ]
    for call, error in bad:
        with pytest.raises(error):
            await call()
    for seconds in (0, -1, NAN, INF, "5"):
        with pytest.raises(InvalidInput):
            queue.lease(seconds)  # type: ignore[arg-type]
    with pytest.raises(InvalidTime, match="timeout"):
        queue.lease(timeout=-1)
    await queue.dispatch(1)
    async with queue.lease() as lease:
        assert lease is not None
        with pytest.raises(InvalidTime, match="both"):
            await lease.retry(at=1.0, after=1)
        with pytest.raises(InvalidTime):
            await lease.extend(-5)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (object(), "type object"),
        (b"raw", "no bytes"),
        (float("nan"), "NaN"),
        ({"deep": [None, float("inf")]}, "NaN"),
        ("x" * 2_000_000, "2000002 bytes"),
        (Dispatch(1, id="a", delay=-1), "delay"),
    ],
)
async def test_bad_job_among_many_is_named_by_its_index(
    client: Client, bad: Any, reason: str
) -> None:
    queue = client.queue("q")
    for jobs in ([*range(1234), bad, 1], (one for one in (*range(1234), bad, 1))):
        with pytest.raises(InvalidInput, match=rf"^jobs\[1234\]: .*{reason}"):
            await queue.dispatch_many(jobs)
    assert (await queue.counts()).waiting == 1234, "1234 of the generator, none of the list"


@pytest.mark.parametrize("jobs", ["text", b"bytes", {"to": "x"}, 5, None])
async def test_dispatch_many_of_a_single_job_is_refused(client: Client, jobs: Any) -> None:
    with pytest.raises(InvalidInput, match="dispatch_many"):
        await client.queue("q").dispatch_many(jobs)


async def test_jobs_before_an_error_in_the_generator_are_dispatched(client: Client) -> None:
    def jobs() -> Any:
        yield from range(1500)
        raise RuntimeError("the database went away")

    queue = client.queue("q")
    with pytest.raises(RuntimeError, match="database"):
        await queue.dispatch_many(jobs())
    assert (await queue.counts()).waiting == 1500


HUGE = 10**400


async def test_arguments_of_the_wrong_type_raise_invalid_input(client: Client) -> None:
    queue = client.queue("q")
    calls: list[Any] = [
        lambda: queue.configure(limits={}),  # type: ignore[arg-type]
        lambda: queue.requeue(5),  # type: ignore[arg-type]
        lambda: queue.requeue(None),  # type: ignore[arg-type]
        lambda: queue.drop([queue]),  # type: ignore[list-item]
        lambda: queue.evict(None),  # type: ignore[arg-type]
        lambda: queue.evict("\ud800"),
        lambda: queue.dispatch(1, delay=HUGE),
        lambda: queue.dispatch(1, run_at=HUGE),
        lambda: queue.cancel("\ud800"),
    ]
    for call in calls:
        with pytest.raises(InvalidInput):
            await call()
    for seconds in (HUGE, None):
        with pytest.raises(InvalidInput):
            queue.lease(seconds)  # type: ignore[arg-type]


class Unshowable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


async def test_an_error_that_cannot_be_shown_still_retries_the_job(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1, id="a", options=JobOptions(min_backoff=60))
    with pytest.raises(Unshowable):
        async with queue.lease():
            raise Unshowable
    job = await queue.get("a")
    assert job is not None
    assert job.readable
    assert job.retry_count == 1
    odd = JobError(message=5, type="\ud800", kind="odd")  # type: ignore[arg-type]
    await queue.dispatch(1, id="a", reset_counts=False)
    lease = await queue.lease()
    assert await lease.retry(error=odd)
    job = await queue.get("a")
    assert job is not None
    assert job.error is not None
    assert (job.error.message, job.error.kind) == ("5", "retriable")


async def test_fail_job_id_may_exceed_the_limit_for_ids(client: Client) -> None:
    queue = client.queue("q")
    await queue.configure(fail_handler=True)
    await queue.dispatch(1, id="x" * 512)
    await (await queue.lease()).fail()
    (failure,) = [job async for job in queue.fail_queue.jobs()]
    assert len(failure.id) > 512
    assert await queue.fail_queue.get(failure.id)
    assert await queue.fail_queue.cancel(failure.id)


async def test_database_that_the_server_does_not_have_is_explained(server: Server) -> None:
    for make in (Client, SyncClient):
        client = make(f"redis://{HOST}:{server.port}/999")
        with pytest.raises(
            ServerError, match=r"does not have the database .*host:6379/0"
        ) as caught:
            await client.connect() if isinstance(client, Client) else client.connect()
        assert "databases" in str(caught.value)
