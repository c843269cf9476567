"""The functions as they are, without the client: a queue of its own for each test."""

from collections.abc import Iterator

import pytest
import redis

from tests.servers import Server
from tests.store.harness import Harness, load


@pytest.fixture(scope="session")
def connection(server: Server) -> Iterator[redis.Redis]:
    with server.client(decode_responses=False) as client:
        load(client)
        yield client


@pytest.fixture
def h(connection: redis.Redis) -> Iterator[Harness]:
    """Whatever a test did, the audit has nothing to say about it."""
    harness = Harness(connection)
    yield harness
    harness.audit()
    harness.clear()
