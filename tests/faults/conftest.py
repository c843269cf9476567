"""Client kinds, a client without the proxy, and a fleet of workers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queasy import Client, SyncClient
from tests.servers import Server
from tests.worker.fleet import Fleet, fleet_on


@pytest.fixture(params=[Client, SyncClient], ids=["async", "sync"])
def make(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def direct(server: Server, prefix: str) -> Iterator[SyncClient]:
    with SyncClient(server.url, prefix=prefix) as client:
        yield client


@pytest.fixture
def fleet(server: Server, prefix: str, tmp_path: Path) -> Iterator[Fleet]:
    with fleet_on(server.url, prefix, tmp_path) as running:
        yield running
