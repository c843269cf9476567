"""A server that restarts without its last writes, as from a snapshot or an outdated replica. Each
test takes the snapshot at the critical moment.
"""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queasy import Client, Job, SyncClient
from queasy.outcomes import Release
from queasy.store.records import Ending
from tests.conftest import audit_all
from tests.lowlevel import commands_of, run
from tests.servers import Server, ServerKind, start_server, wait_until
from tests.worker.fleet import ON_ONE_SERVER, Fleet, Journal, fleet_on
from tests.worker.inline import PATIENCE, Seen, until

PREFIX = "forgotten"
pytestmark = ON_ONE_SERVER


@pytest.fixture
def forgetful(kind: ServerKind) -> Iterator[Server]:
    with start_server(kind) as server:
        yield server


@pytest.fixture
def own_fleet(forgetful: Server, tmp_path: Path) -> Iterator[Fleet]:
    with fleet_on(forgetful.url, PREFIX, tmp_path) as fleet:
        yield fleet


def go_back(server: Server) -> None:
    """Restarts the server from its last snapshot."""
    server.kill()
    server.start()


def let_go(journal: Journal, run: int) -> None:
    """Ends an uninterruptible run, by killing the process it waits for."""
    os.kill(journal.wait_for("spawned", run + 1)[run]["spawned"], signal.SIGKILL)


def test_job_with_a_forgotten_finish_runs_again(forgetful: Server, own_fleet: Fleet) -> None:
    journal = own_fleet.journal
    worker = own_fleet.serve("--queue", "waits", processes=1)
    pids = worker.children()
    with SyncClient(forgetful.url, prefix=PREFIX) as client:
        queue = client.queue("waits")
        queue.dispatch({"sleep": 1}, id="a")
        queue.dispatch({"sleep": 3}, id="b")
        journal.wait_for("start", 2)
        forgetful.call("SAVE")
        journal.wait_for("end", id="a")
        wait_until(lambda: queue.counts().active == 1, "a is finished")
        go_back(forgetful)
        first, second = journal.wait_for("end", 2, id="a")
        wait_until(lambda: queue.counts().active == 0, "all is settled")
        assert first["token"] < second["token"]
        assert second["stalls"] == 0
        assert len(journal.lines("start", id="b")) == 1  # it was neither interrupted nor repeated
        assert worker.children() == pids
    assert worker.stop() == 0
    audit_all(forgetful, PREFIX)


def test_run_with_a_forgotten_start_is_interrupted(forgetful: Server, own_fleet: Fleet) -> None:
    journal = own_fleet.journal
    worker = own_fleet.serve("--queue", "waits", processes=1)
    with SyncClient(forgetful.url, prefix=PREFIX) as client:
        queue = client.queue("waits")
        queue.pause()
        queue.dispatch({"sleep": 60}, id="a")
        forgetful.call("SAVE")
        queue.resume()
        journal.wait_for("start", id="a")
        go_back(forgetful)  # in the snapshot the queue is paused: the job is not taken
        journal.wait_for("cancelled", id="a")
        assert queue.counts().due == 1
        assert worker.stop() == 0
        queue.resume()
        lease = queue.lease(timeout=10)
        assert lease is not None
        assert lease.job.token > journal.lines("start", id="a")[0]["token"]
        assert lease.complete()
    audit_all(forgetful, PREFIX)


def test_forgotten_lease_of_an_id_is_released_when_its_later_run_ended(
    forgetful: Server, own_fleet: Fleet
) -> None:
    """Bug: the ids were equal, so the worker neither ran nor released it: active for ever."""
    journal = own_fleet.journal
    worker = own_fleet.serve("--queue", "plain", processes=1)
    with SyncClient(forgetful.url, prefix=PREFIX) as client:
        queue = client.queue("plain")
        queue.dispatch({"tick": 60}, id="a")
        journal.wait_for("start", id="a")
        forgetful.call("SAVE")
        queue.cancel("a", running=True)
        wait_until(lambda: queue.counts().active == 0, "the first run has ended")
        queue.dispatch({"spawn": 60}, id="a")
        journal.wait_for("spawned", id="a")
        go_back(forgetful)
        forgotten = "unknown_lease_released"
        wait_until(lambda: worker.events(forgotten), "the leases are compared")
        queue.dispatch({"sleep": 0}, id="b")
        journal.wait_for("end", id="b")
        # The outcome of b is reported after its handler wrote the line. The later run of a goes
        # on, so a must not be leased yet.
        wait_until(lambda: queue.counts().active == 1, "b is settled")
        assert len(journal.lines("start", id="a")) == 2
        let_go(journal, 0)
        tokens = [line["token"] for line in journal.wait_for("start", 3, id="a")]
        assert tokens == sorted(set(tokens))
        queue.cancel("a", running=True)
        wait_until(lambda: queue.counts().active == 0, "all is settled")
        assert queue.dispatch({"sleep": 0}, id="a").status == "created"
        journal.wait_for("end", id="a")
        wait_until(lambda: queue.counts().active == 0, "that is settled, too")
    assert len(worker.events(forgotten)) == 1
    assert worker.stop() == 0
    audit_all(forgetful, PREFIX)


