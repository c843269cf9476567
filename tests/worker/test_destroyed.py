"""A queue is destroyed while workers serve it: they stay, and serve it again."""

import asyncio
from typing import Any

import pytest

from queasy import Client, Failure, Job, QueueInUse, SyncClient
from tests.servers import wait_until
from tests.worker.fleet import Fleet
from tests.worker.inline import Seen, until_empty, working


def test_processes_that_serve_a_destroyed_queue_stay_and_serve_it_again(
    fleet: Fleet, sync_client: SyncClient
) -> None:
    """Bug: each of these processes ended, and released its runs of other queues."""
    worker = fleet.serve("--queue", "waits", "--queue", "high", processes=2)
    before = worker.children()
    destroyed, other = sync_client.queue("waits"), sync_client.queue("high")
    gate = fleet.journal.path.with_name("gate")
    other.dispatch({"until": str(gate)}, id="of another queue")
    destroyed.dispatch({"sleep": 90}, id="lost")
    fleet.journal.wait_for("start", 2)
    with pytest.raises(QueueInUse, match="1 job is active, and 2 workers or"):
        destroyed.destroy()
    destroyed.destroy(force=True)
    destroyed.dispatch({}, id="later")
    fleet.journal.wait_for("end", 1, id="later")
    wait_until(lambda: len(worker.events("queue_destroyed")) == 2, "both processes notice")
    wait_until(lambda: len(destroyed.clients()) == 2, "both processes join again")
    gate.touch()
    fleet.journal.wait_for("end", 1, id="of another queue")
    assert len(fleet.journal.lines("start", id="of another queue")) == 1
    assert not fleet.journal.lines("end", id="lost")
    assert worker.children() == before
    assert not worker.events("worker_declared_dead")
    assert worker.stop() == 0
    destroyed.destroy()


def test_full_process_notices_that_a_queue_of_its_runs_was_destroyed(
    fleet: Fleet, sync_client: SyncClient
) -> None:
    """It does not poll this queue: its supervisor says so."""
    worker = fleet.serve("--queue", "waits", "--queue", "whole", processes=1)
    before = worker.children()
    whole = sync_client.queue("whole")
    whole.dispatch({"tick": 90}, id="lost")
    fleet.journal.wait_for("start", 1, id="lost")
    whole.destroy(force=True)
    sync_client.queue("waits").dispatch({}, id="has room now")
    fleet.journal.wait_for("end", 1, id="has room now")
    whole.dispatch({}, id="later")
    fleet.journal.wait_for("end", 1, id="later")
    assert worker.children() == before
    assert worker.stop() == 0


async def test_inline_worker_stays_when_a_queue_is_destroyed(client: Client, seen: Seen) -> None:
    one, other = client.queue("one"), client.queue("other")
    ends, started = asyncio.Event(), asyncio.Event()

    @one.handler
    async def of_one(data: Any, job: Job) -> None:
        seen.add(data, job)

    @other.handler
    async def of_other(data: Any, job: Job) -> None:
        started.set()
        await ends.wait()
        seen.add(data, job)

    async with working(client):
        await other.dispatch(1)
        await started.wait()
        (before,) = [found.id for found in await one.clients()]
        await one.destroy(force=True)
        await one.dispatch(2)
        await seen.runs(1)
        ends.set()
        await seen.runs(2)
        await until_empty(other)
        assert [found.id for found in await one.clients()] == [before]
    assert seen.data == [2, 1]


async def test_fail_handler_of_a_destroyed_queue_still_runs(client: Client, seen: Seen) -> None:
    """Bug: the queue did not have it any more, for up to an hour."""
    queue = client.queue("one")

    @queue.handler
    async def fail(data: Any) -> Failure:
        return Failure(data)

    @queue.fail_handler
    async def gave_up(data: Any, job: Job) -> None:
        seen.add(data, job)

    async with working(client):
        await queue.dispatch("before")
        await seen.runs(1)
        await queue.destroy(force=True)
        await queue.dispatch("after")
        await seen.runs(2)
    assert seen.data == ["before", "after"]


def test_run_of_a_destroyed_queue_that_does_not_end_is_killed_with_its_process(
    fleet: Fleet, sync_client: SyncClient
) -> None:
    """Bug: it went on until its timeout, beside a later run of its id."""
    worker = fleet.serve("--queue", "whole", processes=1)
    before = worker.children()
    queue = sync_client.queue("whole")
    queue.dispatch({"tick": 90, "deaf": True}, id="same")
    fleet.journal.wait_for("start", 1, id="same")
    queue.destroy(force=True)
    queue.dispatch({}, id="same")
    fleet.journal.wait_for("end", 1, id="same")
    assert worker.children() != before
    assert worker.stop() == 0
