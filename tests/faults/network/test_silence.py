"""A server that accepts connections and never answers; connections that die silently."""

import asyncio
import time
from functools import partial
from typing import Any

import pytest

from queasy import (
    Client,
    SyncClient,
    Unanswered,
    Unreachable,
)
from tests.faults.calling import Caller
from tests.faults.cases import CASES, Case, equals
from tests.proxy import Proxy
from tests.servers import Server, ServerKind, start_server
from tests.worker.fleet import ON_ONE_SERVER, totals
from tests.worker.inline import working

SOON = 10.0  # seconds: far above the expected time, far below that of the bugs
TIMEOUT = 0.4
READS = {"counts", "get", "list", "leases", "clients", "stats", "audit"}


async def until(condition: Any) -> None:
    async with asyncio.timeout(SOON):
        while not condition():
            await asyncio.sleep(0.01)


@ON_ONE_SERVER
async def test_every_call_to_a_server_that_never_answers_ends_in_time_and_says_so(
    make: Any, proxy: Proxy, prefix: str, direct: SyncClient
) -> None:
    caller = Caller(make(proxy.url, prefix=prefix, timeout=TIMEOUT))
    await caller.connect()
    cases = {name.replace(" ", "-"): case for name, case in CASES.items()}
    contexts = {name: case.before(direct.queue(name)) for name, case in cases.items()}

    async def call(name: str, case: Case) -> None:
        with pytest.raises(Unreachable, match=rf"{proxy.port}") as caught:
            await caller.call(case, name, contexts[name])
        if case.function in READS:  # a read has no effect to be unsure of
            assert caught.type is Unreachable

    proxy.deaf()
    async with asyncio.timeout(SOON):
        await asyncio.gather(*(call(*pair) for pair in cases.items()))
    proxy.calm()
    for name in cases:
        await caller.counts(name)
        assert direct.queue(name).audit() == []
    await caller.close()
    await until(lambda: not proxy.connections)


@ON_ONE_SERVER
async def test_client_cannot_connect_to_a_server_that_never_answers(
    make: Any, proxy: Proxy
) -> None:
    proxy.deaf()
    caller = Caller(make(proxy.url, timeout=TIMEOUT))
    async with asyncio.timeout(SOON):
        with pytest.raises(Unreachable, match="cannot reach"):
            await caller.connect()
    proxy.calm()
    await caller.connect()
    await caller.close()
    await until(lambda: not proxy.connections)


@ON_ONE_SERVER
async def test_unanswered_calls_do_not_queue_for_a_connection(proxy: Proxy, prefix: str) -> None:
    """Bug: a call that queued for a connection waited until all calls before it timed out."""
    async with Client(proxy.url, prefix=prefix, timeout=TIMEOUT) as client:
        queue = client.queue("q")
        proxy.deaf()
        calls = [queue.counts() for _ in range(2000)]  # forty times the size of the pool
        async with asyncio.timeout(SOON):
            answers = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(answer) for answer in answers} == {Unreachable}
        proxy.calm()
        await queue.counts()


def listeners(server: Server) -> set[str]:
    """The ids of connections that are subscribed."""
    lines = server.call("CLIENT", "LIST", "TYPE", "PUBSUB")
    rows = lines if isinstance(lines, list) else [line for line in lines.splitlines() if line]
    return {str(row["id"]) if isinstance(row, dict) else row.split()[0] for row in rows}


