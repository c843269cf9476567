"""A queue for each test, on a server that has our library of Queasy for Node."""

from collections.abc import Iterator

import pytest
import redis

from queasy.interop.node_library import NODE
from tests.interop.node.harness import NodeQueue
from tests.servers import Server, ServerKind, start_server


@pytest.fixture(scope="session")
def connection(server: Server) -> Iterator[redis.Redis]:
    with server.client() as client:
        client.function_load(NODE.source(), replace=True)
        yield client


@pytest.fixture
def damaged(connection: redis.Redis) -> Iterator[NodeQueue]:
    """A queue that a test may leave in any state."""
    queue = NodeQueue(connection)
    yield queue
    queue.clear()


@pytest.fixture
def q(damaged: NodeQueue) -> Iterator[NodeQueue]:
    """A queue of its own; after the test its records must agree."""
    yield damaged
    for queue in (damaged, damaged.fail_queue):
        assert queue.audit().problems() == []
        assert not queue.audit().broken


@pytest.fixture
def own_server(kind: ServerKind) -> Iterator[Server]:
    """A server without any library."""
    with start_server(kind) as running:
        yield running


@pytest.fixture
def foreign(connection: redis.Redis) -> Iterator[NodeQueue]:
    """The same queue, as a client in another language uses it."""
    queue = NodeQueue(connection)
    yield queue
    queue.clear()
