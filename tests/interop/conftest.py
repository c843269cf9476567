"""Clients and key prefixes for the tests of foreign protocols."""

import itertools
import os
from collections.abc import AsyncIterator, Iterator

import pytest
import redis

from queasy import Client, SyncClient
from queasy.interop import workqueue
from tests.access import access
from tests.servers import Server

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _as_administrator() -> None:
    if access.user:
        pytest.skip("the user of `--as` has no foreign queues; the user of the guide has a test")


@pytest.fixture
def name(server: Server) -> Iterator[str]:
    """A prefix for the keys of one foreign queue. Its keys are deleted after the test."""
    prefix = f"foreign-{os.getpid()}-{next(_numbers)}"
    yield prefix
    with server.client(decode_responses=False) as admin:
        keys = [key for key in admin.keys("*") if key.startswith(prefix.encode())]
        if keys:
            admin.delete(*keys)


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with Client(server.url) as connected:
        yield connected


@pytest.fixture
def sync_client(server: Server) -> Iterator[SyncClient]:
    with SyncClient(server.url) as connected:
        yield connected


@pytest.fixture
def admin(server: Server) -> Iterator[redis.Redis]:
    with server.client(decode_responses=False) as connection:
        yield connection


@pytest.fixture
def frames(client: Client, name: str) -> workqueue.Queue[Client]:
    return workqueue.Queue(client, name)
