"""All jobs are taken from a worker, on every queue it serves."""

import asyncio
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from queasy import Client, EvictionFailed, InvalidInput, InvalidOption, SyncClient, WorkerInfo
from tests.servers import Server
from tests.worker.fleet import (
    ON_ONE_SERVER,
    Fleet,
    Played,
    Running,
    Together,
    alive,
    totals,
    wait_until_gone,
)
from tests.worker.inline import until, working

together = Together()
QUEUES = ["plain", "waits"]
OPTIONS = ("--queue", "plain", "--queue", "waits")


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, server: Server) -> Iterator[Played]:
    with together.playing(request, server) as playing:
        yield playing


def _worker_of(client: SyncClient, pid: int) -> WorkerInfo:
    (found,) = [worker for worker in client.workers(QUEUES) if worker.pid == pid]
    return found


def _margin(fleet: Fleet, id_: str, first: int) -> float:
    """How many seconds after the last step of its first run a job ran again."""
    second = fleet.journal.wait_for("start", 2, id=id_)[1]
    return second["at"] - fleet.journal.lines("tick", id=id_, pid=first)[-1]["at"]


def _begin_one_of_each(fleet: Fleet, client: SyncClient, options: Any = ()) -> Running:
    worker = fleet.serve(*OPTIONS, *options, processes=1)
    for name in QUEUES:
        data = {"first": {"tick": 90}, "then": {"tick": 1}}
        client.queue(name).dispatch(data, id=name)
    fleet.journal.wait_for("tick", 1, id="plain")
    fleet.journal.wait_for("tick", 1, id="waits")
    return worker


@ON_ONE_SERVER
@together
def test_jobs_of_an_evicted_worker_run_elsewhere_after_its_runs_have_ended(
    fleet: Fleet, client: SyncClient
) -> None:
    worker = _begin_one_of_each(fleet, client)
    (pid,) = worker.children()
    evictee = _worker_of(client, pid)
    other = fleet.serve(*OPTIONS, processes=1)

    evicted = client.evict(evictee)
    assert evicted
    assert evicted.workers == (evictee.id,)
    assert evicted.jobs == {"plain": 1, "waits": 1}
    assert not alive(pid)
    for name in QUEUES:
        margin = _margin(fleet, name, pid)
        print(f"\n  {name} ran again {margin:.3f} s after its last step")
        assert margin > 0
        again = fleet.journal.lines("start", id=name)[1]
        assert (again["stalls"], again["retries"]) == (0, 0)
        assert totals(client.queue(name))["released"] == 1
        assert client.queue(name).cancel(name, running=True).status == "requested"

    worker.wait_until_serving(2)
    (after,) = worker.children()
    assert _worker_of(client, after).id != evictee.id
    assert "why=evicted" in worker.events("process_died")[0]
    assert not client.evict(evictee), "it is gone"
    assert worker.stop() == other.stop() == 0


@ON_ONE_SERVER
@together
def test_a_group_is_evicted_with_all_its_workers_and_no_other(
    fleet: Fleet, client: SyncClient
) -> None:
    worker = fleet.serve(*OPTIONS, processes=2)
    other = fleet.serve(*OPTIONS, processes=1)
    before, (spared,) = worker.children(), other.children()
    group = _worker_of(client, before[0]).group
    evicted = client.evict(group, queues=["waits"])
    assert len(evicted.workers) == 2
    assert evicted.jobs == {}
    wait_until_gone(before, 5)
    worker.wait_until_serving(4)
    assert other.children() == [spared]
    assert not other.events("process_died")
    assert worker.stop() == other.stop() == 0


