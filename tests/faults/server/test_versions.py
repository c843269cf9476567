"""Older and newer clients on one server, as in a rolling upgrade: the library is never downgraded.

The other version is a copy of this package with another revision and one more function; its
clients and workers run in processes of their own.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

import queasy
from queasy import OutOfMemory, ProtocolError, SyncClient
from queasy.store import library
from queasy.store.library_loading import load_library
from queasy.store.net.pool import SyncTransport
from queasy.store.net.topology import Effect, Exchange, route_to
from queasy.store.net.url import parse_url
from tests.conftest import audit_all
from tests.faults.traffic import kind
from tests.servers import Server, ServerKind, start_server, wait_until
from tests.worker.fleet import ROOT, Fleet, Running, fleet_on

__all__ = ["kind"]  # a fixture

PREFIX = "versions"
OURS, SOURCE = library.revision(), library.source()
EXTRA = "\nregister('extra', API.version, 'no-writes')\n"


@pytest.fixture
def own_server(kind: ServerKind) -> Iterator[Server]:
    with start_server(kind, appendonly=True) as server:
        yield server


def installed(folder: Path, revision: int) -> Path:
    """Copies the package with another revision of the library; returns the path for PYTHONPATH."""
    package = folder / f"revision-{revision}" / "queasy"
    shutil.copytree(Path(queasy.__file__).parent, package)
    api = package / "store" / "lua" / "api.lua"
    text = api.read_text().replace(f"{{ 1, {OURS} }}", f"{{ 1, {revision} }}")
    api.write_text(text + (EXTRA if revision > OURS else ""))
    return package.parent


def revision_on(server: Server) -> int:
    return server.call("FCALL_RO", "queasy_v1_version", 0)[1]


PRODUCER = """
import os, sys
from queasy import SyncClient
with SyncClient(os.environ["TEST_URL"], prefix=os.environ["TEST_PREFIX"]) as client:
    print("connected", flush=True)
    for line in sys.stdin:
        print(client.queue("waits").dispatch({"sleep": 0.2}, id=line.strip()).status, flush=True)
"""


class Producer:
    """A client of some version, in a process of its own."""

    def __init__(self, server: Server, path: Path) -> None:
        environment = {
            **os.environ, "PYTHONPATH": str(path), "TEST_URL": server.url, "TEST_PREFIX": PREFIX,
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-c", PRODUCER],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def wait_until_connected(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "connected\n"

    def dispatch(self, id_: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{id_}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.communicate(timeout=30)


def test_a_rolling_upgrade_loses_nothing_and_goes_one_way(
    own_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = installed(tmp_path, OURS - 1), installed(tmp_path, OURS + 1)
    producers: list[Producer] = []
    ids: list[str] = []

    def dispatch() -> None:
        for number, producer in enumerate(producers):
            ids.append(f"{len(ids)}-by-{number}")
            assert producer.dispatch(ids[-1]) == "created"

    with ExitStack() as stack:

        def fleet_of(path: Path) -> Fleet:
            monkeypatch.setenv("PYTHONPATH", f"{path}:{ROOT}")
            return stack.enter_context(fleet_on(own_server.url, PREFIX, path))

        fleets = {path: fleet_of(path) for path in (older, newer)}
        workers: list[Running] = []

        def roll_out(path: Path) -> None:
            workers.append(fleets[path].serve("--queue", "waits", processes=1))
            producers.append(stack.enter_context(producing(own_server, path)))
            dispatch()

        def journal(event: str) -> list[dict[str, Any]]:
            return [line for fleet in fleets.values() for line in fleet.journal.lines(event)]

        roll_out(older)
        assert revision_on(own_server) == OURS - 1
        roll_out(newer)
        assert revision_on(own_server) == OURS + 1
        producers.append(stack.enter_context(producing(own_server, older)))
        dispatch()
        assert revision_on(own_server) == OURS + 1  # an older client connected last
        assert "queasy_v1_extra" in str(own_server.call("FUNCTION", "LIST"))
        own_server.call("FUNCTION", "FLUSH")  # the next client loads its own revision
        for _ in range(3):
            dispatch()
        with producing(own_server, newer):
            pass
        assert revision_on(own_server) == OURS + 1
        wait_until(lambda: len(journal("end")) >= len(ids), "all have run")
        assert sorted(line["id"] for line in journal("start")) == sorted(ids)
        assert {line["stalls"] + line["retries"] for line in journal("start")} == {0}
        assert {worker.stop() for worker in workers} == {0}
    audit_all(own_server, PREFIX)


@contextmanager
def producing(server: Server, path: Path) -> Generator[Producer]:
    """A connected client: it has loaded its library, or found a newer one."""
    producer = Producer(server, path)
    try:
        producer.wait_until_connected()
        yield producer
    finally:
        producer.close()


class Loader:
    """Loads a revision of the library, one command at a time."""

    def __init__(self, server: Server, revision: int) -> None:
        self._transport = SyncTransport(parse_url(server.url), 5, None)
        self._revision = revision
        self._steps = load_library(route_to(parse_url(server.url)))
        self._todo: list[tuple[Any, ...]] = []
        self._replies: list[Any] = []
        self._address: Any = None

    def step(self, patch: pytest.MonkeyPatch) -> bool:
        """Sends the next command and reads its answer; False if there are no more."""
        patch.setattr(library.Library, "revision", lambda _: self._revision)
        patch.setattr(library.Library, "source", lambda _: source_of(self._revision))
        try:
            if not self._todo:
                effect = self._steps.send(self._replies or None)
                assert isinstance(effect, Exchange)
                self._todo, self._replies = list(effect.commands), []
                self._address = effect.address
        except StopIteration:
            self._transport.close()
            return False
        self._replies += self._transport.run(once(Exchange(self._address, (self._todo.pop(0),))))
        return True


def once(effect: Exchange) -> Generator[Effect, Any, list[Any]]:
    return (yield effect)


def source_of(revision: int) -> str:
    return SOURCE.replace(f"{{ 1, {OURS} }}", f"{{ 1, {revision} }}")


def test_racing_loaders_never_downgrade_the_library(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a loader overtaken between its check and its load downgraded the library."""
    ends: set[int] = set()
    for order in set(permutations([0] * 4 + [1] * 4)):  # which loader sends next; then both finish
        own_server.call("FUNCTION", "FLUSH")
        own_server.call("FUNCTION", "LOAD", source_of(OURS))
        loaders = [Loader(own_server, OURS + 1), Loader(own_server, OURS + 2)]
        with monkeypatch.context() as patch:
            left = [0, 1]
            for turn in (*order, *[0] * OURS * 3, *[1] * OURS * 3):
                if turn in left and not loaders[turn].step(patch):
                    left.remove(turn)
        assert not left
        ends.add(revision_on(own_server))
    assert ends == {OURS + 2}


