"""The server is down: a clear error or a wait, and nothing lost."""

import asyncio
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from threading import Thread

import pytest

from queasy import (
    Client,
    Dispatch,
    NotRunning,
    ServerError,
    SyncClient,
    Unreachable,
)
from tests.client.waiting import until_waiting
from tests.conftest import audit_all
from tests.groups import PRIMARY_NAME, start_sentinel
from tests.servers import (
    Server,
    ServerKind,
    free_port,
    launch,
    start_server,
    wait_until,
    why_absent,
)
from tests.worker.fleet import Fleet, fleet_on


async def test_unreachable_server_is_reported_at_once() -> None:
    url = f"redis://user:hunter2@127.0.0.1:{free_port()}"
    start = time.monotonic()
    with pytest.raises(Unreachable, match="QUEASY_URL") as caught:
        async with Client(url):
            pass
    assert time.monotonic() - start < 5
    assert "127.0.0.1" in str(caught.value)
    assert "hunter2" not in str(caught.value) + repr(Client(url))
    with pytest.raises(Unreachable, match="QUEASY_URL"), SyncClient(url):
        pass


async def advice_for(url: str) -> str:
    """The advice at the end of the error, equal in both clients."""
    said: set[str] = set()
    with pytest.raises(Unreachable) as caught:
        async with Client(url, timeout=5):
            pass
    said.add(str(caught.value).rpartition("). ")[2])
    with pytest.raises(Unreachable) as caught, SyncClient(url, timeout=5):
        pass
    said.add(str(caught.value).rpartition("). ")[2])
    (advice,) = said
    return advice


async def test_error_of_an_unreachable_server_advises_by_cause(
    kind: ServerKind, tmp_path: Path
) -> None:
    right = "is the URL (the url argument, or QUEASY_URL) right?"
    for url in (f"redis://127.0.0.1:{free_port()}", f"unix://{tmp_path}/absent.sock"):
        assert await advice_for(url) == f"Is the server running, and {right}"
    with ExitStack() as stack:
        watched = {"sentinel monitor": f"{PRIMARY_NAME} 127.0.0.1 {free_port()} 1"}
        sentinel = launch(stack, kind, watched, "--sentinel")
        sentinel.wait_until_ready()
        for url in (
            "redis://host.invalid",
            f"rediss://127.0.0.1?ssl_ca_certs={tmp_path}/absent.pem",
            f"redis+sentinel://{sentinel.address}/unknown",
        ):
            assert await advice_for(url) == f"I{right[1:]}"
        hanging_up = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        Thread(target=hang_up, args=(hanging_up,), daemon=True).start()
        for scheme in ("redis", "rediss"):
            url = f"{scheme}://127.0.0.1:{hanging_up.getsockname()[1]}"
            assert "rediss:// if the server speaks TLS" in await advice_for(url)


def hang_up(listening: socket.socket) -> None:
    """Closes every connection at once, until the socket is closed."""
    with suppress(OSError):
        while True:
            listening.accept()[0].close()


@pytest.mark.parametrize("form", ["redis+sentinel://{}/mymaster", "redis+cluster://{}"])
async def test_unreachable_sentinel_or_cluster_is_reported_at_once(form: str) -> None:
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1"):
        async with Client(form.format(f"127.0.0.1:{free_port()}")):
            pass


async def test_dispatch_waits_for_a_server_that_restarts(kind: ServerKind) -> None:
    with start_server(kind, appendonly=True, appendfsync="always") as server:
        async with Client(server.url, timeout=20) as client:
            queue = client.queue("q")
            await queue.dispatch(1)
            server.kill()
            task = asyncio.create_task(queue.dispatch(2))
            await asyncio.sleep(0.2)
            assert not task.done()
            server.restart()
            assert (await task).status == "created"
            assert (await queue.counts()).waiting == 2
            assert await queue.audit() == []


async def test_waiting_lease_survives_a_restart_of_the_server(kind: ServerKind) -> None:
    with start_server(kind, appendonly=True) as server:
        async with Client(server.url, timeout=20) as client:
            queue = client.queue("q")
            waiting = asyncio.create_task(queue.lease(timeout=60))
            await until_waiting(queue)
            server.kill()
            server.restart()
            await queue.dispatch("after")
            lease = await asyncio.wait_for(waiting, 30)
            assert lease is not None
            assert await lease.complete()


