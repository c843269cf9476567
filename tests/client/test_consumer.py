"""Consumers: several leases under one heartbeat, for a program with a loop of its own."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from queasy import (
    Client,
    ClientClosed,
    Consumer,
    ConsumerLease,
    Dispatch,
    InvalidOption,
    InvalidQueue,
    JobOptions,
    QueasyError,
    Queue,
    UndecodablePayload,
    Unreachable,
)
from tests.client.waiting import until_waiting
from tests.proxy import Proxy
from tests.servers import Server, ServerKind, free_port, start_server


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Returns when the condition holds. The test's timeout is the limit."""
    while not await condition():
        await asyncio.sleep(0.01)


async def take(jobs: Consumer, count: int) -> list[ConsumerLease]:
    return [await anext(jobs) for _ in range(count)]


async def until_due(queue: Queue, count: int) -> None:
    async def are_due() -> bool:
        return (await queue.counts()).due == count

    await until(are_due)


async def test_one_heartbeat_keeps_ten_leases_longer_than_their_length(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch_many(range(10))
    async with queue.consumer(concurrency=10, lease=3) as jobs:
        leases = await take(jobs, 10)
        (holder,) = await queue.clients()
        assert (holder.id, holder.leases) == (jobs.id, 10)
        ends = time.monotonic() + 2 * 3
        while time.monotonic() < ends:  # other clients return the jobs of dead ones
            assert await queue.lease(timeout=0.5) is None
        assert not any(lease.lost or lease.should_stop.is_set() for lease in leases)
        assert all([await lease.complete() for lease in leases])
    assert await queue.clients() == []


async def test_consumer_holds_no_more_leases_than_its_concurrency(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch_many(range(10))
    async with queue.consumer(concurrency=3) as jobs:
        held = await take(jobs, 3)
        done = 0
        while done < 7:
            following = asyncio.create_task(anext(jobs))
            await queue.get("nothing")  # a round trip on the same connection
            assert not following.done()
            assert (await queue.counts()).active == 3
            assert await held.pop(0).complete()
            done += 1
            held.append(await following)
        assert (await queue.counts()).active == 3
        for lease in held:
            await lease.complete()


async def test_leases_that_are_not_begun_count_as_held(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch_many(range(10))
    async with queue.consumer(concurrency=4) as jobs:
        (begun,) = await take(jobs, 1)
        assert (await queue.counts()).active == 4
        await begun.complete()
        await take(jobs, 3)
        assert (await queue.counts()).active <= 4


async def test_idle_consumer_is_woken_for_a_job(client: Client) -> None:
    queue = client.queue("q")
    async with queue.consumer() as jobs:
        following = asyncio.create_task(anext(jobs))
        await until_waiting(queue)
        await queue.dispatch("now")
        lease = await asyncio.wait_for(following, 5)
        assert lease.data == "now"
        await lease.complete()


async def test_stop_releases_what_was_not_begun_and_counts_nothing(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch_many([Dispatch(n, id=str(n)) for n in range(5)])
    seen: list[Any] = []
    async with queue.consumer(concurrency=5) as jobs:
        async for lease in jobs:
            jobs.stop()
            seen.append(lease)
        assert len(seen) == 1
        await until_due(queue, 4)
        waiting = [job async for job in queue.jobs()]
        assert [job.id for job in waiting] == ["1", "2", "3", "4"]
        assert {(job.retry_count, job.stall_count) for job in waiting} == {(0, 0)}
        assert (await queue.counts()).active == 1  # the one that was begun stays alive
        assert await seen[0].complete()


async def test_leaving_the_block_releases_all_that_has_not_ended(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch_many([Dispatch(n, id=str(n)) for n in range(3)])
    async with queue.consumer(concurrency=3) as jobs:
        (begun,) = await take(jobs, 1)
    assert [job.id async for job in queue.jobs()] == ["0", "1", "2"]
    assert {(job.retry_count, job.stall_count) async for job in queue.jobs()} == {(0, 0)}
    assert (begun.ended, begun.lost, begun.should_stop.is_set()) == ("lost", True, True)
    assert not await begun.complete()
    assert (await queue.counts()).clients == 0


async def test_holder_of_a_lease_sees_that_its_cancel_was_requested(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1, id="a")
    async with queue.consumer() as jobs:
        (lease,) = await take(jobs, 1)
        assert not lease.cancelled
        assert await queue.cancel("a", running=True)
        await asyncio.wait_for(lease.should_stop.wait(), 5)
        assert (lease.cancelled, lease.lost) == (True, False)
        assert await lease.cancel()
    assert await queue.get("a") is None


async def test_heartbeat_brings_a_cancel_whose_message_was_lost(
    proxy: Proxy, client: Client, prefix: str
) -> None:
    await client.queue("q").dispatch(1, id="a")
    async with Client(proxy.url, prefix=prefix) as other, other.queue("q").consumer() as jobs:
        (lease,) = await take(jobs, 1)
        proxy.withhold(b"cancel:")
        assert await client.queue("q").cancel("a", running=True)
        await asyncio.wait_for(lease.should_stop.wait(), 10)
        assert lease.cancelled
        await lease.cancel()


async def test_evicted_consumer_loses_its_leases_and_comes_back_under_a_new_id(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    queue = client.queue("q")
    await queue.dispatch(1, id="a")
    async with queue.consumer(concurrency=2) as jobs:
        (lease,) = await take(jobs, 1)
        assert await queue.evict(jobs.id, died=False) == 1
        await asyncio.wait_for(lease.should_stop.wait(), 10)
        assert "has released 1 job of consumer" in caplog.text
        assert (lease.lost, lease.ended) == (True, "lost")
        again = await asyncio.wait_for(anext(jobs), 10)
        assert (again.job.id, again.job.stall_count) == ("a", 0)
        assert again.job.client != jobs.id
        assert await again.complete()
        assert not await lease.complete()


async def test_consumer_hands_out_no_job_that_it_has_lost(client: Client) -> None:
    """Bug: jobs that were not begun when the consumer was evicted were handed out afterwards, as if
    they were still leased. So two programs worked on one job."""
    queue = client.queue("q")
    await queue.dispatch_many(range(3))
    async with queue.consumer(concurrency=3) as evicted:
        (begun,) = await take(evicted, 1)
        assert await queue.evict(evicted.id, died=False) == 3
        others = [await queue.lease(timeout=0) for _ in range(3)]
        await asyncio.wait_for(begun.should_stop.wait(), 10)
        following = asyncio.create_task(anext(evicted))
        for other in others:
            assert other is not None
            assert not following.done()
            await other.complete()
        await queue.dispatch(3, id="new")
        lease = await asyncio.wait_for(following, 10)
        assert (lease.job.id, lease.lost, lease.ended) == ("new", False, None)
        await lease.complete()


def wake_all(server: Server) -> None:
    """Send a wake-up to every client that waits for jobs."""
    for channels, publish in (("CHANNELS", "PUBLISH"), ("SHARDCHANNELS", "SPUBLISH")):
        for channel in server.call("PUBSUB", channels):
            server.call(publish, channel, "wake")


async def test_consumer_waits_for_a_server_that_is_read_only_for_a_while(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Bug: the loop of a consumer, and a lease() that waited, ended with ReadOnly."""
    async with Client(server.url, timeout=0.5) as client:
        queue, other = client.queue("q"), client.queue("other")
        async with queue.consumer(lease=30) as jobs:
            following = asyncio.create_task(anext(jobs))
            waiting = asyncio.create_task(other.lease(timeout=60))
            await until_waiting(queue)
            await until_waiting(other)
            server.call("REPLICAOF", "127.0.0.1", free_port())
            try:

                async def both_were_refused() -> bool:
                    assert not following.done()
                    assert not waiting.done()
                    wake_all(server)
                    refusals = ("consumer of queue 'q'", "waiting for a job of queue 'other'")
                    return all(text in caplog.text for text in refusals)

                await until(both_were_refused)
            finally:
                server.call("REPLICAOF", "NO", "ONE")
            await queue.dispatch(1)
            await other.dispatch(2)
            assert await (await asyncio.wait_for(following, 20)).complete()
            lease = await asyncio.wait_for(waiting, 20)
            assert lease is not None
            await lease.complete()


async def test_client_evicts_a_consumer_from_all_its_queues(client: Client) -> None:
    for name in ("a", "b"):
        await client.queue(name).dispatch(name)
    async with client.consumer(["a", "b"], concurrency=2) as jobs:
        leases = await take(jobs, 2)
        (worker,) = await client.workers(["a", "b"])
        evicted = await client.evict(worker)
        assert (evicted.workers, dict(evicted.jobs)) == ((jobs.id,), {"a": 1, "b": 1})
        for lease in leases:
            await asyncio.wait_for(lease.should_stop.wait(), 10)
        again = await take(jobs, 2)
        assert len({lease.job.client for lease in again} | {jobs.id}) == 2  # one new id
        evicted = await client.evict(jobs.id, queues=["a", "b"])
        assert dict(evicted.jobs) == {"a": 1, "b": 1}, "its id stays its group"
        for lease in await take(jobs, 2):
            await lease.complete()


async def test_several_queues_have_turns(client: Client) -> None:
    emails, reports = client.queue("emails"), client.queue("reports", codec="raw")
    await emails.dispatch_many(range(50))
    await reports.dispatch_many(b"%d" % n for n in range(50))
    order: list[str] = []
    async with client.consumer([emails, reports, "empty"], concurrency=4) as jobs:
        async for lease in jobs:
            assert isinstance(lease.data, int if lease.job.queue == "emails" else bytes)
            order.append(lease.job.queue)
            await lease.complete()
            if len(order) == 60:
                break
    assert 20 <= order.count("emails") <= 40, order
    assert (await emails.counts()).waiting + (await reports.counts()).waiting == 40


async def test_job_of_an_idle_queue_is_not_delayed_by_a_full_one(client: Client) -> None:
    async with client.consumer(["busy", "idle"], concurrency=2) as jobs:
        await client.queue("busy").dispatch_many(range(100))
        taken = 0
        async for lease in jobs:
            if taken == 10:
                await client.queue("idle").dispatch("rare")
            taken += 1
            await lease.complete()
            if lease.job.queue == "idle":
                break
        assert taken < 30


async def test_workers_lists_a_consumer_with_its_process_and_its_jobs(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1, id="a")
    async with queue.consumer(concurrency=4) as jobs:
        (lease,) = await take(jobs, 1)
        (worker,) = await client.workers(["q"])
        assert (worker.id, worker.group, worker.pid) == (jobs.id, jobs.id, os.getpid())
        assert (worker.capacity, worker.load, worker.queues) == (4, 0.25, ("q",))
        assert [job.id for job in worker.jobs] == ["a"]
        await lease.complete()
    assert await client.workers(["q"]) == []


async def test_consumer_works_through_a_restart_of_the_server(kind: ServerKind) -> None:
    with start_server(kind, appendonly=True, appendfsync="always") as server:
        async with Client(server.url) as client:
            queue = client.queue("q")
            await queue.dispatch_many(["held", "waiting"])
            async with queue.consumer(concurrency=1, lease=3) as jobs:
                (held,) = await take(jobs, 1)
                server.restart()
                assert await held.complete()
                (waiting,) = await take(jobs, 1)
                assert (held.data, waiting.data) == ("held", "waiting")
                assert await waiting.complete()
                following = asyncio.create_task(anext(jobs))
                await until_waiting(queue)
                server.kill()
                server.start()
                await queue.dispatch("after")
                last = await asyncio.wait_for(following, 30)
                assert await last.complete()
            assert await queue.audit() == []


async def test_outcome_that_the_server_did_not_answer_is_reported_later(kind: ServerKind) -> None:
    with start_server(kind, appendonly=True, appendfsync="always") as server:
        async with Client(server.url, timeout=0.5) as client:
            queue = client.queue("q")
            await queue.dispatch(1, id="a")
            async with queue.consumer(concurrency=1) as jobs:
                (lease,) = await take(jobs, 1)
                server.stop()
                with pytest.raises(Unreachable):
                    await lease.complete()
                server.start()

                async def is_finished() -> bool:
                    return (await queue.counts()).active == 0

                await until(is_finished)
                assert await queue.get("a") is None
                await queue.dispatch("next")  # and its place is free
                (following,) = await take(jobs, 1)
                await following.complete()


async def test_lease_whose_end_the_server_forgot_is_released(kind: ServerKind) -> None:
    with start_server(kind) as server:
        async with Client(server.url) as client:
            queue = client.queue("q")
            await queue.dispatch(1, id="a")
            async with queue.consumer(concurrency=2, lease=60) as jobs:
                (lease,) = await take(jobs, 1)
                server.call("SAVE")
                assert await lease.complete()
                server.kill()
                server.start()
                again = await asyncio.wait_for(anext(jobs), 20)
                assert (again.job.id, again.job.stall_count) == ("a", 0)
                assert again.token > lease.token
                await again.complete()


async def test_lease_that_the_server_forgot_is_lost(kind: ServerKind) -> None:
    with start_server(kind) as server:
        async with Client(server.url) as client:
            queue = client.queue("q")
            await queue.dispatch(1, id="a")
            async with queue.consumer(concurrency=1, lease=60) as jobs:
                idle = asyncio.create_task(anext(jobs))
                (lease,) = [await idle]
                await queue.pause()
                await lease.release()
                server.call("SAVE")
                await queue.resume()
                (lease,) = await take(jobs, 1)
                server.kill()
                server.start()
                await asyncio.wait_for(lease.should_stop.wait(), 20)
                assert lease.ended == "lost"
                await queue.resume()
                (again,) = await take(jobs, 1)
                await again.complete()


async def test_unconfirmed_lease_is_lost_before_another_client_may_have_it(
    proxy: Proxy, client: Client, prefix: str
) -> None:
    queue = client.queue("q")
    await queue.dispatch(1, id="a")
    async with Client(proxy.url, prefix=prefix, timeout=2) as other:
        async with other.queue("q").consumer(concurrency=1, lease=3) as jobs:
            (lease,) = await take(jobs, 1)
            stolen = asyncio.create_task(queue.lease(60))
            proxy.deaf()
            await asyncio.wait_for(lease.should_stop.wait(), 10)
            assert lease.lost
            assert not stolen.done()
            assert lease.ended is None  # only the server can say that
            taken = await asyncio.wait_for(stolen, 30)
            assert taken.job.id == "a"
            proxy.calm()

            async def is_known_to_be_lost() -> bool:
                return lease.ended == "lost"

            await until(is_known_to_be_lost)
            assert not await lease.complete()
        assert await taken.complete()


async def test_lease_is_confirmed_again_after_a_short_silence(
    proxy: Proxy, client: Client, prefix: str
) -> None:
    queue = client.queue("q")
    await queue.dispatch(1, id="a")
    async with (
        Client(proxy.url, prefix=prefix) as other,
        other.queue("q").consumer(concurrency=1, lease=3) as jobs,
    ):
        (lease,) = await take(jobs, 1)
        proxy.stall(3.5)  # nobody else calls, so the job stays
        await asyncio.wait_for(lease.should_stop.wait(), 10)

        async def is_confirmed() -> bool:
            return not lease.lost

        await until(is_confirmed)
        assert await lease.complete()


async def test_answer_of_a_dequeue_that_was_lost_loses_no_job(
    proxy: Proxy, client: Client, prefix: str
) -> None:
    await client.queue("q").dispatch_many(range(3))
    async with (
        Client(proxy.url, prefix=prefix) as other,
        other.queue("q").consumer(concurrency=2) as jobs,
    ):
        proxy.lose_answer_to("dequeue")
        leases = await take(jobs, 2)
        assert sorted(lease.data for lease in leases) == [0, 1]
        assert (await client.queue("q").counts()).active == 2
        assert all([await lease.complete() for lease in leases])


async def test_cancelled_iteration_loses_no_job(client: Client) -> None:
    queue = client.queue("q")
    async with queue.consumer(concurrency=1) as jobs:
        for number in range(30):
            following = asyncio.create_task(anext(jobs))
            await until_waiting(queue)
            await queue.dispatch(number)
            for _ in range(number % 10):
                await asyncio.sleep(0)
            following.cancel()
            results = await asyncio.gather(following, return_exceptions=True)
            lease = results[0]
            if isinstance(lease, BaseException):
                lease = await asyncio.wait_for(anext(jobs), 5)
            assert lease.data == number
            assert await lease.complete()


async def test_a_with_block_retries_on_an_exception_and_makes_room(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1, id="a", options=JobOptions(min_backoff=0, max_backoff=0))
    async with queue.consumer(concurrency=1) as jobs:
        with pytest.raises(ZeroDivisionError):
            async with await anext(jobs):
                _ = 1 / 0
        async with await anext(jobs) as lease:
            assert lease.job.retry_count == 1
    assert lease.ended == "finished"


async def test_undecodable_payloads_are_set_aside_and_ten_in_a_row_end_the_loop(
    client: Client,
) -> None:
    raw, wrong = client.queue("q", codec="raw"), client.queue("q")
    await raw.dispatch(b"{not json", id="bad")
    await wrong.dispatch("good")
    async with wrong.consumer() as jobs:
        (good,) = await take(jobs, 1)
        assert good.data == "good"
        await good.complete()

        async def is_set_aside() -> bool:
            return (await raw.counts()).broken == 1

        await until(is_set_aside)
    await raw.drop("bad", kind="broken")
    await raw.dispatch_many(b"{not json %d" % n for n in range(30))
    with pytest.raises(UndecodablePayload, match="Is this the codec"):
        async with wrong.consumer(concurrency=20) as jobs:
            await anext(jobs)
    counts = await raw.counts()
    assert (counts.broken, counts.waiting, counts.active) == (10, 20, 0)


async def test_suspect_runs_alone_in_a_consumer(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch("suspect", id="suspect")
    lease = await queue.lease(timeout=1)
    assert lease is not None
    await queue.evict(lease.job.client, died=True)  # alone in a process that died
    await queue.dispatch_many(range(20))
    async with queue.consumer(concurrency=5) as jobs:
        seen: list[Any] = []
        async for lease in jobs:
            holders = await queue.clients()
            if lease.data == "suspect":
                assert [holder.leases for holder in holders] == [1]
            seen.append(lease.data)
            await lease.complete()
            if len(seen) == 21:
                break
    assert set(seen) == {"suspect", *range(20)}


async def test_extend_of_a_lease_does_not_shorten_the_others(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch_many([1, 2])
    async with queue.consumer(concurrency=2, lease=30) as jobs:
        first, second = await take(jobs, 2)
        assert await first.extend(0.01)
        (holder,) = await queue.clients()
        assert holder.expires_in > 20
        await first.complete()
        await second.complete()


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, True, "ten", 10_001])
async def test_wrong_concurrency_is_refused(client: Client, concurrency: Any) -> None:
    with pytest.raises(InvalidOption, match="concurrency: expected a whole number from 1"):
        client.queue("q").consumer(concurrency=concurrency)


@pytest.mark.parametrize("lease", [0, 1, 2.99, 86_401])
async def test_lease_that_is_too_short_or_too_long_is_refused(client: Client, lease: float) -> None:
    with pytest.raises(InvalidOption, match=r"lease: expected 3 to 86400 seconds.*every second"):
        client.queue("q").consumer(lease=lease)


async def test_queues_of_a_consumer_are_checked(
    client: Client, server: Server, prefix: str
) -> None:
    with pytest.raises(InvalidQueue, match="at least one queue"):
        client.consumer([])
    with pytest.raises(InvalidQueue, match="names or queues in a list"):
        client.consumer("emails")
    with pytest.raises(InvalidQueue, match="each queue once, got 'a' again"):
        client.consumer(["a", "b", client.queue("a")])
    async with Client(server.url, prefix=prefix) as other:
        with pytest.raises(InvalidQueue, match=r"client\.queue\('a'\)"):
            client.consumer([other.queue("a")])


async def test_consumer_is_used_by_one_loop_inside_its_block(client: Client) -> None:
    queue = client.queue("q")
    jobs = queue.consumer()
    with pytest.raises(QueasyError, match="iterate inside its block"):
        await anext(jobs)
    async with jobs:
        with pytest.raises(QueasyError, match="was entered before"):
            await jobs.__aenter__()
        following = asyncio.create_task(anext(jobs))
        await until_waiting(queue)
        with pytest.raises(QueasyError, match="another task iterates"):
            await anext(jobs)
        jobs.stop()
        with pytest.raises(StopAsyncIteration):
            await following
    with pytest.raises(QueasyError, match="iterate inside its block"):
        await anext(jobs)


async def test_stop_ends_an_iteration_that_waits_and_leaves_no_waiter(client: Client) -> None:
    queue = client.queue("q")
    async with queue.consumer() as jobs:
        following = asyncio.create_task(anext(jobs))
        await until_waiting(queue)
        jobs.stop()
        with pytest.raises(StopAsyncIteration):
            await following

        async def waits_no_more() -> bool:
            return (await queue.counts()).waiters == 0

        await until(waits_no_more)


async def test_closing_the_client_ends_the_iteration(server: Server, prefix: str) -> None:
    client = Client(server.url, prefix=prefix)
    async with client.queue("q").consumer() as jobs:
        following = asyncio.create_task(anext(jobs))
        await until_waiting(client.queue("q"))
        await client.close()
        with pytest.raises(ClientClosed):
            await asyncio.wait_for(following, 5)


async def test_entering_raises_when_the_server_was_never_reached() -> None:
    client = Client(f"redis://127.0.0.1:{free_port()}", timeout=0.5)
    with pytest.raises(Unreachable):
        async with client.queue("q").consumer():
            pass
    await client.close()


async def test_consumer_of_a_destroyed_queue_takes_jobs_of_the_new_one(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1)
    async with queue.consumer(concurrency=1) as jobs:
        (lost,) = await take(jobs, 1)
        await queue.destroy(force=True)
        await asyncio.wait_for(lost.should_stop.wait(), 10)
        assert lost.ended == "lost"
        await queue.dispatch(2)
        (lease,) = await take(jobs, 1)
        assert lease.data == 2
        await lease.complete()
