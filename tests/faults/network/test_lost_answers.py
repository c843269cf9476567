"""Calls that are resent because their answer was lost: each takes effect once."""

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from queasy import (
    Client,
    NotDurable,
    SyncClient,
    Unanswered,
)
from tests.proxy import Proxy
from tests.servers import Server, ServerKind, start_replica, start_server


class Consumer:
    """Runs all jobs on a connection of its own, and records their data."""

    def __init__(self, server: Server, prefix: str) -> None:
        self._url, self._prefix = server.url, prefix
        self.ran: list[object] = []

    async def run_all(self) -> None:
        async with Client(self._url, prefix=self._prefix) as client:
            while (lease := await client.queue("q").lease(timeout=0)) is not None:
                self.ran.append(lease.data)
                assert await lease.complete()


@pytest.fixture
def consumer(server: Server, prefix: str) -> Consumer:
    return Consumer(server, prefix)


async def test_job_that_ran_before_its_dispatch_was_resent_runs_once(
    proxy: Proxy, prefix: str, consumer: Consumer
) -> None:
    async with Client(proxy.url, prefix=prefix) as client:
        proxy.lose_answer_to("put", meanwhile=consumer.run_all)
        assert (await client.queue("q").dispatch("once")).status == "created"
    await consumer.run_all()
    assert (consumer.ran, proxy.lost) == (["once"], 1)


async def test_jobs_of_a_resent_shared_call_run_once(
    proxy: Proxy, prefix: str, consumer: Consumer
) -> None:
    async with Client(proxy.url, prefix=prefix) as client:
        queue = client.queue("q")
        # The first dispatch is sent alone; when it is answered, the others share a call.
        alone = asyncio.create_task(queue.dispatch(0))
        alone.add_done_callback(lambda _: proxy.lose_answer_to("put", meanwhile=consumer.run_all))
        await asyncio.sleep(0)
        done = await asyncio.gather(alone, *(queue.dispatch(number) for number in range(1, 20)))
        assert len(consumer.ran) == 20, "all of them, in one call"
        # The last call was shared and slow: dispatches of one pass of the loop now share a call.
        proxy.lose_answer_to("put", meanwhile=consumer.run_all)
        done += await asyncio.gather(*(queue.dispatch(number) for number in range(20, 40)))
        assert len(consumer.ran) == 40, "all of them, in one call"
        assert {one.status for one in done} == {"created"}
    await consumer.run_all()
    assert (consumer.ran, proxy.lost) == ([*range(40)], 2)


async def test_jobs_of_several_resent_calls_run_once(
    proxy: Proxy, prefix: str, consumer: Consumer
) -> None:
    async with Client(proxy.url, prefix=prefix) as client:
        for _ in range(2):
            proxy.lose_answer_to("put", meanwhile=consumer.run_all)
        done = await client.queue("q").dispatch_many(range(1050))
        assert {one.status for one in done} == {"created"}
        assert len(done) == 1050
    await consumer.run_all()
    assert (consumer.ran, proxy.lost) == ([*range(1050)], 2)


async def test_jobs_resent_by_several_threads_run_once(
    proxy: Proxy, prefix: str, consumer: Consumer
) -> None:
    def send() -> set[str]:
        with SyncClient(proxy.url, prefix=prefix) as client, ThreadPoolExecutor(6) as threads:
            done = threads.map(client.queue("q").dispatch, range(60))
            return {one.status for one in done}

    for _ in range(12):
        proxy.lose_answer_to("put", meanwhile=consumer.run_all)
    assert await asyncio.to_thread(send) == {"created"}
    await consumer.run_all()
    assert (sorted(map(str, consumer.ran)), proxy.lost) == (sorted(map(str, range(60))), 12)


async def test_resent_update_does_not_create_a_job(
    proxy: Proxy, prefix: str, consumer: Consumer
) -> None:
    async with Client(proxy.url, prefix=prefix) as client:
        queue = client.queue("q")
        await queue.dispatch("old", id="a")
        proxy.lose_answer_to("put", meanwhile=consumer.run_all)
        assert (await queue.dispatch("new", id="a")).status == "updated"
    await consumer.run_all()
    assert consumer.ran == ["new"]


async def test_resent_blocked_dispatch_is_kept_once(
    proxy: Proxy, prefix: str, consumer: Consumer, client: Client
) -> None:
    lease = None

    async def finish_both() -> None:
        assert lease is not None
        assert await lease.complete()
        await consumer.run_all()

    async with Client(proxy.url, prefix=prefix) as behind:
        queue = behind.queue("q")
        await queue.dispatch("first", id="a")
        lease = await client.queue("q").lease()
        proxy.lose_answer_to("put", meanwhile=finish_both)
        assert (await queue.dispatch("held", id="a")).status == "blocked"
    await consumer.run_all()
    assert consumer.ran == ["held"]


async def test_delayed_first_attempt_creates_no_job(
    proxy: Proxy, prefix: str, consumer: Consumer
) -> None:
    async with Client(proxy.url, prefix=prefix) as client:
        queue = client.queue("q")
        first_try, another = proxy.delay("put"), proxy.delay("put")
        assert (await queue.dispatch("once")).status == "created"
        assert proxy.lost == 2, "the third attempt was answered"
        await consumer.run_all()
        await first_try()
        await queue.dispatch("the next")
        await another()
    await consumer.run_all()
    assert consumer.ran == ["once", "the next"]


