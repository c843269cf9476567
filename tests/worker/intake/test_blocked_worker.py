"""An async handler that blocks the event loop does not delay jobs of other queues."""

import asyncio
import time
from pathlib import Path
from typing import Any, cast

import pytest

from queasy import Client, Dispatch, Job, Queue, SyncClient
from tests.servers import wait_until
from tests.worker.fleet import Fleet
from tests.worker.inline import Seen, until, until_empty, working

# Seconds. Without a wake-up, a worker with this many queues polls each about twice a minute. A
# worker that is woken does not take seconds.
WAKE_UP_LIMIT = 10.0
ROUNDS = 6


def test_jobs_are_not_left_to_a_worker_with_a_blocked_event_loop(
    fleet: Fleet, sync_client: SyncClient, tmp_path: Path
) -> None:
    """Bug: the wake-up went to the blocked worker, which did not read it. The other one slept."""
    fleet.serve(processes=2)
    unblock, waits = tmp_path / "unblock", sync_client.queue("waits")
    crowd = [sync_client.queue(f"crowd-{number}") for number in range(ROUNDS)]
    for queue in (waits, *crowd):
        wait_until(lambda queue=queue: queue.counts().waiters == 2, "both workers are waiters")
    waits.dispatch({"until": str(unblock)}, id="blocks")
    (start,) = fleet.journal.wait_for("start", id="blocks")
    for queue in crowd:
        wait_until(
            lambda queue=queue: queue.counts().waiters == 1,
            "the blocked worker is not a waiter any more",
        )
        queue.dispatch("quick", id=queue.name)
        (end,) = fleet.journal.wait_for("end", id=queue.name, seconds=WAKE_UP_LIMIT)
        assert end["pid"] != start["pid"]
    unblock.touch()
    fleet.journal.wait_for("end", id="blocks")
    for queue in (waits, *crowd):
        wait_until(
            lambda queue=queue: queue.counts().waiters == 2, "both are waiters again", WAKE_UP_LIMIT
        )


def test_jobs_that_a_blocked_worker_has_not_begun_are_given_back_within_a_second(
    fleet: Fleet, sync_client: SyncClient, tmp_path: Path
) -> None:
    """Bug: an async handler that blocked kept up to 123 jobs that its worker had taken."""
    unblock, queue = tmp_path / "unblock", sync_client.queue("swift")
    quick = [Dispatch(None, id=f"quick-{number}") for number in range(99)]
    blocks = Dispatch({"until": str(unblock)}, id="blocks")
    # When the loop is blocked, the first ten have ended, and are not reported yet.
    queue.dispatch_many([*quick[:10], blocks, *quick[10:]])
    blocked = fleet.serve(processes=1, app="tests.worker.swift:client")
    (start,) = fleet.journal.wait_for("start", id="blocks")
    before = len(fleet.journal.lines("end"))
    wait_until(lambda: queue.counts().active <= before + 1, "it holds only what it has begun")
    seconds = time.monotonic() - start["at"]
    print(f"given back after {seconds:.2f} s")
    assert seconds < 1.5
    wait_until(lambda: bool(blocked.events("jobs_given_back")), "the supervisor has logged it")
    fleet.serve(processes=1, app="tests.worker.swift:client")
    fleet.journal.wait_for("end", 99)
    unblock.touch()
    fleet.journal.wait_for("end", id="blocks")
    wait_until(lambda: queue.counts().active == 0, "the first worker has reported")
    assert blocked.stop() == 0
    starts = [line["id"] for line in fleet.journal.lines("start")]
    assert sorted(starts) == sorted(["blocks", *(job.id for job in quick)]), "each ran once"
    assert not blocked.events("outcome_refused")


@pytest.mark.parametrize("plain", [False, True])
async def test_worker_runs_jobs_with_lower_tokens_than_those_given_back(
    client: Client, emails: Queue, seen: Seen, plain: bool
) -> None:
    """Bug: it took, refused and released each job for ever. A server that forgot its last writes,
    and whose clock is behind, gives out lower tokens.
    """
    loop = asyncio.get_running_loop()

    def handle(data: Any, job: Job) -> None:
        loop.call_soon_threadsafe(seen.add, data, job)

    async def handle_async(data: Any, job: Job) -> None:
        seen.add(data, job)

    emails.handler(handle if plain else handle_async)
    async with working(client) as worker:

        async def ready() -> bool:
            return worker.ready

        await until(ready, "the worker serves")
        table = cast("Any", worker)._worker.table
        for number in range(3):
            # As a supervisor does that gives back jobs of a server with a clock that is ahead.
            table.revoke(0, 2**62)
            table.note_given_back(0)
            await emails.dispatch(number)
            await seen.runs(number + 1)
        await until_empty(emails)
    assert seen.data == [0, 1, 2]
