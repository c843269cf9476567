"""The password in a URL is shown nowhere: not in logs, processes, errors, or the server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from queasy import Client, SyncClient, Unreachable
from queasy.store.net.connection import Endpoint
from queasy.store.net.url import parse_url
from queasy.worker.supervision.messages import Planned
from tests.access import documented_rules
from tests.servers import Server, ServerKind, free_port, start_server, wait_until
from tests.worker.fleet import ON_ONE_SERVER, Fleet, fleet_on

SECRET = "hunter2-of-the-tests"


@pytest.fixture
def guarded(kind: ServerKind) -> Iterator[Server]:
    with start_server(kind, appendonly=True) as server:
        server.call("ACL", "SETUSER", "worker", *documented_rules("worker"), f">{SECRET}")
        yield server


@pytest.fixture
def fleet(guarded: Server, tmp_path: Path) -> Iterator[Fleet]:
    with fleet_on(guarded.url_as("worker", SECRET), "queasy", tmp_path) as running:
        yield running


def everything_on(server: Server) -> str:
    with server.client(encoding_errors="replace") as admin:
        kept = [
            admin.hgetall(key) if admin.type(key) == "hash" else admin.zrange(key, 0, -1)
            for key in admin.keys("*")
        ]
        return f"{kept} {admin.client_list()}"


@ON_ONE_SERVER
def test_neither_logs_nor_processes_nor_the_server_show_the_password(
    guarded: Server, fleet: Fleet
) -> None:
    running = fleet.serve("--log-level", "debug", processes=1)
    with SyncClient(guarded.url_as("default", "")) as client:
        plain = client.queue("plain")
        plain.dispatch({"fail": "no"})
        plain.dispatch({"exit": 3}, id="dies")
        fleet.journal.wait_for("start", id="dies", stalls=1)
        guarded.call("ACL", "SETUSER", "worker", "resetpass")
        guarded.call("CLIENT", "KILL", "USER", "worker")
        wait_until(lambda: "refused the user or password" in running.log, "it is refused")
    for pid in (running.pid, *running.children()):
        assert SECRET.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert SECRET not in everything_on(guarded)
    assert SECRET not in running.log
    running.kill()


async def test_neither_a_client_nor_an_error_shows_the_password() -> None:
    url = f"redis://user:{SECRET}@127.0.0.1:{free_port()}/0"
    client = Client(url)
    client.queue("q").handler(print)
    planned, target = Planned(url, "queasy", 1.0, None, []), parse_url(url)
    endpoint = Endpoint.to(target, target.addresses[0], 1.0, sentinel=False)
    shown = [
        repr(target),
        repr(endpoint),
        repr(client),
        repr(SyncClient(url)),
        repr(client.queue("q")),
        repr(client.plan()),
    ]
    with pytest.raises(Unreachable) as caught:
        await client.connect()
    for text in [*shown, repr(planned), str(caught.value), repr(caught.value)]:
        assert SECRET not in text
