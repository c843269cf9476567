"""A worker compares its leases with what the server holds, and survives its own errors."""

import asyncio

import pytest

from queasy import Client, Job, Queue
from queasy.store.records import Taken
from queasy.worker.intake.subscription import Line
from tests.worker.inline import Seen, until, until_empty, working


async def test_a_worker_that_never_runs_dry_compares_all_the_same(
    client: Client, emails: Queue, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asked for more first, whenever there was more, and forgot about its doubts."""
    lines: list[Line] = []
    take = Line.take

    async def take_slowly(self: Line, limit: int, safety: float, **more: bool) -> Taken:
        lines.append(self)
        taken = await take(self, limit, safety, **more)
        await asyncio.sleep(0.01)  # a server far away: what was taken before has ended
        return taken

    monkeypatch.setattr(Line, "take", take_slowly)

    @emails.handler(size=1)
    async def handle(data: int, job: Job) -> None:
        seen.add(data, job)
        if len(seen.jobs) == 1000:
            lines[0].doubt()
        if len(seen.jobs) > 1000:
            unsure.append(lines[0].unsure)

    unsure: list[bool] = []
    await emails.dispatch_many(range(3000))
    async with working(client):
        await seen.runs(3000)
        await until_empty(emails)
    assert not unsure[1000]


async def test_a_mistake_of_ours_is_told_and_not_made_again_at_once(
    client: Client, emails: Queue, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was made as often as the event loop turned, each time with a line in the log."""
    take, mended, made = Line.take, asyncio.Event(), 0

    async def fail(self: Line, limit: int, safety: float, **more: bool) -> Taken:
        nonlocal made
        if mended.is_set():
            return await take(self, limit, safety, **more)
        made += 1
        raise TypeError("a mistake")

    monkeypatch.setattr(Line, "take", fail)
    emails.handler(seen.add)
    await emails.dispatch(1)

    async def is_made() -> bool:
        return made > 0

    async with working(client):
        await until(is_made, "the mistake is made")
        for _ in range(200):  # passes of the loop
            await asyncio.sleep(0)
        assert made == 1
        mended.set()
        await seen.runs(1)
