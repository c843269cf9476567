"""Defaults of a queue, for what a dispatch does not say."""

import dataclasses
from typing import Any

import pytest

from queasy import (
    Client,
    Dispatch,
    DispatchDefaults,
    InvalidInput,
    InvalidOption,
    Job,
    JobOptions,
    NotDurable,
    Queue,
    SyncClient,
)
from tests.servers import Server

LATER = DispatchDefaults(update_run_at="if_later", options=JobOptions(max_retries=7, timeout=5))


async def job_of(queue: Queue, id_: str) -> Job:
    job = await queue.get(id_)
    assert job is not None
    return job


async def test_defaults_apply_to_what_a_dispatch_does_not_say(client: Client) -> None:
    queue = client.queue("q", defaults=LATER)
    await queue.dispatch("one", id="a", delay=60)
    assert (await queue.dispatch("two", id="a")).status == "updated"
    job = await job_of(queue, "a")
    assert (job.data, job.state) == ("two", "scheduled")
    assert job.options == JobOptions(max_retries=7, timeout=5)


async def test_what_a_dispatch_says_wins(client: Client) -> None:
    queue = client.queue("q", defaults=LATER)
    await queue.dispatch("one", id="a", delay=60)
    await queue.dispatch("two", id="a", update_run_at=True)
    assert (await job_of(queue, "a")).state == "due"


async def test_options_are_merged_one_by_one(client: Client) -> None:
    queue = client.queue("q", defaults=LATER)
    await queue.dispatch(1, id="a", options=JobOptions(timeout=9, max_stalls=1))
    job = await job_of(queue, "a")
    assert job.options == JobOptions(max_retries=7, timeout=9, max_stalls=1)


async def test_defaults_apply_to_each_of_many_jobs(client: Client) -> None:
    queue = client.queue("q", defaults=LATER)
    await queue.dispatch("one", id="a", delay=60)
    jobs = [Dispatch("two", id="a"), "bare", Dispatch("c", id="c", options=JobOptions(timeout=9))]
    for many in (jobs, iter(jobs)):
        done = await queue.dispatch_many(many)
        assert (await job_of(queue, "a")).state == "scheduled"
        assert (await job_of(queue, done[1].id)).options == LATER.options
        assert (await job_of(queue, "c")).options == JobOptions(max_retries=7, timeout=9)


async def test_default_to_skip_is_overridden_by_a_dispatch(client: Client) -> None:
    queue = client.queue("q", defaults=DispatchDefaults(if_exists="skip"))
    await queue.dispatch("one", id="a")
    assert (await queue.dispatch("two", id="a")).status == "exists"
    with pytest.raises(InvalidOption, match="use if_exists='update'"):
        await queue.dispatch("two", id="a", update_run_at=False)
    done = await queue.dispatch("two", id="a", update_run_at=False, if_exists="update")
    assert done.status == "updated"


async def test_dispatch_that_skips_does_not_use_defaults_about_updates(client: Client) -> None:
    queue = client.queue("q", defaults=LATER)
    assert (await queue.dispatch(1, id="a", if_exists="skip")).status == "created"
    assert (await queue.dispatch(1, id="a", if_exists="skip")).status == "exists"
    assert (await job_of(queue, "a")).options == LATER.options


async def test_default_of_the_counts_is_used(client: Client) -> None:
    queue = client.queue("q", defaults=DispatchDefaults(reset_counts=False))
    await queue.dispatch(1, id="a")
    lease = await queue.lease(timeout=5)
    assert lease is not None
    await lease.retry(after=60)
    await queue.dispatch(2, id="a")
    assert (await job_of(queue, "a")).retry_count == 1
    await queue.dispatch(2, id="a", reset_counts=True)
    assert (await job_of(queue, "a")).retry_count == 0


async def test_default_durability_is_used_by_one_and_many(client: Client) -> None:
    queue = client.queue("q", defaults=DispatchDefaults(durability="replicated"))
    with pytest.raises(NotDurable):  # the server of the tests has no replica
        await queue.dispatch(1)
    with pytest.raises(NotDurable):
        await queue.dispatch_many([1, 2])
    assert (await queue.dispatch(1, durability="ack")).status == "created"
    assert len(await queue.dispatch_many([1], durability="ack")) == 1


