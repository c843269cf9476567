"""A fleet of workers for every test, ended with it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import Server
from tests.worker.fleet import Fleet, fleet_on


@pytest.fixture
def fleet(server: Server, prefix: str, tmp_path: Path) -> Iterator[Fleet]:
    with fleet_on(server.url, prefix, tmp_path) as running:
        yield running
