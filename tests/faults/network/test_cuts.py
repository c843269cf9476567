"""A connection cut at every point of every call: it takes effect once, or raises Unanswered."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from queasy import SyncClient, Unanswered
from queasy.store.library import LIBRARY
from tests.faults.calling import Caller
from tests.faults.cases import CASES, Case, cancelled, equals, state_of
from tests.proxy import Cut, Proxy
from tests.servers import Server, wait_until
from tests.worker.fleet import ON_ONE_SERVER


@asynccontextmanager
async def calling(make: Any, proxy: Proxy, prefix: str) -> AsyncGenerator[Caller]:
    """A client; asserts that no connection is left when it is closed."""
    caller = Caller(make(proxy.url, prefix=prefix, timeout=5))
    try:
        yield caller
    finally:
        await caller.close()
    await asyncio.to_thread(wait_until, lambda: not proxy.connections, "all is closed")


@pytest.fixture
async def caller(make: Any, proxy: Proxy, prefix: str) -> AsyncIterator[Caller]:
    async with calling(make, proxy, prefix) as caller:
        yield caller


# On one server: cuts are alike on every server, and the functions have tests of their own.
@ON_ONE_SERVER
@pytest.mark.parametrize("name", CASES)
async def test_cut_call_takes_effect_once_or_raises_unanswered(
    name: str, caller: Caller, proxy: Proxy, direct: SyncClient
) -> None:
    case = CASES[name]
    await caller.connect()
    once = direct.queue("once")
    answer = await caller.call(case, "once", case.before(once))
    assert case.right(answer)
    for point in Cut:
        queue = direct.queue(point)
        context = case.before(queue)
        never = state_of(queue)
        proxy.cut(case.function, point)
        if case.unclear and point in (Cut.UNANSWERED, Cut.HALF_ANSWERED):
            with pytest.raises(Unanswered, match="does not show"):
                await caller.call(case, point, context)
        else:
            answer = await caller.call(case, point, context)
            assert case.right(answer), (point, answer)
        assert proxy.lost == 1, point
        assert state_of(queue) == state_of(once), (point, never)
        assert queue.audit() == []
        await caller.counts(point)  # the next call works
        assert proxy.connections <= 2
        proxy.lost = 0


# CLIENT is part of the handshake of every connection.
@ON_ONE_SERVER
@pytest.mark.parametrize("command", ["CLIENT", "version", "FUNCTION", "INFO", "CONFIG"])
async def test_client_connects_wherever_its_handshake_is_cut(
    command: str, make: Any, proxy: Proxy, prefix: str, server: Server
) -> None:
    """Bug: a cut after the first command, or during the handshake, made the client give up."""
    for number, point in enumerate(Cut, 1):
        async with calling(make, proxy, prefix) as caller:
            if command == "FUNCTION":
                server.call("FUNCTION", "DELETE", LIBRARY)
            proxy.cut(command, point)
            await caller.connect()
            assert proxy.lost == number
            await caller.counts("q")
            assert proxy.connections == 1


@ON_ONE_SERVER
@pytest.mark.parametrize("point", Cut)
async def test_cut_while_loading_the_library_does_not_make_the_call_unanswered(
    point: Cut, caller: Caller, proxy: Proxy, server: Server
) -> None:
    """Bug: the answer to the load was lost, and taken for that of the call, which was not sent."""
    await caller.connect()
    server.call("FUNCTION", "DELETE", LIBRARY)
    proxy.cut("FUNCTION", point)
    absent = Case("cancel", lambda queue, _: queue.cancel("nobody"), cancelled("absent"))
    assert absent.right(await caller.call(absent, "q"))
    assert proxy.lost == 1


@ON_ONE_SERVER
async def test_waiting_lease_gets_its_job_wherever_its_subscription_is_cut(
    make: Any, server: Server, prefix: str, direct: SyncClient, seed: int
) -> None:
    async def wait(point: Cut) -> None:
        queue = direct.queue(point)
        async with (
            Proxy(server.port, seed=seed) as proxy,
            calling(make, proxy, prefix) as caller,
        ):
            await caller.connect()
            proxy.cut("SSUBSCRIBE", point)
            patient = Case("dequeue", lambda queue, _: queue.lease(timeout=30), equals("there"))
            waiting = asyncio.create_task(caller.call(patient, point))
            while queue.counts().waiters == 0:
                await asyncio.sleep(0.01)
            queue.dispatch("there")
            lease = await waiting
            assert (proxy.lost, lease.data) == (1, "there")
            assert (queue.counts().active, queue.counts().waiting) == (1, 0)

    await asyncio.gather(*map(wait, Cut))
