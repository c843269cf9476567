"""A worker compares its leases with what the server holds, and survives its own errors."""

import asyncio
from typing import Any

import pytest

from queasy import Client, Job, Queue
from queasy.store.command import Command
from queasy.store.store import AsyncStore
from tests.servers import Server
from tests.worker.inline import Seen, until, until_empty, working


async def test_worker_that_always_has_more_to_take_reconciles_all_the_same(
    client: Client, server: Server, emails: Queue, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: it requested more jobs first whenever there were more, and never compared its leases."""
    run, compared_after = AsyncStore.run, list[int]()

    async def run_slowly(store: AsyncStore, command: Command[Any], *more: Any) -> Any:
        answer = await run(store, command, *more)
        if command.function == "list":
            compared_after.append(len(seen.jobs))
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
        await seen.runs(3000)
        await until_empty(emails)
    assert any(1000 <= jobs <= 2000 for jobs in compared_after), compared_after


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
