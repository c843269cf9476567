"""Health of the server, readiness of workers, and the health command."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from queasy import Client, InvalidQueue, SyncClient
from queasy.client import Running
from queasy.store import library
from queasy.store.net.url import parse_url
from tests.faults.busy import looping
from tests.faults.traffic import kind
from tests.groups import start_sentinel
from tests.servers import Server, ServerKind, free_port, start_server
from tests.worker.fleet import ROOT, fleet_on
from tests.worker.inline import until

__all__ = ["kind"]  # a fixture


@pytest.fixture
def own_server(kind: ServerKind) -> Iterator[Server]:
    with start_server(kind, appendonly=True, busy_reply_threshold=50) as server:
        yield server


async def test_health_of_a_sound_server_describes_it(own_server: Server) -> None:
    client = Client(own_server.url)
    health = await client.health()
    assert (health.reachable, health.problem) == (True, "")
    assert health.revision is None  # health() does not load the library
    await client.connect()
    health = await client.health()
    assert health.server == own_server.kind
    assert health.version[0].isdigit()
    assert health.role == "primary"
    assert health.revision == library.revision()
    assert 0 < health.round_trip < 10
    assert health.warnings == ()
    with SyncClient(own_server.url) as sync:
        assert sync.health().revision == health.revision
    await client.close()


def test_health_warns_without_min_replicas_behind_sentinel(
    kind: ServerKind, caplog: pytest.LogCaptureFixture
) -> None:
    with start_sentinel(kind, appendonly=True) as group, SyncClient(group.url) as client:
        client.connect()
        (warning,) = client.health().warnings
        assert warning.startswith("min-replicas-to-write is 0")
        assert warning in caplog.text
        group.primary.call("CONFIG", "SET", "min-replicas-to-write", 1)
        assert client.health().warnings == ()


async def test_health_never_raises_and_reports_the_problem(own_server: Server) -> None:
    absent = f"redis://127.0.0.1:{free_port()}"
    for url in (absent, absent.replace(":", "+cluster:", 1), f"redis+sentinel{absent[5:]}/name"):
        client = Client(url, timeout=2)
        health = await client.health()
        assert not health.reachable
        assert "127.0.0.1" in health.problem
        assert "127.0.0.1" in health.address
        assert "a look" not in health.problem
        assert SyncClient(url, timeout=2).health().problem
        await client.close()
    client = Client(own_server.url, timeout=1)
    await client.connect()
    with looping(own_server, "script"):

        async def busy() -> bool:
            return "KILL ends it" in (await client.health()).problem

        await until(busy, "it says that a script is running")
    stranger = SyncClient(own_server.url_as("stranger", "unknown"))
    assert "user or password" in stranger.health().problem
    stranger.close()
    own_server.kill()
    assert "cannot reach" in (await client.health()).problem
    own_server.start()
    await client.close()


def test_health_of_the_embedded_server_names_its_folder(tmp_path: Path) -> None:
    with SyncClient(folder=tmp_path / "jobs") as client:
        health = client.health()
    assert (health.ready, health.address) == (True, f"the embedded server in {tmp_path / 'jobs'}")


async def test_a_worker_is_ready_while_the_server_answers(own_server: Server) -> None:
    async with Client(own_server.url, timeout=0.5) as client:
        queue = client.queue("q")
        queue.handler(lambda: None)
        worker = client.worker(signals=False)
        assert not worker.ready
        running = asyncio.create_task(worker.run())
        await until(is_ready(worker, True), "it has started")
        own_server.stop()
        await until(is_ready(worker, False), "it has noticed")
        own_server.start()
        await until(is_ready(worker, True), "it works again")
        await queue.dispatch(1)
        worker.stop()
        await until(is_ready(worker, False), "it is being stopped")
        await running


def is_ready(worker: Running, wanted: bool) -> Callable[[], Awaitable[bool]]:
    async def same() -> bool:
        return worker.ready is wanted

    return same


SUPERVISED = """
import asyncio, os, sys
from queasy import Client
client = Client(os.environ["TEST_URL"], timeout=0.5)
client.queue("q").handler(lambda: None)

async def main():
    worker = client.worker(processes=1)
    asyncio.create_task(worker.run())
    while True:
        print(worker.ready, flush=True)
        await asyncio.sleep(0.05)

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_supervisor_is_ready_while_a_worker_is(own_server: Server, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(SUPERVISED)
    process = subprocess.Popen(
        [sys.executable, "app.py"],
        cwd=tmp_path, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "TEST_URL": own_server.url},
    )  # fmt: skip
    changes = ((None, True), (own_server.stop, False), (own_server.start, True))
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "False\n"
        for change, ready in changes:
            if change is not None:
                change()
            for line in process.stdout:
                if line == f"{ready}\n":
                    break
    finally:
        process.kill()  # its worker dies with it
        process.communicate()


