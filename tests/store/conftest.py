"""The functions as they are, without the client: a queue of its own for each test."""

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
    """Who calls the functions: with `--as worker`, one who may do little else."""
    once = Retry(NoBackoff(), 0)
    with redis.Redis.from_url(server.url, protocol=2, socket_timeout=5, retry=once) as client:
        yield client


@pytest.fixture
def h(connection: redis.Redis, caller: redis.Redis) -> Iterator[Harness]:
    """Whatever a test did, the audit has nothing to say about it."""
    harness = Harness(connection, caller)
    yield harness
    harness.audit()
    harness.clear()
