"""Dispatching jobs, and cancelling those that wait."""

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from queasy import Client, Dispatch, InvalidPayload, JobOptions, NotDurable, RawCodec
from queasy.codec import JsonCodec
from tests.servers import Server, ServerKind


async def test_a_job_is_dispatched_leased_and_completed(client: Client) -> None:
    queue = client.queue("emails")
    dispatched = await queue.dispatch({"to": "x"}, id="welcome-42")
    assert (dispatched.id, dispatched.status) == ("welcome-42", "created")
    lease = await queue.lease(seconds=60, timeout=5)
    assert lease is not None
    assert lease.data == {"to": "x"}
    assert lease.job.id == "welcome-42"
    assert await lease.complete()
    assert await queue.get("welcome-42") is None
    counts = await queue.counts()
    assert (counts.waiting, counts.active, counts.failed) == (0, 0, 0)


async def test_an_id_is_made_up_when_none_is_given(client: Client) -> None:
    queue = client.queue("q")
    ids = {(await queue.dispatch("the same")).id for _ in range(100)}
    assert len(ids) == (await queue.counts()).waiting == 100


async def test_a_second_dispatch_of_an_id_updates_it(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch("one", id="a", delay=60)
    assert (await queue.dispatch("two", id="a", update_run_at=False)).status == "updated"
    job = await queue.get("a")
    assert job is not None
    assert job.data == "two"
    assert job.state == "scheduled"


async def test_dispatch_with_all_updates_off_leaves_the_job_unchanged(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch("one", id="a", delay=60)
    result = await queue.dispatch("two", id="a", update_data=False, update_run_at=False)
    assert result.status == "unchanged"
    job = await queue.get("a")
    assert job is not None
    assert job.data == "one"


@pytest.mark.parametrize(
    ("mode", "later", "earlier"),
    [(True, 120, 30), (False, 60, 60), ("if_later", 120, 60), ("if_earlier", 60, 30)],
)
async def test_run_at_is_updated_by_the_chosen_mode(
    client: Client, mode: bool | str, later: float, earlier: float
) -> None:
    queue = client.queue("q")
    now = time.time()
    for given, expected in ((120, later), (30, earlier)):
        await queue.dispatch(1, id="a", run_at=now + 60)
        await queue.dispatch(1, id="a", run_at=now + given, update_run_at=mode)  # type: ignore[arg-type]
        job = await queue.get("a")
        assert job is not None
        assert job.run_at_epoch == pytest.approx(now + expected, abs=0.002)
        await queue.cancel("a")


async def test_run_at_may_be_a_datetime_and_delay_a_timedelta(client: Client) -> None:
    queue = client.queue("q")
    when = datetime.now(UTC) + timedelta(hours=1)
    await queue.dispatch(1, id="at", run_at=when)
    await queue.dispatch(1, id="in", delay=timedelta(hours=1))
    at, later = await queue.get("at"), await queue.get("in")
    assert at is not None
    assert at.run_at is not None
    assert abs(at.run_at - when) < timedelta(milliseconds=2)
    assert later is not None
    assert later.state == "scheduled"


async def test_each_option_is_updated_independently(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1, id="a", options=JobOptions(max_retries=1, timeout=5))
    await queue.dispatch(1, id="a", options=JobOptions(max_stalls=2))
    job = await queue.get("a")
    assert job is not None
    assert job.options == JobOptions(max_retries=1, timeout=5, max_stalls=2)
    await queue.dispatch(1, id="a", options=JobOptions(max_retries=9), update_options=False)
    await queue.dispatch(1, id="a", update_options={"timeout"})
    job = await queue.get("a")
    assert job is not None
    assert job.options == JobOptions(max_retries=1, max_stalls=2)


async def test_dispatch_many_takes_generators_and_keeps_their_order(client: Client) -> None:
    queue = client.queue("q")
    results = await queue.dispatch_many({"n": n} for n in range(2500))
    assert [result.status for result in results] == ["created"] * 2500
    ids = [job.id async for job in queue.jobs()]
    assert ids == [result.id for result in results]


async def test_dispatch_many_mixes_data_and_dispatches(client: Client) -> None:
    queue = client.queue("q")
    results = await queue.dispatch_many([1, Dispatch(2, id="two"), Dispatch(3, id="two")])
    assert [result.status for result in results] == ["created", "created", "updated"]
    job = await queue.get("two")
    assert job is not None
    assert job.data == 3


async def test_dispatch_many_encodes_data_as_dispatch_does(client: Client) -> None:
    data = [
        {"none": None, "words": "null\nand\tmore"}, None, "null", "", [], 0.5, True, "\u2028é\n",
        {"two": msgspec.Raw(b"[1,\n2]")}, (1, (2,)), datetime(2030, 1, 1, tzinfo=UTC), {3},
    ]  # fmt: skip
    queue = client.queue("q")
    for one in data:
        await queue.dispatch(one)
    one_by_one = [job.payload async for job in queue.jobs()]
    await queue.dispatch_many(data)
    for one in data:
        await queue.dispatch_many([one, one])
    payloads = [job.payload async for job in queue.jobs()]
    assert payloads == [*one_by_one * 2, *(one for one in one_by_one for _ in range(2))]


async def test_dispatch_many_calls_a_custom_codec_for_each_job(client: Client) -> None:
    class Loud(JsonCodec):
        def encode(self, data: object, /) -> bytes:
            return super().encode(str(data).upper())

    class Twice(RawCodec):
        def encode(self, data: bytes, /) -> bytes:
            return super().encode(data * 2)

    for codec, data, payload in ((Loud(), "a", b'"A"'), (Twice(), b"b", b"bb")):
        queue = client.queue(type(codec).__name__, codec)
        await queue.dispatch_many([data])
        assert [job.payload async for job in queue.jobs()] == [payload]


@pytest.mark.parametrize("size", [100_000, 1_000_000])
async def test_dispatch_many_splits_large_data_into_calls_and_keeps_order(
    client: Client, server: Server, size: int
) -> None:
    queue = client.queue("q", codec="raw")
    before = server.client().info("commandstats")["cmdstat_fcall"]["calls"]
    data = [bytes([n]) * size for n in range(12_000_000 // size)]
    results = await queue.dispatch_many(data)
    assert server.client().info("commandstats")["cmdstat_fcall"]["calls"] - before in (3, 4)
    assert [(job.id, job.payload) async for job in queue.jobs()] == [
        (result.id, payload) for result, payload in zip(results, data, strict=True)
    ]


async def test_dispatch_many_of_nothing_does_nothing(client: Client) -> None:
    assert await client.queue("q").dispatch_many([]) == []


async def test_concurrent_dispatches_share_round_trips(client: Client, server: Server) -> None:
    queue = client.queue("q")
    await queue.dispatch(0)
    before = server.client().info("commandstats")["cmdstat_fcall"]["calls"]
    results = await asyncio.gather(*(queue.dispatch(n) for n in range(1000)))
    calls = server.client().info("commandstats")["cmdstat_fcall"]["calls"] - before
    assert len({result.id for result in results}) == 1000
    assert calls <= 5
    assert [job.data async for job in queue.jobs()] == [0, *range(1000)]


async def test_cancelled_dispatch_leaves_concurrent_dispatches_alone(client: Client) -> None:
    queue = client.queue("q")
    tasks = [asyncio.create_task(queue.dispatch(n, id=str(n))) for n in range(10)]
    await asyncio.sleep(0)
    tasks[3].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(result, asyncio.CancelledError) for result in results) == 1
    assert (await queue.counts()).waiting >= 9


@pytest.mark.parametrize("connected", [True, False])
async def test_close_sends_dispatches_in_progress(
    server: Server, prefix: str, connected: bool
) -> None:
    client = Client(server.url, prefix=prefix)
    queue = client.queue("q")
    before = ["before"] if connected else []
    for data in before:
        await queue.dispatch(data)
    tasks = [asyncio.create_task(queue.dispatch(n)) for n in range(50)]
    await asyncio.sleep(0)
    await client.close()
    assert {(await task).status for task in tasks} == {"created"}
    async with Client(server.url, prefix=prefix) as other:
        assert [job.data async for job in other.queue("q").jobs()] == [*before, *range(50)]


async def test_abandoned_dispatch_does_not_overwrite_a_later_one(
    client: Client, server: Server
) -> None:
    queue = client.queue("q")
    await queue.dispatch("before", id="a")
    server.client().client_pause(300, all=False)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await queue.dispatch("given up", id="a")
    await queue.dispatch("next", id="a")
    assert [job.data async for job in queue.jobs()] == ["next"]


async def test_cancelled_dispatch_many_leaves_no_task_and_reads_no_more(
    client: Client, server: Server
) -> None:
    queue = client.queue("q")
    tasks = asyncio.all_tasks()
    read = 0

    def jobs() -> Iterator[int]:
        nonlocal read
        while read < 10_000:
            read += 1
            yield read

    await client.connect()
    server.client().client_pause(300, all=False)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await queue.dispatch_many(jobs())
    assert read < 3_000, "no more than is sent next is held"
    assert {one for one in asyncio.all_tasks() - tasks if "put_all" in repr(one)} == set()
    assert (await queue.dispatch("next")).status == "created"
    assert (await queue.counts()).waiting <= 1_001


async def test_dispatch_many_of_a_generator_keeps_jobs_before_a_refused_one(client: Client) -> None:
    queue = client.queue("q")
    with pytest.raises(InvalidPayload):
        await queue.dispatch_many(n if n < 1500 else object() for n in range(2000))
    assert [job.data async for job in queue.jobs()] == [*range(1500)]
    with pytest.raises(InvalidPayload):
        await queue.dispatch_many([*range(1500), object()])
    assert (await queue.counts()).waiting == 1500, "of a list, nothing"


async def test_cancel_removes_a_waiting_job_and_a_blocked_dispatch(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1, id="a")
    assert await queue.cancel("a")
    assert not await queue.cancel("a")
    await queue.dispatch(1, id="b")
    lease = await queue.lease(timeout=0)
    assert lease is not None
    assert not await queue.cancel("b")
    await queue.dispatch(2, id="b")
    assert await queue.cancel("b")
    await lease.complete()
    assert (await queue.counts()).waiting == 0


async def test_cancel_says_what_became_of_the_job(client: Client) -> None:
    queue = client.queue("q")
    result = await queue.cancel("nobody")
    assert (result.id, result.status, bool(result)) == ("nobody", "absent", False)
    await queue.dispatch(1, id="a")
    result = await queue.cancel("a")
    assert (result.id, result.status, bool(result)) == ("a", "cancelled", True)
    await queue.dispatch(1, id="b")
    async with queue.lease() as lease:
        running = await queue.cancel("b")
        assert (running.status, bool(running)) == ("active", False), "it runs to its end"
        assert not await lease.extend(60) or not lease.cancelled
        await queue.dispatch(2, id="b")
        blocked = await queue.cancel("b")
        assert (blocked.status, bool(blocked)) == ("cancelled", True)
        asked = await queue.cancel("b", running=True)
        assert (asked.status, bool(asked)) == ("requested", True)
        again = await queue.cancel("b", running=True)
        assert (again.status, bool(again)) == ("requested", True)
        await lease.cancel()
    assert (await queue.cancel("b")).status == "absent"


async def test_raw_codec_stores_the_bytes_unchanged(
    client: Client, server: Server, prefix: str
) -> None:
    queue = client.queue("q", codec="raw")
    payload = bytes(range(256))
    await queue.dispatch(payload, id="a")
    assert server.client(decode_responses=False).hget(f"{prefix}:{{q}}:data", "a") == payload
    lease = await queue.lease(timeout=1)
    assert lease is not None
    assert lease.data == payload
    await lease.complete()


async def test_queue_accepts_any_object_as_codec(client: Client) -> None:
    class Backwards:
        def encode(self, data: str) -> bytes:
            return data[::-1].encode()

        def decode(self, payload: bytes) -> str:
            return payload.decode()[::-1]

    for codec in (Backwards(), JsonCodec(str)):
        queue = client.queue("q", codec=codec)
        await queue.dispatch("abc")
        async with queue.lease() as lease:
            assert lease is not None
            assert lease.data == "abc"
    assert RawCodec().decode(b"x") == b"x"


IDS = [
    "a:b",
    "'\"`",
    "snowman ☃",
    "line\nbreak",
    "nul\0nul",
    "x" * 512,
    "{q}",
    " ",
    "~",
    "a:cancel",
]


@pytest.mark.parametrize("id_", IDS)
async def test_ids_with_special_characters_pass_through_every_state(
    client: Client, id_: str
) -> None:
    queue = client.queue("q")
    await queue.configure(fail_handler=True)
    assert (await queue.dispatch(1, id=id_)).id == id_
    async with queue.lease() as lease:
        assert lease is not None
        assert lease.job.id == id_
        await queue.dispatch(2, id=id_)
        await lease.fail("no")
    async with queue.fail_queue.lease() as failure:
        assert failure is not None
        assert failure.job.origin is not None
        assert failure.job.origin.id == id_
    again = await queue.lease(timeout=1)
    assert again is not None
    assert await queue.cancel(id_, running=True)
    assert not await again.extend(5) or again.cancelled
    await again.cancel()
    assert await queue.drop(id_) == 1


@pytest.mark.parametrize("name", ["emails", "a:b", "ünïcode", "x" * 200, "a-fail", "*", "[a]"])
async def test_unusual_queue_names_are_usable(client: Client, name: str) -> None:
    queue = client.queue(name)
    await queue.dispatch(1)
    async with queue.lease() as lease:
        assert lease is not None


async def test_queue_named_like_a_fail_queue_is_separate_from_it(client: Client) -> None:
    emails, other = client.queue("emails"), client.queue("emails-fail")
    await emails.configure(fail_handler=True)
    await emails.dispatch(1)
    lease = await emails.lease()
    assert lease is not None
    await lease.fail()
    assert (await other.counts()).waiting == 0
    assert (await emails.fail_queue.counts()).waiting == 1
    assert emails.fail_queue.name == "{emails}-fail"


async def test_fsynced_dispatch_waits_for_the_disk_or_raises(
    client: Client, kind: ServerKind
) -> None:
    queue = client.queue("q")
    if kind is ServerKind.REDIS:  # 7.0 has no WAITAOF
        with pytest.raises(NotDurable, match=r"accepted, .* WAITAOF, which Redis 7\.2"):
            await queue.dispatch(1, durability="fsynced")
    else:
        assert (await queue.dispatch(1, durability="fsynced")).status == "created"
    assert (await queue.counts()).waiting == 1


async def test_replicated_dispatch_without_a_replica_raises_not_durable(
    server: Server, prefix: str
) -> None:
    async with Client(server.url, prefix=prefix, timeout=0.5) as client:
        queue = client.queue("q")
        with pytest.raises(NotDurable, match=r"accepted, but 0 of 1 replica confirmed"):
            await queue.dispatch(1, durability="replicated")
        assert (await queue.counts()).waiting == 1
