"""A proxy before the server, a client of each kind behind it, and one that goes straight there."""

import os
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from queasy import Client, SyncClient
from tests.proxy import Proxy
from tests.servers import Server


@pytest.fixture
def seed() -> int:
    """Printed with a failure; QUEASY_SEED takes the same way again."""
    seed = int(os.environ.get("QUEASY_SEED", random.SystemRandom().randrange(2**32)))
    print(f"QUEASY_SEED={seed}")
    return seed


@pytest.fixture
async def proxy(server: Server, seed: int) -> AsyncIterator[Proxy]:
    async with Proxy(server.port, seed=seed) as running:
        yield running


@pytest.fixture(params=[Client, SyncClient], ids=["async", "sync"])
def make(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def direct(server: Server, prefix: str) -> Iterator[SyncClient]:
    with SyncClient(server.url, prefix=prefix) as client:
        yield client
