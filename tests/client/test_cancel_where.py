"""Cancelling all jobs for which a function returns True."""

import asyncio
from typing import Any

import pytest

from queasy import (
    Client,
    Dispatch,
    InvalidOption,
    Job,
    PredicateFailed,
    Queue,
    SyncClient,
    UndecodablePayload,
)


async def _ids(queue: Queue, state: Any = "waiting") -> list[str]:
    return [job.id async for job in queue.jobs(state)]


async def test_cancel_where_cancels_the_jobs_it_chose_and_no_others(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch_many(Dispatch(n, id=str(n)) for n in range(250))
    await queue.dispatch(250, id="250", delay=3600)
    assert await queue.cancel_where(lambda job: job.data % 10 == 0) == 26
    assert await _ids(queue) == [str(n) for n in range(250) if n % 10]
    assert await queue.cancel_where(lambda job: job.data % 10 == 0) == 0


async def test_cancel_where_stops_at_its_limit(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch_many(Dispatch(n, id=str(n)) for n in range(350))
    assert await queue.cancel_where(lambda _: True, limit=0) == 0
    assert await queue.cancel_where(lambda job: job.data % 2 == 1, limit=101) == 101
    odd = [id_ for id_ in await _ids(queue) if int(id_) % 2]
    assert odd == [str(n) for n in range(203, 350, 2)], "the first ones are cancelled"


async def test_cancel_where_searches_only_the_state_given(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch("due", id="due")
    await queue.dispatch("later", id="later", delay=3600)
    assert await queue.cancel_where(lambda _: True, state="scheduled") == 1
    assert await _ids(queue) == ["due"]
    assert await queue.cancel_where(lambda _: True, state="due") == 1
    assert await _ids(queue) == []


async def test_cancel_where_lets_runs_continue_unless_asked(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch("runs", id="a")
    async with queue.lease() as lease:
        await queue.dispatch("held", id="a")
        assert await queue.cancel_where(lambda _: True) == 1, "the blocked dispatch"
        assert await _ids(queue, "blocked") == []
        assert await lease.extend(60)
        assert not lease.cancelled
        assert await queue.cancel_where(lambda job: job.data == "other", running=True) == 0
        assert await queue.cancel_where(lambda job: job.data == "runs", running=True) == 1
        assert await lease.extend(60)
        assert lease.cancelled
        await lease.cancel()


async def test_run_that_was_asked_to_end_is_not_counted_again(client: Client) -> None:
    """Bug: a program that called it until it returned 0, as the guide said, did so without end."""
    queue = client.queue("q")
    await queue.dispatch("runs", id="a")
    async with queue.lease() as lease:
        assert await queue.cancel_where(lambda _: True, running=True) == 1
        await queue.dispatch("held", id="a")
        assert await queue.cancel_where(lambda _: True, running=True) == 1, "the held dispatch"
        assert await queue.cancel_where(lambda _: True, running=True) == 0
        await lease.cancel()


async def test_chosen_blocked_dispatch_does_not_cancel_the_run_before_it(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch("runs", id="a")
    async with queue.lease() as lease:
        await queue.dispatch("held", id="a")
        assert await queue.cancel_where(lambda job: job.data == "held", running=True) == 1
        assert await _ids(queue, "blocked") == []
        assert await lease.extend(60)
        assert not lease.cancelled


async def test_predicate_that_raises_stops_and_says_how_many_were_cancelled(
    client: Client,
) -> None:
    queue = client.queue("q")
    await queue.dispatch_many(Dispatch(n, id=str(n)) for n in range(300))

    def even(job: Job) -> bool:
        if job.data == 151:
            raise KeyError("colour")
        return job.data % 2 == 0

    with pytest.raises(PredicateFailed, match=r"'q'.*'151'.*KeyError.* 50 jobs") as raised:
        await queue.cancel_where(even)
    assert raised.value.cancelled == 50
    assert isinstance(raised.value.__cause__, KeyError)
    left = await _ids(queue)
    assert left == [str(n) for n in range(300) if n >= 100 or n % 2], "all of the second page"


async def test_predicate_that_reads_undecodable_data_stops(client: Client) -> None:
    raw, queue = client.queue("q", codec="raw"), client.queue("q")
    await raw.dispatch(b"{", id="torn")
    await queue.dispatch(1, id="one")
    with pytest.raises(PredicateFailed, match=r"'torn'.*UndecodablePayload") as raised:
        await queue.cancel_where(lambda job: job.data == 1)
    assert isinstance(raised.value.__cause__, UndecodablePayload)
    assert await queue.cancel_where(lambda job: job.id == "torn") == 1, "it need not read the data"
    assert await _ids(queue) == ["one"]


@pytest.mark.parametrize("answer", [None, 1, "yes", asyncio.Future])
async def test_predicate_must_return_true_or_false(client: Client, answer: Any) -> None:
    queue = client.queue("q")
    await queue.dispatch(1)
    with pytest.raises(PredicateFailed, match="expected the predicate to return True or False"):
        await queue.cancel_where(lambda _: answer)
    assert (await queue.counts()).waiting == 1


async def test_cancel_where_refuses_what_it_cannot_do(client: Client) -> None:
    queue = client.queue("q")

    async def choose(job: Job) -> bool:
        return True

    with pytest.raises(InvalidOption, match="plain function"):
        await queue.cancel_where(choose)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="expected a function"):
        await queue.cancel_where("a")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="running: expected True with state='active'"):
        await queue.cancel_where(lambda _: True, state="active")
    with pytest.raises(InvalidOption, match="state: expected"):
        await queue.cancel_where(lambda _: True, state="failed")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="limit"):
        await queue.cancel_where(lambda _: True, limit=-1)


def test_sync_cancel_where_does_the_same(sync_client: SyncClient) -> None:
    queue = sync_client.queue("q")
    queue.dispatch_many(Dispatch(n, id=str(n)) for n in range(150))
    assert queue.cancel_where(lambda job: job.data >= 100) == 50
    assert queue.counts().waiting == 100
    with queue.lease() as lease:  # type: ignore[union-attr]
        assert queue.cancel_where(lambda job: job.data == 0, state="active", running=True) == 1
        assert lease.extend(60)
        assert lease.cancelled
        lease.cancel()