async def test_defaults_belong_to_the_object_and_not_to_the_name(client: Client) -> None:
    with_defaults = client.queue("q", defaults=LATER)
    await client.queue("q").dispatch(1, id="a")
    assert (await job_of(with_defaults, "a")).options == JobOptions()
    await with_defaults.fail_queue.dispatch(1, id="f")
    assert (await job_of(with_defaults.fail_queue, "f")).options == JobOptions()


def test_queue_of_another_client_brings_its_name_codec_and_defaults(
    client: Client, sync_client: SyncClient
) -> None:
    """The layout guide used to give the name and the codec, and the defaults were lost."""
    declared = client.queue("q", "raw", defaults=LATER)
    for queue in (sync_client.queue(declared), client.queue(sync_client.queue(declared))):
        assert (queue.name, queue.codec) == ("q", declared.codec)
    queue = sync_client.queue(declared)
    queue.dispatch(b"one", id="a", delay=60)
    queue.dispatch(b"two", id="a")
    job = queue.get("a")
    assert job is not None
    assert (job.data, job.state, job.options) == (b"two", "scheduled", LATER.options)


async def test_sync_queue_is_taken_by_a_client_that_awaits(
    client: Client, sync_client: SyncClient
) -> None:
    queue = client.queue(sync_client.queue("q", defaults=LATER))
    await queue.dispatch("one", id="a", delay=60)
    await queue.dispatch("two", id="a")
    assert (await job_of(queue, "a")).state == "scheduled"


def test_fail_queue_of_another_client_stays_a_fail_queue(
    client: Client, sync_client: SyncClient
) -> None:
    fail_queue = sync_client.queue(client.queue("q").fail_queue)
    assert fail_queue.keys == sync_client.queue("q").fail_queue.keys


def test_queue_of_another_client_keeps_the_prefix_of_this_one(
    client: Client, sync_client: SyncClient, server: Server
) -> None:
    other = Client(server.url, prefix="other")
    assert sync_client.queue(other.queue("q")).keys == client.queue("q").keys


def test_codec_or_defaults_beside_a_queue_are_refused(
    client: Client, sync_client: SyncClient
) -> None:
    declared = client.queue("q", "raw", defaults=LATER)
    for queue in (client.queue, sync_client.queue):
        with pytest.raises(
            InvalidOption, match=r"^codec: expected none beside <Queue q>, which has"
        ):
            queue(declared, "json")
        with pytest.raises(InvalidOption, match=r"^codec and defaults: expected none"):
            queue(declared, "raw", defaults=LATER)
        with pytest.raises(InvalidOption, match="give its name"):
            queue(declared, defaults=DispatchDefaults())


def test_sync_queue_uses_its_defaults(sync_client: SyncClient) -> None:
    queue = sync_client.queue("q", defaults=LATER)
    queue.dispatch(1, id="a", delay=60)
    queue.dispatch_many([Dispatch(2, id="a")])
    job = queue.get("a")
    assert job is not None
    assert (job.data, job.state, job.options) == (2, "scheduled", LATER.options)


def test_defaults_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        LATER.update_data = False  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"update_run_at": "never"}, "update_run_at"),
        ({"update_data": 1}, "update_data"),
        ({"update_options": ["colour"]}, "colour"),
        ({"reset_counts": "no"}, "reset_counts"),
        ({"if_exists": "replace"}, "if_exists"),
        ({"if_exists": "skip", "update_data": False}, "leave out update_data"),
        ({"options": {"timeout": 5}}, "JobOptions"),
        ({"durability": "sure"}, "durability"),
    ],
)
def test_bad_default_is_refused_where_it_is_written(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        DispatchDefaults(**arguments)


def test_defaults_of_another_type_are_refused(sync_client: SyncClient) -> None:
    with pytest.raises(InvalidOption, match="defaults: expected DispatchDefaults, got dict"):
        sync_client.queue("q", defaults={"update_data": False})  # type: ignore[arg-type]
