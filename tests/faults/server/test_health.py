"""Health of the server, readiness of workers, and the health command."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from queasy import Client, SyncClient
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
