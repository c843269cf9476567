"""Fixtures that call the library's functions directly: each test has a queue of its own."""

from collections.abc import Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers import Server
from tests.store.harness import Harness, load


@pytest.fixture(scope="session")
def connection(server: Server) -> Iterator[redis.Redis]:
    with server.client(decode_responses=False) as client:
        load(client)
        yield client


@pytest.fixture(scope="session")
def caller(server: Server) -> Iterator[redis.Redis]:
    """The connection that calls the functions: with `--as worker`, of a user with few rights."""
    once = Retry(NoBackoff(), 0)
    with redis.Redis.from_url(server.url, protocol=2, socket_timeout=5, retry=once) as client:
        yield client


@pytest.fixture
def h(connection: redis.Redis, caller: redis.Redis) -> Iterator[Harness]:
    """A queue of its own; after the test the audit must find no problem."""
    harness = Harness(connection, caller)
    yield harness
    harness.audit()
    harness.clear()