def probe(server: Server, *options: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "queasy", "health", "tests.worker.app:client", *options],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
        env={**os.environ, "TEST_URL": server.url, "TEST_PREFIX": "p", "TEST_JOURNAL": "/dev/null"},
    )  # fmt: skip
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_health_command_reports_server_and_workers(own_server: Server, tmp_path: Path) -> None:
    code, said = probe(own_server)
    assert code == 1
    assert said.startswith(f"address  {parse_url(own_server.url)}\n")
    assert "queue    plain: no workers" in said
    assert re.search(r"^problem  no worker serves plain, .*: start one with `queasy w", said, re.M)
    with fleet_on(own_server.url, "p", tmp_path) as fleet:
        worker = fleet.serve(processes=1)
        code, said = probe(own_server, "--json")
        found = json.loads(said)
        assert (code, found["ready"], found["problem"]) == (0, True, "")
        assert (found["workers"]["plain"], found["workers"]["{plain}-fail"]) == (1, 1)
        assert worker.stop() == 0
    own_server.stop()
    code, said = probe(own_server)
    assert code == 1
    assert "cannot reach" in said


def test_health_command_sees_a_paused_queue_and_due_jobs_without_a_worker(
    own_server: Server, tmp_path: Path
) -> None:
    with SyncClient(own_server.url, prefix="p") as client:
        client.queue("plain").dispatch_many([{}, {}, {}])
        code, said = probe(own_server, "--queue", "plain", "--queue", "waits")
        assert code == 1
        assert "problem  queue 'plain' has 3 due jobs and no worker serves it" in said
        assert "'waits'" not in said
        with fleet_on(own_server.url, "p", tmp_path) as fleet:
            worker = fleet.serve(processes=1)
            fleet.journal.wait_for("end", 3)
            code, said = probe(own_server, "--queue", "plain")
            assert (code, said.splitlines()[-1]) == (0, "ready"), said

            client.queue("plain").pause()
            client.queue("plain").dispatch({})
            for options in [(), ("--queue", "plain")]:
                code, said = probe(own_server, *options)
                assert code == 1
                assert "problem  queue 'plain' is paused, with 1 due job: " in said
                assert said.splitlines()[-1] == "not ready"
            assert "no worker serves" not in said
            code, said = probe(own_server, "--queue", "waits")
            assert code == 0, "another queue is not paused"
            found = json.loads(probe(own_server, "--queue", "plain", "--json")[1])
            assert found["ready"] is False
            queue = found["queues"][0]
            assert (queue["name"], queue["paused"], queue["due"]) == ("plain", True, 1)

            client.queue("plain").resume()
            fleet.journal.wait_for("end", 4)
            assert probe(own_server)[0] == 0
            assert worker.stop() == 0


async def test_health_of_queues_says_which_do_not_run_their_jobs(own_server: Server) -> None:
    async with Client(own_server.url) as client:
        emails = client.queue("emails")
        health = await client.health(queues=["emails"])
        assert (health.problems, [queue.name for queue in health.queues]) == ((), ["emails"])
        await emails.dispatch_many(range(12))
        health = await client.health(queues=["emails"])
        (queue,) = health.queues
        assert (queue.due, queue.workers, queue.paused) == (12, 0, False)
        assert "'emails' has 12 due jobs and no worker serves it" in queue.problem
        assert health.problems == (queue.problem,)
        assert health.ready, "the server can take jobs"
        lease = await emails.lease(timeout=5)
        assert lease is not None
        assert not (await client.health(queues=["emails"])).problems, "a program takes its jobs"
        await lease.fail("no")
        await emails.pause()
        (queue,) = (await client.health(queues=["emails"])).queues
        assert (queue.paused, queue.due) == (True, 11)
        assert "is paused" in queue.problem
        assert (await client.health()).queues == ()


async def test_health_of_a_fail_queue_is_shown_once_it_is_in_use(own_server: Server) -> None:
    async with Client(own_server.url) as client:
        emails = client.queue("emails")
        await emails.configure(fail_handler=True)
        await emails.dispatch(1)
        async with emails.lease() as lease:
            await lease.fail("no")
        queues = (await client.health(queues=["emails"])).queues
        assert [queue.name for queue in queues] == ["emails", "{emails}-fail"]
        assert "'{emails}-fail' has 1 due job and no worker" in queues[1].problem


def test_health_of_queues_does_not_raise_if_the_server_is_away(own_server: Server) -> None:
    own_server.stop()
    with pytest.raises(InvalidQueue, match="queues: expected names in a list"):
        SyncClient(own_server.url).health(queues="emails")
    health = SyncClient(own_server.url, timeout=1).health(queues=["emails"])
    assert "cannot reach" in health.problem
    assert health.queues == ()