@ON_ONE_SERVER
async def test_waiting_lease_resubscribes_when_its_connection_died_silently(
    make: Any, proxy: Proxy, server: Server, prefix: str, direct: SyncClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Bug: it received no wake-up any more, and found jobs only by polling."""
    monkeypatch.setattr("queasy.store.net.pubsub.SILENCE_SECONDS", 0.3)
    monkeypatch.setattr("queasy.operations.SAFETY_POLL_SECONDS", 1.0)
    caller = Caller(make(proxy.url, prefix=prefix, timeout=TIMEOUT))
    patient = Case("dequeue", lambda queue, _: queue.lease(timeout=60), equals("there"))
    waiting = asyncio.create_task(caller.call(patient, "q"))
    await until(lambda: direct.queue("q").counts().waiters)
    first = listeners(server)
    assert len(first) == 1
    proxy.deaf()
    proxy.calm()  # for new connections; present ones stay silent
    await until(lambda: listeners(server) - first)
    direct.queue("q").dispatch("there")
    assert (await waiting).data == "there"
    await caller.close()


@ON_ONE_SERVER
async def test_unconfirmed_subscription_is_retried_on_another_connection(
    proxy: Proxy, server: Server, prefix: str
) -> None:
    """Bug: the first connection was kept, and the subscription not repeated."""
    proxy.swallow("SSUBSCRIBE")
    async with Client(proxy.url, prefix=prefix, timeout=TIMEOUT) as client:
        waiting = asyncio.create_task(client.queue("q").lease())
        await until(lambda: proxy.lost)
        proxy.calm()
        await until(lambda: listeners(server))
        await client.queue("q").dispatch("there")
        assert (await waiting).data == "there"


@ON_ONE_SERVER
async def test_worker_resumes_when_a_silent_server_answers_again(
    proxy: Proxy, prefix: str, direct: SyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queasy.store.net.pubsub.SILENCE_SECONDS", 0.3)
    done: list[Any] = []
    client = Client(proxy.url, prefix=prefix, timeout=TIMEOUT)
    client.queue("q").handler(done.append)
    queue = direct.queue("q")
    async with working(client):
        queue.dispatch("before")
        await until(lambda: done == ["before"])
        proxy.deaf()
        queue.dispatch("during")
        began = time.monotonic()
        await until(lambda: time.monotonic() - began > 3 * TIMEOUT)
        proxy.calm()
        queue.dispatch("after")
        await until(lambda: sorted(done) == ["after", "before", "during"])
        await until(lambda: not queue.counts().active)
    assert queue.audit() == []
    await until(lambda: not proxy.connections)


@ON_ONE_SERVER
async def test_outage_is_counted_from_the_first_call_that_was_not_answered(
    proxy: Proxy, prefix: str, direct: SyncClient, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Bug: it was counted from the event `server_unreachable`, which is logged only when the call
    has been tried for the client's timeout.
    """
    monkeypatch.setattr("queasy.store.net.pubsub.SILENCE_SECONDS", 0.3)
    caplog.set_level("INFO", logger="queasy.worker")

    def logged(event: str) -> list[Any]:
        return [record for record in caplog.records if getattr(record, "event", "") == event]

    async def deafen(_: None) -> None:
        proxy.deaf()  # the report of this job is not answered

    client = Client(proxy.url, prefix=prefix, timeout=TIMEOUT)
    client.queue("q").handler(deafen)
    async with working(client):
        direct.queue("q").dispatch(None)
        await until(lambda: logged("server_unreachable"))
        proxy.calm()
        await until(lambda: logged("server_reachable"))
        await until(lambda: not direct.queue("q").counts().active)
    (unreachable,), (reachable,) = logged("server_unreachable"), logged("server_reachable")
    seconds_between = reachable.created - unreachable.created
    assert reachable.fields["seconds"] > seconds_between + TIMEOUT / 2


@ON_ONE_SERVER
async def test_lease_abandoned_in_a_stall_takes_no_job_afterwards(
    proxy: Proxy, prefix: str, direct: SyncClient
) -> None:
    """Bug: the call arrived after its caller had given up, and after the call that should undo it:
    the job stayed leased, without a holder, until the lease expired.
    """
    queue = direct.queue("q")
    async with Client(proxy.url, prefix=prefix, timeout=TIMEOUT) as client:
        await client.queue("q").counts()
        queue.dispatch("mine", id="mine")
        proxy.stall(3 * TIMEOUT)
        with pytest.raises(Unanswered) as caught:
            await client.queue("q").lease(3600, timeout=0)
        assert str(caught.value).count("no answer") == 1  # it said so twice
        assert str(caught.value).endswith("It may have been carried out")
        await until(lambda: totals(queue).get("dequeued") == 1)
        await until(lambda: queue.counts().due == 1)
        job = queue.get("mine")
        assert job is not None
        assert job.stall_count == 0


@ON_ONE_SERVER
async def test_unanswered_sync_lease_is_undone_when_the_server_is_ready(
    proxy: Proxy, server: Server, prefix: str, direct: SyncClient
) -> None:
    """Bug: the restarted server was loading and refused the call that should undo the lease: the
    job stayed leased, without a holder, until the lease expired.
    """
    queue = direct.queue("q")
    queue.dispatch("mine", id="mine")

    async def refuse() -> None:
        await asyncio.to_thread(server.call, "CONFIG", "SET", "min-replicas-to-write", 1)

    client = SyncClient(proxy.url, prefix=prefix, timeout=TIMEOUT)
    lease = partial(client.queue("q").lease, 3600, timeout=0)
    await asyncio.to_thread(client.connect)
    try:
        proxy.lose_answer_to("dequeue", refuse)
        with pytest.raises(Unanswered):
            await asyncio.to_thread(lease)
    finally:
        server.call("CONFIG", "SET", "min-replicas-to-write", 0)
    assert queue.counts().active == 1
    async with asyncio.timeout(SOON):
        while (found := await asyncio.to_thread(lease)) is None:
            await asyncio.sleep(0.05)
    await asyncio.to_thread(client.close)
    assert found.job.id == "mine"
    assert found.job.stall_count == 0


@ON_ONE_SERVER
async def test_worker_declared_dead_waits_for_the_server_before_it_restarts(
    proxy: Proxy, prefix: str, direct: SyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Bug: it exited, with the error of the unreachable server."""
    done: list[Any] = []
    client = Client(proxy.url, prefix=prefix, timeout=TIMEOUT)

    @client.queue("q").handler
    async def handle(data: Any) -> None:  # pyright: ignore[reportUnusedFunction]
        done.append(data)
        if data == "long" and done.count("long") == 1:
            await asyncio.sleep(60)

    queue = direct.queue("q")
    with caplog.at_level("INFO", "queasy"):
        async with working(client):
            queue.dispatch("long")
            await until(lambda: done == ["long"])
            queue.evict(queue.clients()[0].id, died=False)
            await until(lambda: "worker_declared_dead" in caplog.text)
            proxy.deaf()
            await until(lambda: "worker_start_failed" in caplog.text)
            proxy.calm()
            await until(lambda: done == ["long", "long"])
            await until(lambda: not queue.counts().active)


async def test_call_to_a_frozen_server_raises_unanswered(kind: ServerKind) -> None:
    with start_server(kind) as server:
        async with Client(server.url, timeout=0.5) as client:
            queue = client.queue("q")
            await queue.dispatch(1)
            server.pause()
            with pytest.raises(Unanswered, match="may have been carried out"):
                await queue.dispatch(2)
            server.resume()
            assert (await queue.dispatch(3)).status == "created"


async def test_a_subscription_that_is_never_confirmed_does_not_hang(
    proxy: Proxy, prefix: str
) -> None:
    proxy.swallow("SSUBSCRIBE")
    async with Client(proxy.url, prefix=prefix, timeout=0.5) as client:
        queue = client.queue("q")
        assert await asyncio.wait_for(queue.lease(timeout=1), 20) is None
        deaf = asyncio.create_task(queue.lease())
        await queue.dispatch("found by polling")
        lease = await asyncio.wait_for(deaf, 20)
        assert await lease.complete()

    def pull() -> object:
        with SyncClient(proxy.url, prefix=prefix, timeout=0.5) as sync:
            return sync.queue("q").lease(timeout=1)

    assert await asyncio.wait_for(asyncio.to_thread(pull), 20) is None
    assert proxy.lost >= 2
