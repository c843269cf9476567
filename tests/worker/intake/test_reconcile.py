"""A worker compares its leases with what the server holds, and survives its own errors."""

import asyncio
from typing import Any

import pytest

from queasy import Client, Job, Lease, Queue
from queasy.errors import Unanswered
from queasy.store.command import Command
from queasy.store.store import AsyncStore
from tests.servers import Server
from tests.worker.inline import Seen, until, until_empty, working


async def test_worker_that_always_has_more_to_take_reconciles_all_the_same(
    client: Client, server: Server, emails: Queue, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: it requested more jobs first whenever there were more, and never compared its leases."""
    run, compared = AsyncStore.run, asyncio.Event()

    async def run_slowly(store: AsyncStore, command: Command[Any], *more: Any) -> Any:
        answer = await run(store, command, *more)
        if command.function == "leases":
            compared.set()
        if command.function == "dequeue":
            await asyncio.sleep(0.01)  # a distant server: the jobs of the last answer have ended
        return answer

    monkeypatch.setattr(AsyncStore, "run", run_slowly)

    @emails.handler(size=1)
    async def handle(data: int, job: Job) -> None:
        seen.add(data, job)
        if len(seen.jobs) == 1000:  # the worker cannot know what it missed meanwhile
            server.call("CLIENT", "KILL", "TYPE", "pubsub")

    await emails.dispatch_many(range(3000))
    async with working(client):
        async with asyncio.timeout(20):
            while not compared.is_set():
                if (await emails.counts()).due < 2000:
                    await emails.dispatch_many(range(2000))
        await until_empty(emails)


async def test_internal_error_is_not_repeated_at_once(
    client: Client, emails: Queue, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: it was repeated in every pass of the event loop, each time with a line in the log."""
    run, repaired, raised = AsyncStore.run, asyncio.Event(), 0

    async def fail(store: AsyncStore, command: Command[Any], *more: Any) -> Any:
        nonlocal raised
        if command.function != "dequeue" or repaired.is_set():
            return await run(store, command, *more)
        raised += 1
        raise TypeError("a bug in the worker")

    monkeypatch.setattr(AsyncStore, "run", fail)
    emails.handler(seen.add)
    await emails.dispatch(1)

    async def is_raised() -> bool:
        return raised > 0

    async with working(client):
        await until(is_raised, "the error is raised")
        await asyncio.sleep(0.2)  # time for hundreds of calls
        assert raised < 10, "it pauses between attempts"
        repaired.set()
        await seen.runs(1)


async def test_reconcile_reads_no_payload_of_other_clients(
    client: Client, server: Server, emails: Queue, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a worker listed the active jobs after its own, with their payloads: 100 MB were seen."""
    run, compared, idle = AsyncStore.run, asyncio.Event(), asyncio.Event()

    async def note(store: AsyncStore, command: Command[Any], *more: Any) -> Any:
        answer = await run(store, command, *more)
        if command.function == "dequeue" and idle.is_set():
            idle.clear()
            raise Unanswered("the answer was lost, so the worker reconciles")
        if command.function in ("list", "leases"):
            compared.set()
        return answer

    large = 1_000_000
    leases = [await _held(emails, large) for _ in range(5)]
    monkeypatch.setattr(AsyncStore, "run", note)
    emails.handler(seen.add)
    await emails.dispatch("small")
    async with working(client):
        await seen.runs(1)
        await _until_waiting(emails, len(leases))
        before = _bytes_sent(server)
        idle.set()
        server.call("CLIENT", "KILL", "TYPE", "pubsub")
        async with asyncio.timeout(10):
            await compared.wait()
        assert _bytes_sent(server) - before < large
    for lease in leases:
        assert await lease.complete()


async def _held(queue: Queue, size: int) -> Lease:
    """A lease of a job with a payload of this size."""
    await queue.dispatch("x" * size)
    return await queue.lease(60)


async def _until_waiting(queue: Queue, active: int) -> None:
    async def rest() -> bool:
        counts = await queue.counts()
        return counts.waiters == 1 and counts.active == active

    await until(rest, "only the leases are left, and the worker waits")


def _bytes_sent(server: Server) -> int:
    with server.client() as connection:
        return connection.info("stats")["total_net_output_bytes"]