@pytest.mark.parametrize("jobs", [["a", "b"], []], ids=["it took a job", "it took nothing"])
async def test_delayed_first_attempt_of_a_lease_takes_no_job(
    proxy: Proxy, prefix: str, client: Client, jobs: list[str]
) -> None:
    """Bug: it took another job, which no client held, and which stalled a minute later."""
    queue = client.queue("q")
    for id_ in jobs:
        await queue.dispatch(1, id=id_)
    async with Client(proxy.url, prefix=prefix) as behind:
        first_try = proxy.delay("dequeue")
        lease = await behind.queue("q").lease(timeout=0)
        assert proxy.lost == 1, "the second attempt was answered"
        if lease is not None:
            assert await lease.complete()
        await queue.dispatch(1, id="c")
        await first_try()
        assert (await queue.counts()).active == 0
    await queue.destroy()


async def test_resent_cancel_leaves_a_job_dispatched_since(
    proxy: Proxy, prefix: str, consumer: Consumer, client: Client
) -> None:
    queue = client.queue("q")

    async def dispatch_anew() -> None:
        assert (await queue.dispatch("new", id="a")).status == "created"

    async with Client(proxy.url, prefix=prefix) as behind:
        await queue.dispatch("old", id="a")
        proxy.lose_answer_to("cancel", meanwhile=dispatch_anew)
        assert await behind.queue("q").cancel("a")
        assert not await behind.queue("q").cancel("b")
        proxy.lose_answer_to("cancel")
        assert not await behind.queue("q").cancel("c")
    await consumer.run_all()
    assert (consumer.ran, proxy.lost) == (["new"], 2)


async def test_resent_requeue_is_answered_although_the_job_is_gone(
    proxy: Proxy, prefix: str, consumer: Consumer, client: Client
) -> None:
    queue = client.queue("q")
    await queue.dispatch("again", id="a")
    lease = await queue.lease()
    assert await lease.fail()
    async with Client(proxy.url, prefix=prefix) as behind:
        proxy.lose_answer_to("requeue", meanwhile=consumer.run_all)
        assert await behind.queue("q").requeue("a") == 1
    await consumer.run_all()
    assert (consumer.ran, proxy.lost) == (["again"], 1)


async def test_resent_dispatch_is_as_durable_as_requested(kind: ServerKind) -> None:
    """The write of the first attempt must reach the replica before the second reports success."""
    with start_server(kind) as primary, start_replica(primary) as replica:
        async with Proxy(primary.port) as proxy, Client(proxy.url, timeout=2) as client:
            queue = client.queue("q")
            assert (await queue.dispatch(1, durability="replicated")).status == "created"
            replica.pause()
            proxy.lose_answer_to("put")
            with pytest.raises(NotDurable):
                await queue.dispatch(2, durability="replicated")
            replica.resume()
            proxy.lose_answer_to("put")
            assert (await queue.dispatch(3, durability="replicated")).status == "created"
            assert proxy.lost == 2


FORKED = """
import os, sys
from queasy import SyncClient

client = SyncClient(sys.argv[1], prefix=sys.argv[2])
queue = client.queue("q")
queue.dispatch("before")
child = os.fork()
queue.dispatch("child" if child == 0 else "parent")
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def test_forked_process_numbers_its_calls_separately(
    server: Server, prefix: str, sync_client: SyncClient
) -> None:
    subprocess.run([sys.executable, "-c", FORKED, server.url, prefix], check=True, timeout=60)
    ran = {job.data for job in sync_client.queue("q").jobs()}
    assert ran == {"before", "child", "parent"}


async def test_complete_after_a_lost_answer_stays_unanswered(proxy: Proxy, prefix: str) -> None:
    """Bug: a second complete() returned False, and a with block said the job would run again."""
    async with Client(proxy.url, prefix=prefix) as client:
        queue = client.queue("q")
        await queue.dispatch_many(range(2))
        lease = await queue.lease()
        proxy.lose_answer_to("settle")
        with pytest.raises(Unanswered, match="does not show"):
            await lease.complete()
        with pytest.raises(Unanswered, match="earlier call"):
            await lease.complete()
        with pytest.raises(Unanswered, match="earlier call"):
            async with lease:
                pass

    def pull() -> None:
        with SyncClient(proxy.url, prefix=prefix) as sync:
            lease = sync.queue("q").lease()
            proxy.lose_answer_to("settle")
            with pytest.raises(Unanswered, match="does not show"):
                lease.complete()
            with pytest.raises(Unanswered, match="earlier call"):
                lease.complete()

    await asyncio.to_thread(pull)
    assert proxy.lost == 2


async def test_lease_with_a_lost_answer_is_released(proxy: Proxy, prefix: str) -> None:
    """Bug: the job stayed leased, without a holder, until the lease expired."""
    async with Client(proxy.url, prefix=prefix, timeout=0.5) as client:
        queue = client.queue("q")
        await queue.dispatch(1, id="a")
        for _ in range(1000):  # more than it attempts
            proxy.lose_answer_to("dequeue")
        with pytest.raises(Unanswered):
            await queue.lease(seconds=3600, timeout=0)
        await client.close()  # waits for background calls
        job = await queue.get("a")
        assert job is not None
        assert (job.state, job.stall_count) == ("due", 0)
