"""Every error that a running server can answer with: a clear refusal, nothing lost, work resumes.

Each test brings the server into a real state under a worker, a producer and a pull consumer. When
the state ends, all resume by themselves: no process is restarted, and no job runs twice.
"""

import asyncio
import resource
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from queasy import (
    AccessDenied,
    Client,
    Dispatched,
    NotReady,
    OutOfMemory,
    ReadOnly,
    SyncClient,
    Unreachable,
)
from tests.client.waiting import until_waiting
from tests.faults.busy import looping
from tests.faults.traffic import Traffic, kind, traffic_on
from tests.proxy import Proxy
from tests.servers import (
    HOST,
    Server,
    ServerKind,
    free_port,
    start_replica,
    start_server,
    wait_until,
)
from tests.worker.inline import until

__all__ = ["kind"]  # a fixture

FILLERS = 8000


@pytest.fixture(scope="module")
def own_server(kind: ServerKind) -> Iterator[Server]:
    """A server for these tests only. It loads slowly, and soon answers BUSY during a script."""
    with start_server(
        kind, appendonly=True, busy_reply_threshold=50, key_load_delay=100,
        loading_process_events_interval_bytes=1024, **{"user app": "on >secret ~* &* +@all"},
    ) as server:  # fmt: skip
        yield server


@pytest.fixture(scope="module")
def traffic(own_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traffic]:
    url = own_server.url_as("app", "secret")
    with traffic_on(own_server, url, "errors", tmp_path_factory.mktemp("errors")) as running:
        yield running


def in_flight(traffic: Traffic, name: str, seconds: float = 0.7) -> None:
    """Starts a job that ends while the server refuses calls."""
    id_ = f"{name}-in-flight"
    with traffic.client() as client:
        client.queue("waits").dispatch({"sleep": seconds}, id=id_)
    traffic.journal.wait_for("start", id=id_)


def test_a_full_server_refuses_dispatches_and_drains(traffic: Traffic) -> None:
    server = traffic.server
    with traffic.flowing("oom"), traffic.client() as client:
        held = client.queue("waits")
        held.dispatch("later", id="oom-cancelled", delay=3600)
        in_flight(traffic, "oom")
        server.call("CONFIG", "SET", "maxmemory", "1")
        traffic.wait_for_refusals(OutOfMemory, "raise maxmemory")
        accepted = {id_ for _, _, id_ in traffic.accepted}
        # Draining works: jobs are leased, extended and ended, cancelled and swept.
        assert held.cancel("oom-cancelled")
        assert held.sweep() == 0
        traffic.journal.wait_for("end", id="oom-in-flight")
        plain, pulled = client.queue("plain"), client.queue("pulled")
        for queue in (held, plain, pulled):
            wait_until(
                lambda queue=queue: not queue.counts().waiting and not queue.counts().active,
                f"{queue.name} drains while the memory is full",
            )
        pulls = {id_ for id_, _ in traffic.pulled}
        ended = {line["id"] for line in traffic.journal.lines("end")}
        assert accepted <= pulls | ended
        assert traffic.pull_errors == []
        server.call("CONFIG", "SET", "maxmemory", "0")


@pytest.mark.parametrize("way", ["script", "function"])
def test_work_resumes_when_a_busy_script_is_killed(traffic: Traffic, way: str) -> None:
    server = traffic.server
    with traffic.flowing(f"busy-{way}"), looping(server, way):
        traffic.wait_for_refusals(NotReady, "SCRIPT KILL or FUNCTION KILL ends it")


def test_work_resumes_when_a_demoted_server_is_primary_again(traffic: Traffic) -> None:
    server = traffic.server
    with traffic.flowing("readonly"):
        in_flight(traffic, "readonly")
        server.call("REPLICAOF", HOST, free_port())
        traffic.wait_for_refusals(ReadOnly, "Point the URL at the primary")
        traffic.journal.wait_for("end", id="readonly-in-flight")
        server.call("REPLICAOF", "NO", "ONE")
    assert any(isinstance(error, ReadOnly) for error in traffic.pull_errors)


async def test_call_waits_for_a_server_that_is_read_only_for_a_moment(kind: ServerKind) -> None:
    """Bug: a call raised ReadOnly at once, although a failover was about to end."""
    with (
        start_server(kind) as server,
        SyncClient(server.url) as sync,
        ThreadPoolExecutor(1) as thread,
    ):
        async with Client(server.url) as client:
            await client.queue("q").dispatch(0)
            sync.queue("q").dispatch(1)
            server.call("REPLICAOF", HOST, free_port())
            try:
                waiting = asyncio.create_task(client.queue("q").dispatch(2))
                sync_waiting = thread.submit(sync.queue("q").dispatch, 3)
                await asyncio.sleep(1)
                assert not waiting.done()
                assert not sync_waiting.done()
            finally:
                server.call("REPLICAOF", "NO", "ONE")
            assert (await waiting).status == "created"
            assert sync_waiting.result().status == "created"