@pytest.fixture(params=["alone", "behind sentinel"])
def place(request: pytest.FixtureRequest, kind: ServerKind) -> Iterator[tuple[Server, str]]:
    """A server that nothing replaces, and the URL of a client."""
    if request.param == "alone":
        with start_server(kind) as server:
            yield server, server.tcp_url
    else:
        with start_sentinel(kind, replicas=0) as group:
            yield group.primary, group.url


@pytest.mark.parametrize("is_frozen", [False, True], ids=["killed", "frozen"])
async def test_dispatch_to_a_server_that_stays_away_raises_in_time_and_names_it(
    place: tuple[Server, str], is_frozen: bool
) -> None:
    """Bug: behind Sentinel, the error named the sentinel as the server that gave no answer."""
    server, url = place
    async with Client(url, timeout=1) as client:
        with SyncClient(url, timeout=1) as sync:
            await client.queue("q").dispatch(1)
            sync.queue("q").dispatch(1)
            if is_frozen:
                server.pause()
            else:
                server.kill()
            start = time.monotonic()
            with pytest.raises(Unreachable, match=re.escape(server.address)):
                await client.queue("q").dispatch(2)
            with pytest.raises(Unreachable, match=re.escape(server.address)):
                sync.queue("q").dispatch(2)
            assert time.monotonic() - start < 8


async def test_killed_embedded_server_is_started_again(tmp_path: Path) -> None:
    async with Client(folder=tmp_path / "q") as client:
        queue = client.queue("q")
        await queue.dispatch(1, durability="fsynced")
        process = int((tmp_path / "q" / "server.lock").read_text())
        os.kill(process, signal.SIGKILL)
        await queue.dispatch(2)
        assert [job.data async for job in queue.jobs()] == [1, 2]


async def test_lease_without_timeout_survives_an_outage_longer_than_a_call(
    kind: ServerKind,
) -> None:
    with start_server(kind, appendonly=True) as server:
        async with Client(server.url, timeout=0.3) as client:
            queue = client.queue("q")
            waiting = asyncio.create_task(queue.lease())
            short = asyncio.create_task(queue.lease(timeout=1))
            await until_waiting(queue)
            server.kill()
            with pytest.raises(Unreachable):
                await short
            assert not waiting.done()
            server.restart()
            await queue.dispatch("after")
            lease = await asyncio.wait_for(waiting, 20)
            assert await lease.complete()


async def test_lease_that_begins_during_an_outage_waits_for_the_server(
    kind: ServerKind, caplog: pytest.LogCaptureFixture
) -> None:
    """Bug: only calls of lease() that waited already survived an outage. A new call raised."""
    with (
        start_server(kind, appendonly=True, appendfsync="always") as server,
        SyncClient(server.url, timeout=0.3) as sync,
    ):
        async with Client(server.url, timeout=0.3) as client:
            queue = client.queue("q")
            await queue.dispatch_many(["one", "two"])
            server.stop()
            waiting = [
                asyncio.create_task(queue.lease()),
                asyncio.create_task(asyncio.to_thread(lambda: sync.queue("q").lease())),
            ]
            with pytest.raises(ServerError):
                await queue.lease(timeout=1)
            with pytest.raises(ServerError):
                await asyncio.to_thread(lambda: sync.queue("q").lease(timeout=1))
            assert not any(one.done() for one in waiting)
            server.start()
            first, second = await asyncio.wait_for(asyncio.gather(*waiting), 30)
            assert {first.data, second.data} == {"one", "two"}
            assert await first.complete()
            assert second.complete()
            assert "cannot take back a lease" not in caplog.text, (
                "a call that was never sent is not undone"
            )


def test_lease_of_a_server_that_never_answered_raises_at_once() -> None:
    client = SyncClient(f"redis://127.0.0.1:{free_port()}", timeout=5)
    with closing(client), pytest.raises(NotRunning):
        client.queue("q").lease()


RESUME = 5.0


