"""Every error a living server can answer with: refused loudly, nothing lost, work resumes.

Each state is brought about for real, under a worker, a producer and a pull consumer. When it
ends everybody goes on by himself: no process is restarted, and no job runs twice.
"""

import asyncio
import resource
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
import redis

from queasy import (
    AccessDenied,
    Client,
    Dispatched,
    NotReady,
    NotRunning,
    OutOfMemory,
    ReadOnly,
    ServerError,
    SyncClient,
    Unreachable,
)
from tests.e2e.waiting import until_waiting
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
LOOP = "#!lua name=loop\nredis.register_function('loop', function() while true do end end)"


@pytest.fixture(scope="module")
def own_server(kind: ServerKind) -> Iterator[Server]:
    """One that these tests may break. It loads slowly, and says soon that a script is slow."""
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
    """A job that begins now, and ends while the server is in trouble."""
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
        # What drains goes on: leases are taken, kept and ended, waits cancelled, the dead swept.
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
def test_a_server_busy_with_a_script_is_waited_for(traffic: Traffic, way: str) -> None:
    server = traffic.server
    with traffic.flowing(f"busy-{way}"), looping(server, way):
        traffic.wait_for_refusals(NotReady, "SCRIPT KILL or FUNCTION KILL ends it")


@contextmanager
def looping(server: Server, way: str) -> Generator[None]:
    command = ("EVAL", "while true do end", 0) if way == "script" else ("FCALL", "loop", 0)
    if way == "function":
        server.call("FUNCTION", "LOAD", "REPLACE", LOOP)

    def loop() -> None:
        with server.client(socket_timeout=60) as client, suppress(redis.ResponseError):
            client.execute_command(*command)  # until it is killed

    thread = threading.Thread(target=loop)
    thread.start()
    yield
    with server.client() as client:
        client.execute_command("SCRIPT" if way == "script" else "FUNCTION", "KILL")
    thread.join()


def test_a_primary_that_becomes_a_replica_and_a_primary_again(traffic: Traffic) -> None:
    server = traffic.server
    with traffic.flowing("readonly"):
        in_flight(traffic, "readonly")
        server.call("REPLICAOF", HOST, free_port())
        traffic.wait_for_refusals(ReadOnly, "Point the URL at the primary")
        traffic.journal.wait_for("end", id="readonly-in-flight")
        server.call("REPLICAOF", "NO", "ONE")
    assert any(isinstance(error, ReadOnly) for error in traffic.pull_errors)


@pytest.mark.parametrize(
    ("taken", "given", "says"),
    [("-fcall", "+fcall", "Grant +fcall"), ("-zadd", "+zadd", "Grant"),
     ("resetkeys", "~*", "~queasy:*")],
    ids=["the-call", "a-command-inside", "the-keys"],
)  # fmt: skip
def test_a_permission_taken_away_and_given_back(
    traffic: Traffic, taken: str, given: str, says: str
) -> None:
    server = traffic.server
    with traffic.flowing(f"noperm{taken}"):
        in_flight(traffic, f"noperm{taken}")
        server.call("ACL", "SETUSER", "app", taken)
        traffic.wait_for_refusals(AccessDenied, says)
        traffic.journal.wait_for("end", id=f"noperm{taken}-in-flight")
        server.call("ACL", "SETUSER", "app", given)


def test_channels_that_may_not_be_heard_any_more_are_done_without(traffic: Traffic) -> None:
    server = traffic.server
    with traffic.flowing("deaf"):
        server.call("ACL", "SETUSER", "app", "resetchannels")
        # Its function may not tell anybody, either: a dispatch is refused when somebody waits.
        wait_until(lambda: bool(traffic.pull_errors or traffic.refused), "somebody is told")
        for error in (*traffic.pull_errors, *(error for _, error in traffic.refused)):
            assert isinstance(error, AccessDenied)
        server.call("ACL", "SETUSER", "app", "&*")


def test_a_server_without_enough_replicas_is_waited_for(traffic: Traffic) -> None:
    server = traffic.server
    with traffic.flowing("noreplicas"):
        in_flight(traffic, "noreplicas")
        server.call("CONFIG", "SET", "min-replicas-to-write", 1)
        traffic.wait_for_refusals(NotReady, "lower min-replicas-to-write")
        traffic.journal.wait_for("end", id="noreplicas-in-flight")
        server.call("CONFIG", "SET", "min-replicas-to-write", 0)


