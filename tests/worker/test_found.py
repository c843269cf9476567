"""Bugs that were found in workers, each by its name."""

import asyncio
import signal
from datetime import timedelta

import pytest

from queasy import Client, Job, Queue, Retry, SyncClient
from queasy.outcomes import RetryLater
from queasy.store.records import Taken
from queasy.worker.execution.executor import outcome_of
from queasy.worker.intake.subscription import Line
from tests.servers import Server, wait_until
from tests.worker.fleet import ON_ONE_SERVER, Fleet
from tests.worker.inline import Seen, until, until_empty, working


@ON_ONE_SERVER
def test_an_inline_worker_that_is_lost_twice_at_once_lives_once_more(
    fleet: Fleet, sync_client: SyncClient, server: Server, prefix: str
) -> None:
    """The second word came while it stopped, and ended each life as it began."""
    worker = fleet.serve("--queue", "plain", "--queue", "waits", processes=0)
    sync_client.queue("plain").dispatch({"sleep": 2}, id="running")
    fleet.journal.wait_for("start", id="running")
    with server.client() as connection:
        connection.delete(*connection.keys(f"{prefix}:*"))
    sync_client.queue("waits").dispatch({}, id="next")
    fleet.journal.wait_for("end", id="next")
    sync_client.queue("plain").dispatch({}, id="last")
    fleet.journal.wait_for("end", id="last")
    assert len(worker.events("worker_started")) == 2
    assert worker.stop() == 0


@ON_ONE_SERVER
def test_a_process_name_that_is_no_text_does_not_end_the_watch(
    fleet: Fleet, sync_client: SyncClient
) -> None:
    """It could not be read, and nobody looked at timeouts any more."""
    worker = fleet.serve("--queue", "timed", processes=1)
    sync_client.queue("timed").dispatch({"first": {"rename": True}, "then": {}}, id="odd")
    (start, again) = fleet.journal.wait_for("start", 2, id="odd")
    assert again["timeouts"] == 1
    assert again["pid"] != start["pid"]
    assert worker.stop() == 0


@ON_ONE_SERVER
def test_a_suspect_does_not_wedge_a_worker_with_a_long_run(
    fleet: Fleet, sync_client: SyncClient
) -> None:
    """It was held until the long run had ended, and so was everything else."""
    crashing = fleet.serve("--queue", "poison", processes=1)
    sync_client.queue("poison").dispatch({"first": {"sleep": 60}, "then": {}}, id="suspect")
    fleet.journal.wait_for("start", id="suspect")
    busy = fleet.serve("--queue", "waits", "--queue", "poison", "--queue", "plain", processes=1)
    sync_client.queue("waits").dispatch({"sleep": 30}, id="long")
    fleet.journal.wait_for("start", id="long")
    (child,) = crashing.children()
    crashing.signal(signal.SIGSTOP)  # so that it starts nobody who could take the suspect
    sync_client.queue("poison").evict(_client_of(sync_client), died=True)
    wait_until(lambda: bool(busy.events("job released")), "it lets go of the suspect")
    sync_client.queue("plain").dispatch({}, id="other")
    fleet.journal.wait_for("end", id="other", seconds=15)
    assert not fleet.journal.lines("end", id="long")
    del child


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


def _client_of(client: SyncClient) -> str:
    (holder,) = [info.id for info in client.queue("poison").clients() if info.leases]
    return holder


def test_a_retry_whose_time_was_changed_is_a_retry() -> None:
    """It could not be written, and held up every report of its queue."""
    verdict = Retry("later")
    verdict.after = timedelta(seconds=5)  # type: ignore[assignment]
    assert outcome_of(verdict) == RetryLater(outcome_of(verdict).error, None, 5.0)  # type: ignore[union-attr]
    verdict.after = "soon"  # type: ignore[assignment]
    assert outcome_of(verdict) == RetryLater(outcome_of(verdict).error)  # type: ignore[union-attr]


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
