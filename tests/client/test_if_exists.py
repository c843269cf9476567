"""Dispatches that leave a job that exists as it is."""

import asyncio

import pytest

from queasy import Client, Dispatch, InvalidOption, JobOptions, SyncClient
from tests.servers import Server


async def test_skip_creates_an_absent_job_as_any_dispatch_does(client: Client) -> None:
    queue = client.queue("q")
    done = await queue.dispatch(
        "one", id="a", delay=60, options=JobOptions(max_retries=3), if_exists="skip"
    )
    assert (done.id, done.status) == ("a", "created")
    job = await queue.get("a")
    assert job is not None
    assert (job.data, job.state, job.options.max_retries) == ("one", "scheduled", 3)


async def test_skip_leaves_a_waiting_job_as_it_is(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch("one", id="a", delay=60)
    before = await queue.get("a")
    done = await queue.dispatch("two", id="a", options=JobOptions(timeout=1), if_exists="skip")
    assert (done.id, done.status) == ("a", "exists")
    assert await queue.get("a") == before


async def test_skip_of_a_running_id_holds_nothing_and_runs_nothing_again(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch("one", id="a")
    async with queue.lease() as lease:
        assert lease.data == "one"
        assert (await queue.dispatch("two", id="a", if_exists="skip")).status == "exists"
        assert (await queue.counts()).blocked == 0
    assert await queue.lease(timeout=0) is None
    assert await queue.get("a") is None


async def test_skip_leaves_a_held_dispatch_as_it_is(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch("one", id="a")
    async with queue.lease():
        assert (await queue.dispatch("two", id="a")).status == "blocked"
        assert (await queue.dispatch("three", id="a", if_exists="skip")).status == "exists"
    async with queue.lease(timeout=5) as lease:
        assert lease is not None
        assert lease.data == "two"


async def test_skip_dispatches_an_id_again_that_has_ended(client: Client) -> None:
    queue = client.queue("q")
    for end in ("complete", "fail"):
        assert (await queue.dispatch(1, id="a", if_exists="skip")).status == "created"
        lease = await queue.lease(timeout=5)
        assert lease is not None
        await getattr(lease, end)()
    assert (await queue.dispatch(1, id="a", if_exists="skip")).status == "created"


async def test_skip_is_chosen_for_each_of_many_jobs(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch("old", id="a", delay=60)
    jobs = [
        Dispatch("new", id="a", if_exists="skip"),
        Dispatch("new", id="b", if_exists="skip"),
        Dispatch("newer", id="b", if_exists="skip"),
        Dispatch("newest", id="b", if_exists="update"),
    ]
    done = await queue.dispatch_many(jobs)
    assert [one.status for one in done] == ["exists", "created", "exists", "updated"]


async def test_concurrent_skips_of_one_id_create_one_job(
    client: Client, server: Server, prefix: str
) -> None:
    async with Client(server.url, prefix=prefix) as other:
        queues = client.queue("q"), other.queue("q")
        done = await asyncio.gather(
            *(queues[n % 2].dispatch(n, id="a", if_exists="skip") for n in range(50))
        )
    statuses = [one.status for one in done]
    assert sorted(statuses) == ["created"] + ["exists"] * 49
    job = await queues[0].get("a")
    assert job is not None
    assert job.data == statuses.index("created")


async def test_skip_with_an_update_is_refused(client: Client) -> None:
    queue = client.queue("q")
    with pytest.raises(InvalidOption, match=r"update_run_at is given, got 'skip'.* leave out"):
        await queue.dispatch(1, id="a", if_exists="skip", update_run_at="if_later")
    assert await queue.get("a") is None


def test_sync_queue_skips_a_running_id(sync_client: SyncClient) -> None:
    queue = sync_client.queue("q")
    queue.dispatch("one", id="a")
    lease = queue.lease(timeout=5)
    assert lease is not None
    assert queue.dispatch("two", id="a", if_exists="skip").status == "exists"
    assert lease.complete()
    assert queue.lease(timeout=0) is None
