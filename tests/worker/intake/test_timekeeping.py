"""Timekeeping: one waiter polls when the next job is due; when it cannot, another takes over."""

import asyncio
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from queasy import Client, SyncClient
from queasy.store.command import Command
from queasy.store.records import Taken
from queasy.store.store import AsyncStore
from tests.servers import Server, wait_until
from tests.worker.fleet import ON_ONE_SERVER, Fleet, Played, Running, Together
from tests.worker.inline import until_empty, working

pytestmark = ON_ONE_SERVER
together = Together()


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, server: Server) -> Iterator[Played]:
    with together.playing(request, server) as playing:
        yield playing


@together
def test_job_that_comes_due_does_not_wait_for_a_full_worker(
    fleet: Fleet, client: SyncClient
) -> None:
    """Bug: the job waited for the safety poll of the other, idle worker: 8 to 60 s."""
    small, journal = client.queue("small"), fleet.journal
    keeper = fleet.serve("--queue", "small", "--queue", "whole", processes=1)
    other = fleet.serve("--queue", "small", processes=1)
    sent = _dispatch_later(client)
    client.queue("whole").dispatch({"sleep": 8}, id="long")
    journal.wait_for("start", id="long")
    _assert_ran_in_time(fleet, sent, other)
    assert keeper.stop() == other.stop() == 0
    assert small.counts().waiting == 0


@together
def test_job_that_comes_due_does_not_wait_for_a_stopping_worker(
    fleet: Fleet, client: SyncClient
) -> None:
    small, journal = client.queue("small"), fleet.journal
    keeper = fleet.serve("--queue", "small", processes=1)
    small.dispatch({"sleep": 8}, id="long")
    journal.wait_for("start", id="long")
    wait_until(lambda: small.counts().waiters == 1, "it is a waiter, with capacity left")
    other = fleet.serve("--queue", "small", processes=1)
    sent = _dispatch_later(client)
    keeper.signal(signal.SIGTERM)
    _assert_ran_in_time(fleet, sent, other)
    assert keeper.process.wait(60) == other.stop() == 0


@together
def test_jobs_that_come_due_together_start_on_all_idle_workers(
    fleet: Fleet, client: SyncClient
) -> None:
    """Bug: one waiter kept the time and took one job; the others started after 6 s or more."""
    whole = client.queue("whole")
    worker = fleet.serve("--queue", "whole", processes=4)
    wait_until(lambda: whole.counts().waiters == 4, "all four are waiters")
    due_at = time.monotonic() + 1
    for number in range(4):
        whole.dispatch({"sleep": 3}, id=f"job-{number}", delay=1)
    starts = fleet.journal.wait_for("start", 4)
    assert max(start["at"] for start in starts) - due_at < 2.5
    assert len({start["pid"] for start in starts}) == 4
    assert worker.stop() == 0


def _dispatch_later(client: SyncClient) -> float:
    """Dispatches a job for later. The first of two waiters has to poll when it is due."""
    small = client.queue("small")
    wait_until(lambda: small.counts().waiters == 2, "both are waiters")
    small.dispatch({}, id="later", delay=2)
    wait_until(lambda: small.counts().waiters == 2, "both are waiters again")
    return time.monotonic()


def _assert_ran_in_time(fleet: Fleet, sent: float, worker: Running) -> None:
    (start,) = fleet.journal.wait_for("start", id="later")
    assert start["at"] - sent < 4
    assert start["pid"] in worker.children()


async def test_late_answer_does_not_make_a_scheduled_job_late(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer counts the time until a job is due from when it was sent, not from its arrival."""
    small, run, started = client.queue("small"), AsyncStore.run, list[float]()
    late = list[Taken]()

    async def run_slowly(store: AsyncStore, command: Command[Any], *more: Any) -> Any:
        answer = await run(store, command, *more)
        # Only the first: the poll may come a little early, and then is repeated.
        if isinstance(answer, Taken) and not late:
            late.append(answer)
            await asyncio.sleep(2)
        return answer

    @small.handler()
    async def handle(data: None) -> None:
        started.append(time.monotonic())

    due = time.monotonic() + 4
    await small.dispatch(None, id="later", delay=4)
    monkeypatch.setattr(AsyncStore, "run", run_slowly)
    async with working(client):
        await until_empty(small)
    assert late[0].count == 0
    assert -0.001 < started[0] - due < 1.5, "two seconds late if counted from the arrival"