def test_deferred_job_that_the_server_forgot_does_not_start(
    forgetful: Server, own_fleet: Fleet
) -> None:
    journal = own_fleet.journal
    worker = own_fleet.serve("--queue", "plain", processes=1)
    with SyncClient(forgetful.url, prefix=PREFIX) as client:
        queue = client.queue("plain")
        queue.pause()
        queue.dispatch({"spawn": 60}, id="a")
        forgetful.call("SAVE")
        for _ in range(2):  # taken; runs, or is deferred until the earlier run ends; forgotten
            queue.resume()
            wait_until(lambda: queue.counts().active == 1, "it is taken")
            journal.wait_for("spawned")
            go_back(forgetful)
        let_go(journal, 0)
        wait_until(lambda: worker.events("outcome_refused"), "its first run has ended")
        queue.resume()
        let_go(journal, 1)
        wait_until(lambda: not (queue.counts().due or queue.counts().active), "all is settled")
        assert len(journal.lines("start", id="a")) == 2
    assert worker.stop() == 0
    audit_all(forgetful, PREFIX)


def test_capacity_is_kept_for_a_job_deferred_until_its_earlier_run_ends(
    forgetful: Server, own_fleet: Fleet
) -> None:
    """Bug: other jobs took the capacity. The deferred job never began, without any message."""
    journal = own_fleet.journal
    worker = own_fleet.serve("--queue", "plain", "--capacity", "20", processes=1)
    with SyncClient(forgetful.url, prefix=PREFIX) as client:
        queue = client.queue("plain")
        queue.dispatch({"spawn": 60}, id="a", delay=0.5)
        forgetful.call("SAVE")
        journal.wait_for("spawned")
        go_back(forgetful)
        wait_until(lambda: queue.counts().active == 1, "it is taken again, and waits")
        queue.dispatch({"sleep": 0}, id="b")
        watched_until = time.monotonic() + 1  # with the bug it was taken at once
        while time.monotonic() < watched_until:
            assert queue.counts().due == 1
        let_go(journal, 0)
        let_go(journal, 1)
        journal.wait_for("end", id="b")
        wait_until(lambda: not (queue.counts().due or queue.counts().active), "all is settled")
        assert len(journal.lines("start", id="a")) == 2
    assert worker.stop() == 0
    audit_all(forgetful, PREFIX)


@pytest.mark.parametrize("how", ["stopped", "leaves the queue"])
async def test_closing_worker_still_reconciles_after_the_server_forgot(
    forgetful: Server, how: str
) -> None:
    """Bug: it did not reconcile again. It ran a job to the end that others could lease."""
    seen, ended = Seen(), asyncio.Event()
    async with Client(forgetful.url, prefix=PREFIX) as client:
        emails = client.queue("emails")

        @emails.handler
        async def handle(data: Any, job: Job) -> None:
            seen.add(data, job)
            try:
                await asyncio.sleep(60)
            finally:
                ended.set()

        await emails.dispatch(1, id="a")
        worker = client.worker(signals=False, grace=60)
        life = asyncio.create_task(worker.run())
        (job,) = await seen.runs(1)
        await emails.pause()
        if how == "stopped":
            worker.stop()
            closing = life
        else:
            closing = asyncio.create_task(worker.unserve("emails"))

        # This snapshot has the lease: the run goes on.
        (info,) = await emails.clients()
        channel = emails.keys.channel(info.id)
        forgetful.call("SAVE")
        await asyncio.to_thread(go_back, forgetful)

        async def listens() -> bool:
            return channel in await asyncio.to_thread(forgetful.call, "PUBSUB", "SHARDCHANNELS")

        await until(listens, "it listens again")
        assert not ended.is_set()

        # The next snapshot lacks the lease, as if another client had released the job.
        await run(emails, commands_of(emails).settle([Ending("a", job.token, Release())]))
        forgetful.call("SAVE")
        assert not ended.is_set()
        await asyncio.to_thread(go_back, forgetful)
        async with asyncio.timeout(PATIENCE):
            await ended.wait()
            await closing
        assert (await emails.counts()).due == 1
        worker.stop()
        await life
    audit_all(forgetful, PREFIX)


async def test_worker_stops_in_time_when_it_cannot_reconcile(forgetful: Server) -> None:
    seen = Seen()
    async with Client(forgetful.url, prefix=PREFIX, timeout=1) as client:
        emails = client.queue("emails")

        @emails.handler
        async def handle(data: Any, job: Job) -> None:
            seen.add(data, job)
            await asyncio.sleep(60)

        await emails.dispatch(1, id="a")
        worker = client.worker(signals=False, grace=1)
        life = asyncio.create_task(worker.run())
        await seen.runs(1)
        worker.stop()
        forgetful.kill()
        async with asyncio.timeout(PATIENCE):
            await life
    forgetful.start()


def test_inline_worker_declared_dead_twice_at_once_restarts_once(
    fleet: Fleet, sync_client: SyncClient, server: Server, prefix: str
) -> None:
    """Bug: the second notice arrived while the worker stopped, and ended each restart at once."""
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