@ON_ONE_SERVER
@together
def test_jobs_of_a_silent_worker_are_taken_when_its_lease_is_over(
    fleet: Fleet, client: SyncClient
) -> None:
    """Nobody can know whether it is dead, or works beyond a cut network."""
    worker = _begin_one_of_each(fleet, client, ["--lease", "3"])
    (pid,) = worker.children()
    evictee = _worker_of(client, pid)
    other = fleet.serve(*OPTIONS, "--lease", "3", processes=1)
    worker.signal(
        signal.SIGSTOP
    )  # nothing keeps its leases; its process runs on until its guard acts
    evicted = client.evict(evictee)
    assert evicted.jobs == {"plain": 1, "waits": 1}
    for name in QUEUES:
        assert _margin(fleet, name, pid) > 0
        (end,) = fleet.journal.wait_for("end", 1, id=name)
        assert [end["pid"]] == other.children()
    worker.signal(signal.SIGCONT)
    worker.wait_until_serving(2)
    assert worker.stop() == other.stop() == 0


async def test_evicted_inline_worker_cancels_its_runs_and_comes_back_under_another_id(
    client: Client,
) -> None:
    runs: list[tuple[int, str]] = []
    cancelled: list[float] = []
    queue = client.queue("q")

    @queue.handler
    async def handle(_: object, job: Any) -> None:
        runs.append((job.retry_count, job.client))
        if len(runs) == 1:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(0.2)  # its last steps
                cancelled.append(time.monotonic())
                raise
        assert cancelled, "the first run goes on"

    async with working(client):
        await queue.dispatch(1, id="a")
        await until(lambda: _true(runs), "it runs")
        (worker,) = await client.workers()
        evicted = await client.evict(worker.id)
        assert (evicted.workers, dict(evicted.jobs)) == ((worker.id,), {"q": 1})
        await until(lambda: _true(len(runs) == 2), "it runs again")
        (again,) = await client.workers()
    assert again.id != worker.id
    assert again.group == worker.group
    assert runs == [(0, worker.id), (0, again.id)]


async def _true(value: object) -> bool:
    return bool(value)


async def test_eviction_fails_if_a_run_does_not_end(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queasy.worker.eviction.GRACE_SECONDS", 0.0)
    queue, go_on, began = client.queue("q"), asyncio.Event(), asyncio.Event()

    @queue.handler
    async def handle(_: object) -> None:
        began.set()
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                continue

    async with working(client, lease=3):
        await queue.dispatch(1, id="a")
        await began.wait()
        (worker,) = await client.workers()
        with pytest.raises(EvictionFailed, match=r"still has 1 jobs.*received the order"):
            await client.evict(worker)
        row = await queue.get("a")
        assert row is not None
        assert (row.state, row.client) == ("active", worker.id), "it keeps its lease"
        go_on.set()
        await until(lambda: _gone(client, worker.id), "its run has ended")


async def _gone(client: Client, id_: str) -> bool:
    return id_ not in {worker.id for worker in await client.workers()}


async def test_pull_lease_is_not_a_worker_and_is_not_evicted(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1)
    lease = await queue.lease(timeout=5)
    assert lease is not None
    assert not await client.evict(str(lease.job.client), queues=["q"])
    assert await lease.complete()


async def test_evicted_consumer_loses_its_leases_at_once(client: Client) -> None:
    """A consumer takes no orders, and no other process can end its work: the server refuses it."""
    queue = client.queue("q")
    await queue.dispatch(1, id="a")
    async with queue.consumer(concurrency=1, lease=30) as jobs:
        lease = await anext(jobs)
        (worker,) = await client.workers(["q"])
        assert lease.job.client == worker.id
        await queue.pause()
        evicted = await client.evict(worker)
        assert (evicted.workers, dict(evicted.jobs)) == ((worker.id,), {"q": 1})
        assert (await queue.counts()).due == 1
        assert not await lease.complete()


async def test_what_is_not_a_worker_is_refused_or_not_found(
    client: Client, sync_client: SyncClient
) -> None:
    assert not await client.evict("nobody", queues=["q"])
    for bad in (None, 5, ""):
        with pytest.raises(InvalidInput, match="worker: expected"):
            await client.evict(bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="queues: expected"):
        sync_client.evict("nobody")