PREFIX = "outage"


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server of one kind: the test is about workers, and takes long."""
    if reason := why_absent(ServerKind.VALKEY):
        pytest.skip(reason)
    with start_server(ServerKind.VALKEY, appendonly=True) as running:
        yield running


@pytest.fixture
def own_fleet(own_server: Server, tmp_path: Path) -> Iterator[Fleet]:
    with fleet_on(own_server.url, PREFIX, tmp_path) as running:
        yield running


@pytest.mark.parametrize(
    "away", [20.0, pytest.param(60.0, marks=[pytest.mark.chaos, pytest.mark.timeout(240)])]
)
def test_workers_survive_an_outage_longer_than_a_lease(
    own_server: Server, own_fleet: Fleet, away: float
) -> None:
    journal = own_fleet.journal
    several = own_fleet.serve("--queue", "plain", "--queue", "waits", processes=2)
    single = own_fleet.serve("--queue", "whole", processes=1)
    with SyncClient(own_server.url, prefix=PREFIX) as client:
        names = ("plain", "waits", "whole")
        queues = {name: client.queue(name) for name in names}
        for name in ("plain", "waits"):
            for number in range(3):
                queues[name].dispatch({"sleep": 4}, id=f"{name}-during-{number}")
                queues[name].dispatch({"sleep": away + 2}, id=f"{name}-across-{number}")
            queues[name].dispatch("quick", id=f"{name}-scheduled", delay=away / 2)
        queues["whole"].dispatch({"sleep": 4}, id="whole-during-0")
        journal.wait_for("start", 13)
        queues["whole"].dispatch_many([{"sleep": 0.1}] * 5)  # due after it
        waiting = {job.id for job in queues["whole"].jobs("waiting")}
        assert len(waiting) == 5
        pids = {worker.pid: worker.children() for worker in (several, single)}

    own_server.stop()
    journal.wait_for("end", 7)  # all ended while the server was down
    away_since = time.monotonic()
    wait_until(lambda: time.monotonic() - away_since > away - 4, "away", away)
    assert several.events("process_frozen")
    assert len(journal.lines("start")) == 13
    own_server.start()
    back = time.monotonic()

    with SyncClient(own_server.url, prefix=PREFIX) as client:
        queues = {name: client.queue(name) for name in names}
        for name in names:
            queues[name].dispatch("quick", id=f"{name}-afterwards")
        everything = 13 + 2 + 5 + 3
        journal.wait_for("end", everything)
        starts = journal.lines("start")
        resumed = {
            name: min(s["at"] for s in starts if s["queue"] == name and s["at"] > back) - back
            for name in names
        }
        print("\n  resumed after", {name: f"{after:.2f} s" for name, after in resumed.items()})
        assert max(resumed.values()) < RESUME
        wait_until(lambda: all(not q.counts().active for q in queues.values()), "all is settled")
        frozen, thawed = (several.events(f"process_{how}") for how in ("frozen", "thawed"))
        assert len(frozen) == len(thawed) > 0
        assert {worker.pid: worker.children() for worker in (several, single)} == pids
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        starts, ends = journal.lines("start"), journal.lines("end")
        assert len(starts) == len(ends) == everything
        assert len({line["id"] for line in ends}) == everything
        assert waiting <= {line["id"] for line in ends}
        assert {(line["stalls"], line["retries"]) for line in starts} == {(0, 0)}
        for queue in queues.values():
            assert [stat for stat in queue.stats() if stat.kind == "stalled"] == []
            counts = queue.counts()
            assert (counts.due, counts.active, counts.failed) == (0, 0, 0)
        assert several.stop() == single.stop() == 0
    audit_all(own_server, PREFIX)


def test_jobs_of_a_blocked_worker_are_given_back_when_a_silent_server_answers_again(
    own_server: Server, own_fleet: Fleet, tmp_path: Path
) -> None:
    """Bug: the supervisor tried once. If that failed, the jobs waited until the handler ended."""
    unblock, journal = tmp_path / "unblock", own_fleet.journal
    with SyncClient(own_server.url, prefix=PREFIX) as client:
        queue = client.queue("swift")
        quick = [Dispatch(None, id=f"quick-{number}") for number in range(9)]
        queue.dispatch_many([Dispatch({"until": str(unblock)}, id="blocks"), *quick])
        blocked = own_fleet.serve(processes=1, app="tests.worker.swift:client")
        journal.wait_for("start", id="blocks")
        own_server.pause()
        wait_until(lambda: blocked.events("jobs_not_given_back"), "the first try has failed")
        own_server.resume()
        wait_until(lambda: queue.counts().active == 1, "it holds only what it has begun")
        assert blocked.events("jobs_given_back")
        unblock.touch()
        wait_until(lambda: queue.counts().active + queue.counts().due == 0, "all have run")
    assert blocked.stop() == 0
    audit_all(own_server, PREFIX)
