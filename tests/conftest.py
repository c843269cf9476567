"""Servers for every test: one of each kind for the whole session, a prefix for each test."""

import itertools
import os
import random
from collections.abc import AsyncIterator, Iterator

import pytest

from queasy import Client, SyncClient
from queasy.store.keys import NAMES
from tests.access import access
from tests.proxy import Proxy
from tests.servers import Server, ServerKind, available_kinds, start_server, why_absent

_numbers = itertools.count()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--as", choices=["worker"], dest="access_user",
        help="every client and worker of Queasy is the user `worker` of docs/guides/security.md",
    )  # fmt: skip
    parser.addoption("--tls", action="store_true", help="and speaks TLS to single servers")


def pytest_configure(config: pytest.Config) -> None:
    access.user = config.getoption("access_user")
    access.tls = config.getoption("--tls")


@pytest.fixture(autouse=True)
def _no_url_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests never reach a server from the environment: only those they start."""
    monkeypatch.delenv("QUEASY_URL", raising=False)


@pytest.fixture(scope="session", params=list(ServerKind))
def kind(request: pytest.FixtureRequest) -> ServerKind:
    """Each kind of server; for a test parametrized with "any", the first one installed."""
    if request.param == "any":
        there = available_kinds()
        return there[0] if there else pytest.skip("no server: NOT TESTED")
    if reason := why_absent(request.param):
        pytest.skip(reason)
    return request.param


@pytest.fixture(scope="session")
def server(kind: ServerKind) -> Iterator[Server]:
    with start_server(kind, appendonly=True) as running:
        yield running


@pytest.fixture
def prefix(server: Server) -> Iterator[str]:
    """A key prefix for one test. After the test, the audit of its queues must be clean."""
    name = f"t{os.getpid()}-{next(_numbers)}"
    yield name
    audit_all(server, name)


def audit_all(server: Server, prefix: str) -> None:
    with server.client(decode_responses=True) as connection:
        keys = connection.keys(f"{prefix}:*")
        unknown = {key for key in keys if key.rpartition(":")[2] not in NAMES}
        assert not unknown, f"unknown keys: {unknown}"
        queues = {key.partition("{")[2].partition("}")[0] for key in keys}
        with SyncClient(server.url, prefix=prefix) as client:
            for name in queues:
                queue = client.queue(name, codec="raw")
                assert queue.audit() == []
                assert queue.fail_queue.audit() == []
        if keys:
            connection.delete(*keys)


@pytest.fixture
async def client(server: Server, prefix: str) -> AsyncIterator[Client]:
    async with Client(server.url, prefix=prefix) as connected:
        yield connected


@pytest.fixture
def sync_client(server: Server, prefix: str) -> Iterator[SyncClient]:
    with SyncClient(server.url, prefix=prefix) as connected:
        yield connected


@pytest.fixture
def seed() -> int:
    """A random seed, printed with a failure; QUEASY_SEED repeats a run."""
    seed = int(os.environ.get("QUEASY_SEED", random.SystemRandom().randrange(2**32)))
    print(f"QUEASY_SEED={seed}")
    return seed


@pytest.fixture
async def proxy(server: Server, seed: int) -> AsyncIterator[Proxy]:
    async with Proxy(server.port, seed=seed) as running:
        yield running