async def test_read_only_server_is_named_when_the_timeout_is_over(kind: ServerKind) -> None:
    with start_server(kind) as server:
        async with Client(server.url, timeout=0.5) as client:
            await client.queue("q").dispatch(0)
            server.call("REPLICAOF", HOST, free_port())
            began = time.monotonic()
            with pytest.raises(ReadOnly, match="Point the URL at the primary"):
                await client.queue("q").dispatch(1)
            assert 0.2 < time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("taken", "given", "says"),
    [("-fcall", "+fcall", "Grant +fcall"), ("-zadd", "+zadd", "Grant"),
     ("resetkeys", "~*", "~queasy:*")],
    ids=["the-call", "a-command-inside", "the-keys"],
)  # fmt: skip
def test_work_resumes_when_a_revoked_permission_is_granted_again(
    traffic: Traffic, taken: str, given: str, says: str
) -> None:
    server = traffic.server
    with traffic.flowing(f"noperm{taken}"):
        in_flight(traffic, f"noperm{taken}")
        server.call("ACL", "SETUSER", "app", taken)
        traffic.wait_for_refusals(AccessDenied, says)
        traffic.journal.wait_for("end", id=f"noperm{taken}-in-flight")
        server.call("ACL", "SETUSER", "app", given)


def test_work_resumes_when_revoked_channels_are_granted_again(traffic: Traffic) -> None:
    server = traffic.server
    with traffic.flowing("deaf"):
        server.call("ACL", "SETUSER", "app", "resetchannels")
        # The function may not publish either: a dispatch is refused when there is a waiter.
        wait_until(lambda: bool(traffic.pull_errors or traffic.refused), "a client is refused")
        for error in (*traffic.pull_errors, *(error for _, error in traffic.refused)):
            assert isinstance(error, AccessDenied)
        server.call("ACL", "SETUSER", "app", "&*")


def test_work_resumes_when_enough_replicas_are_back(traffic: Traffic) -> None:
    server = traffic.server
    with traffic.flowing("noreplicas"):
        in_flight(traffic, "noreplicas")
        server.call("CONFIG", "SET", "min-replicas-to-write", 1)
        traffic.wait_for_refusals(NotReady, "lower min-replicas-to-write")
        traffic.journal.wait_for("end", id="noreplicas-in-flight")
        server.call("CONFIG", "SET", "min-replicas-to-write", 0)


def test_work_resumes_when_a_failed_snapshot_succeeds(traffic: Traffic) -> None:
    server = traffic.server
    obstacle = Path(
        server.call("CONFIG", "GET", "dir")[1], "dump.rdb"
    )  # a directory in its place, since root ignores permissions
    server.call("CONFIG", "SET", "save", "3600 1000000")
    with traffic.flowing("snapshot"):
        in_flight(traffic, "snapshot")
        (obstacle / "in-the-way").mkdir(parents=True)
        server.call("BGSAVE")
        traffic.wait_for_refusals(NotReady, "free its disk")
        traffic.journal.wait_for("end", id="snapshot-in-flight")
        (obstacle / "in-the-way").rmdir()
        obstacle.rmdir()
        wait_until(lambda: bool(server.call("BGSAVE")), "a snapshot begins")
    server.call("CONFIG", "SET", "save", "")


def test_work_resumes_when_a_full_disk_is_freed(traffic: Traffic) -> None:
    server = traffic.server
    with traffic.flowing("disk"):
        in_flight(traffic, "disk")
        # Limits the size of the server's files: its next write to the append-only file fails.
        log = Path(server.call("CONFIG", "GET", "dir")[1], "appendonlydir").glob("*.aof")
        largest = max(path.stat().st_size for path in log)
        endless = resource.RLIM_INFINITY
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (largest, endless))
        traffic.wait_for_refusals(NotReady, "free its disk")
        traffic.journal.wait_for("end", id="disk-in-flight")
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (endless, endless))


def test_a_library_that_is_flushed_under_load_is_loaded_again(traffic: Traffic) -> None:
    with traffic.flowing("flushed"):
        in_flight(traffic, "flushed")
        for _ in range(20):
            traffic.server.call("FUNCTION", "FLUSH")
            flushed = time.monotonic()
            wait_until(lambda at=flushed: traffic.accepted[-1][0] > at, "it is loaded again")
        traffic.journal.wait_for("end", id="flushed-in-flight")
    assert traffic.refused == []
    assert traffic.pull_errors == []


