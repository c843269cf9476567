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
from queasy.store.commands import QueueCommands, version
from queasy.store.keys import QueueKeys
from queasy.store.records import DispatchItem, Ending, Taken
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
        queue.evict("c1"), queue.sweep(), queue.configure(paused=False),
        queue.requeue("failed", ["a"]), queue.drop("failed", ["a"]), queue.trim("failed", 1),
        queue.counts(), queue.get("a"), queue.jobs("waiting", b"", 10), queue.leases("c1", b"", 10),
        queue.clients(), queue.stats(), queue.audit(0, 10), queue.destroy(force=False),
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(len(commands())))
def test_no_function_takes_a_time_from_its_caller(shipped: redis.Redis, number: int) -> None:
    """Bug: a user that may dispatch could set the clock of a queue to 2096, for good."""
    verb, name, count, *rest = commands()[number].words()
    keys, args = rest[: int(count)], rest[int(count) :]
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


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("dequeue", lambda reply: [*reply, b"more"]),
        ("bump", lambda reply: [[*part, b"more"] for part in reply]),
        ("evict", lambda reply: [*reply, b"more"]),
        ("counts", lambda reply: [*reply, 7]),
        ("get", lambda reply: [[*row, b"more"] for row in reply]),
        ("list", lambda reply: [[[*row, b"more"] for row in reply[0]], reply[1], b"more"]),
        ("leases", lambda reply: [*reply, b"more"]),
        ("clients", lambda reply: [[*row, b"more"] for row in reply]),
        ("stats", lambda reply: [[*row, b"more"] for row in reply]),
        ("audit", lambda reply: [*reply, b"more"]),
        ("version", lambda reply: [*reply, b"more"]),
    ],
)
def test_a_client_ignores_what_a_later_revision_adds_to_a_reply(
    shipped: redis.Redis, name: str, more: Any
) -> None:
    queue = QueueCommands(KEYS)
    for command in (queue.register("c1", 30), queue.dequeue("c1", lease=30, limit=1)):
        shipped.execute_command(*command.words())
    found = [one for one in [*commands(), version()] if one.function == name]
    for command in found:
        reply = shipped.execute_command(*command.words())
        assert comparable(command.answer(more(reply))) == comparable(command.answer(reply))
    assert found


def comparable(answer: Any) -> Any:
    return (answer.state, answer.settled, answer.jobs) if isinstance(answer, Taken) else answer
