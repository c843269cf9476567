"""What the shipped library accepts from its callers, and what it refuses."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from queasy import SyncClient
from queasy.outcomes import Finish
from queasy.store.command import Command
from queasy.store.commands import QueueCommands
from queasy.store.keys import QueueKeys
from queasy.store.records import DispatchItem, Ending
from tests.servers import ServerKind, start_server

IN_2096 = 4_000_000_000_000
KEYS = QueueKeys("queasy", "q")


@pytest.fixture
def shipped(kind: ServerKind) -> Iterator[redis.Redis]:
    """A server of its own with the library that clients load."""
    with start_server(kind) as server:
        with SyncClient(server.url) as client:
            client.queue("q").dispatch(1, id="a")
        with server.client(decode_responses=False) as connection:
            yield connection


def commands() -> list[Command[Any]]:
    """A call of every function of a queue."""
    queue = QueueCommands(KEYS)
    return [
        queue.dispatch([DispatchItem("b", b"1", when="+1000")]),
        queue.dispatch([DispatchItem("c", b"1")]),
        queue.cancel(["b"]), queue.register("c1", 30), queue.dequeue("c1", lease=30, limit=1),
        queue.settle([Ending("a", 1, Finish())]), queue.extend("a", 1, 30), queue.bump(["c1"], 30),
        queue.evict("c1", "release"), queue.sweep(), queue.configure(paused=False),
        queue.requeue("failed", ["a"]), queue.drop("failed", ["a"]), queue.trim("failed", 1),
        queue.counts(), queue.get("a"), queue.jobs("waiting", b"", 10), queue.leases("c1", b"", 10),
        queue.clients(), queue.stats(), queue.audit(0, 10),
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(len(commands())))
def test_no_function_takes_a_time_from_its_caller(shipped: redis.Redis, number: int) -> None:
    """Bug: anyone who may dispatch could set the clock of a queue to 2096, for good."""
    verb, name, count, *rest = commands()[number].words()
    keys, args = rest[:count], rest[count:]
    with contextlib.suppress(redis.RedisError):
        shipped.execute_command(verb, name, count, *keys, IN_2096, *args)
    stored = shipped.hget(KEYS.base + "meta", "time")
    assert stored is not None
    assert float(stored) / 1000 < time.time() + 60
    assert all(
        score / 1000 < time.time() + 60
        for name in ("waiting", "clients", "callers")
        for _, score in shipped.zrange(KEYS.base + name, 0, -1, withscores=True)
    )