def test_older_client_fenced_out_by_a_newer_library_gets_advice(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = Loader(own_server, OURS + 1)
    with monkeypatch.context() as patch:
        while newest.step(patch):
            pass
    with SyncClient(
        own_server.url
    ) as client:  # ours is older: it works, and does not replace the newer
        client.queue("q").dispatch(1)
    own_server.call("FUNCTION", "DELETE", "queasy_v1")
    with (
        pytest.raises(ProtocolError, match="connect one of its clients"),
        SyncClient(own_server.url),
    ):
        pass


def test_a_full_server_with_an_older_library_is_drained_by_newer_clients(
    own_server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: they could not even connect, since loading the newer library was refused."""
    own_server.call("FUNCTION", "LOAD", SOURCE)
    newer = source_of(OURS + 1)
    monkeypatch.setattr(library.Library, "revision", lambda _: OURS + 1)
    monkeypatch.setattr(library.Library, "source", lambda _: newer)
    keys = SyncClient(own_server.url).queue("q").keys.for_dispatch
    own_server.call("FCALL", "queasy_v1_dispatch", len(keys), *keys, "", "", "a", "1", "", "", "")
    own_server.call("CONFIG", "SET", "maxmemory", "1")
    with SyncClient(own_server.url) as client:
        assert f"revision {OURS + 1} cannot be loaded" in caplog.text
        queue = client.queue("q")
        with pytest.raises(OutOfMemory):
            queue.dispatch(2)
        with queue.lease(timeout=0) as lease:
            assert lease is not None
        assert queue.counts().active == 0
        own_server.call("FUNCTION", "FLUSH")
        with pytest.raises(OutOfMemory, match="load the library"):
            queue.counts()
        own_server.call("CONFIG", "SET", "maxmemory", "0")
        assert queue.counts().waiting == 0
    assert revision_on(own_server) == OURS + 1


def test_a_library_from_before_the_first_release_is_refused(own_server: Server) -> None:
    """Bug: its answers lack fields, so that jobs were leased and never ended."""
    own_server.call("FUNCTION", "LOAD", source_of(library.LEAST - 1))
    own_server.call("CONFIG", "SET", "maxmemory", "1")
    refused = pytest.raises(ProtocolError, match=f"revision {library.LEAST - 1} .* too old")
    with refused, SyncClient(own_server.url):
        pass
    own_server.call("CONFIG", "SET", "maxmemory", "0")
    with SyncClient(own_server.url) as client:
        client.queue("q").dispatch(1)
    assert revision_on(own_server) == OURS