def test_work_resumes_when_a_restarted_server_has_loaded(traffic: Traffic) -> None:
    server = traffic.server
    with server.client() as client:
        pipe = client.pipeline(transaction=False)
        for number in range(FILLERS):
            pipe.set(f"filler-{number}", "x")
        pipe.execute()
        # Load from a snapshot: then the server answers after every 1024 bytes, as configured.
        client.bgrewriteaof()
        wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"], "rewritten")
    with traffic.flowing("loading"):
        in_flight(traffic, "loading")
        server.restart()  # returns when it has loaded
        said = [str(error) for _, error in traffic.refused + traffic.unsure]
        assert any("loading its data" in words for words in said)
        assert {type(error) for _, error in traffic.refused} <= {Unreachable, NotReady}


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_call_reconnects_when_its_host_name_moved_to_a_new_primary(
    kind: ServerKind, sync: bool
) -> None:
    """Bug: pooled connections stayed with the old primary, which refused every call."""
    with start_server(kind) as old, start_replica(old) as new:
        async with Proxy(old.port) as name:
            client = SyncClient(name.url) if sync else Client(name.url)

            async def dispatch(number: int) -> Dispatched:
                if isinstance(client, SyncClient):
                    return await asyncio.to_thread(client.queue("q").dispatch, number)
                return await client.queue("q").dispatch(number)

            await dispatch(1)
            wait_until(lambda: new.call("DBSIZE") == old.call("DBSIZE"), "it is replicated")
            new.call("REPLICAOF", "NO", "ONE")
            old.call("REPLICAOF", HOST, new.port)
            name.lead_to(new.port)
            assert (await dispatch(2)).status == "created"
            if isinstance(client, SyncClient):
                client.close()
            else:
                await client.close()
        with SyncClient(new.url) as reader:
            assert [job.data for job in reader.queue("q").jobs()] == [1, 2]


async def test_worker_declared_dead_restarts_although_the_server_refuses_at_first(
    kind: ServerKind, caplog: pytest.LogCaptureFixture
) -> None:
    """Bug: a worker declared dead restarts under a new id; an error at that time ended it."""
    caplog.set_level("INFO", "queasy.worker")
    with start_server(kind, appendonly=True) as server:
        async with Client(server.url, timeout=0.5) as client:
            queue, ran = client.queue("q"), asyncio.Event()
            queue.handler(ran.set)
            worker = client.worker(signals=False)
            running = asyncio.create_task(worker.run())
            await until_logged(caplog, "worker_started")
            (info,) = await queue.clients()
            await queue.evict(info.id)
            server.call("CLIENT", "KILL", "TYPE", "pubsub")  # so that it polls
            await until_logged(caplog, "worker_declared_dead")
            server.call("CONFIG", "SET", "min-replicas-to-write", 1)
            await until_logged(caplog, "worker_start_failed")
            server.call("CONFIG", "SET", "min-replicas-to-write", 0)
            await queue.dispatch(1)
            await asyncio.wait_for(ran.wait(), 30)
            worker.stop()
            await running


async def until_logged(caplog: pytest.LogCaptureFixture, what: str) -> None:
    async def there() -> bool:
        return any(what in record.getMessage() for record in caplog.records)

    await until(there, f"the log says: {what}")


async def test_lease_without_timeout_survives_a_server_that_refuses(
    kind: ServerKind, caplog: pytest.LogCaptureFixture
) -> None:
    """Bug: waiting leases raised when the server was loading or busy."""
    with start_server(kind, appendonly=True) as server:
        async with Client(server.url, timeout=0.3) as client:
            queue = client.queue("q")
            waiting = asyncio.create_task(queue.lease())
            short = asyncio.create_task(queue.lease(timeout=1.5))
            await until_waiting(queue)
            server.call("CONFIG", "SET", "min-replicas-to-write", 1)
            server.call("CLIENT", "KILL", "TYPE", "pubsub")  # so that they poll
            with pytest.raises(NotReady, match="min-replicas-to-write"):
                await short

            async def both() -> bool:
                return caplog.text.count("waiting for a job of queue") == 2

            await until(both, "both have been refused")
            assert not waiting.done()
            server.call("CONFIG", "SET", "min-replicas-to-write", 0)
            await queue.dispatch("after")
            lease = await asyncio.wait_for(waiting, 30)
            assert await lease.complete()