def test_a_snapshot_that_cannot_be_written(traffic: Traffic) -> None:
    server = traffic.server
    obstacle = Path(server.call("CONFIG", "GET", "dir")[1], "dump.rdb")  # not even root may
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


def test_a_disk_that_is_full(traffic: Traffic) -> None:
    server = traffic.server
    with traffic.flowing("disk"):
        in_flight(traffic, "disk")
        # Files of the server cannot grow: its next write to the append-only file fails.
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


def test_a_server_that_restarts_and_loads_its_data(traffic: Traffic) -> None:
    server = traffic.server
    with server.client() as client:
        pipe = client.pipeline(transaction=False)
        for number in range(FILLERS):
            pipe.set(f"filler-{number}", "x")
        pipe.execute()
        # From a snapshot: it answers every so many bytes, not every so many commands.
        client.bgrewriteaof()
        wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"], "rewritten")
    with traffic.flowing("loading"):
        in_flight(traffic, "loading")
        server.restart()  # returns when it has loaded
        said = [str(error) for _, error in traffic.refused + traffic.unsure]
        assert any("loading its data" in words for words in said)
        assert {type(error) for _, error in traffic.refused} <= {Unreachable, NotReady}


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_after_a_failover_behind_one_name_a_new_connection_finds_the_primary(
    kind: ServerKind, sync: bool
) -> None:
    """Open connections stay with the old primary, which refuses for ever: they were kept."""
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


async def test_a_worker_that_was_lost_comes_back_although_the_server_refuses_at_first(
    kind: ServerKind, caplog: pytest.LogCaptureFixture
) -> None:
    """Taken for dead, it begins again under a new name; an error then was the end of it."""
    caplog.set_level("INFO", "queasy.worker")
    with start_server(kind, appendonly=True) as server:
        async with Client(server.url, timeout=0.5) as client:
            queue, ran = client.queue("q"), asyncio.Event()
            queue.handler(ran.set)
            worker = client.worker(signals=False)
            running = asyncio.create_task(worker.run())
            await until_logged(caplog, "worker started")
            (info,) = await queue.clients()
            await queue.evict(info.id)
            server.call("CLIENT", "KILL", "TYPE", "pubsub")  # so that it looks
            await until_logged(caplog, "worker lost")
            server.call("CONFIG", "SET", "min-replicas-to-write", 1)
            await until_logged(caplog, "cannot start")
            server.call("CONFIG", "SET", "min-replicas-to-write", 0)
            await queue.dispatch(1)
            await asyncio.wait_for(ran.wait(), 30)
            worker.stop()
            await running


async def until_logged(caplog: pytest.LogCaptureFixture, what: str) -> None:
    async def there() -> bool:
        return any(what in record.getMessage() for record in caplog.records)

    await until(there, f"the log says: {what}")


async def test_a_wait_without_end_outlasts_a_server_that_refuses(
    kind: ServerKind, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever waited for a job was sent away by a server that was loading, or busy."""
    with start_server(kind, appendonly=True) as server:
        async with Client(server.url, timeout=0.3) as client:
            queue = client.queue("q")
            waiting = asyncio.create_task(queue.lease())
            short = asyncio.create_task(queue.lease(timeout=1.5))
            await until_waiting(queue)
            server.call("CONFIG", "SET", "min-replicas-to-write", 1)
            server.call("CLIENT", "KILL", "TYPE", "pubsub")  # so that they look
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


async def test_a_lease_that_begins_while_the_server_is_away_waits_for_it(
    kind: ServerKind, caplog: pytest.LogCaptureFixture
) -> None:
    """Only one that waited already did: a consumer, which asks anew each time, was sent away."""
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
                "what was never sent needs no undoing"
            )


def test_a_lease_of_a_server_that_was_never_there_is_told_at_once() -> None:
    client = SyncClient(f"redis://127.0.0.1:{free_port()}", timeout=5)
    with closing(client), pytest.raises(NotRunning):
        client.queue("q").lease()
