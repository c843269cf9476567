"""What a worker is to do: where the server is, which queues it serves, with which functions."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec

from queasy.handler import Function, Handler
from queasy.store.commands import QueueCommands
from queasy.store.keys import QueueKeys
from queasy.store.net.url import target_of
from queasy.store.store import AsyncStore
from queasy.version import VERSION

__all__ = [
    "CAPACITY",
    "CUT_OFF",
    "DEADLY",
    "Place",
    "Plan",
    "Record",
    "Service",
    "safety_interval",
    "sizes",
]

CAPACITY = 100
MOST_CAPACITY = 10_000
DEFAULT_SIZE = 10
MOST_PROCESSES = 1000
# A worker that is not heard for this long is dead. Longer, by heartbeats, than the silence that
# the server takes for an outage of its own (OUTAGE_MS in lua/keys.lua: 10 seconds): a server that
# was away for less has not let a lease run out, one that was away for longer knows that it was.
BUMP_EVERY = 1.0
LEASE = 10.0 + 3.0
# Who has not heard of the server for so long is cut off from it, and others may not be: its runs
# are asked to end, and what does not listen is killed, before its jobs are anybody else's. A
# server that paused for ten seconds does not come to this.
CUT_OFF = LEASE - 1.75
DEADLY = LEASE - 1.25
# For a worker that holds nothing of a queue. Not much longer: it may take jobs while such a
# heartbeat is under way, and die before the next.
IDLE_LEASE = 20.0
CONNECTIONS = 4


@dataclass(frozen=True, slots=True)
class Place:
    """A server and the keys on it; a value that can be handed to another process."""

    url: str | None = field(repr=False)  # it may hold a password
    prefix: str
    timeout: float
    folder: str | None

    def store(self, timeout: float | None = None) -> AsyncStore:
        """With few connections: workers are many, and each of their calls is short."""
        folder = None if self.folder is None else Path(self.folder)
        return AsyncStore(target_of(self.url, folder), timeout or self.timeout, folder, CONNECTIONS)

    def commands(self, queue: str, *, fail: bool) -> QueueCommands:
        return QueueCommands(QueueKeys(self.prefix, queue, fail))

    def group_control(self, group: str) -> str:
        """Where the workers of one supervisor are told what to serve."""
        return f"{self.prefix}:{{worker-{group}}}:control"

    def queue_control(self, queue: str) -> str:
        """Where all workers with a handler for a queue are told, whether they serve it or not."""
        return f"{self.prefix}:{{{queue}}}:control"

    def controls(self, group: str, queues: Collection[str]) -> set[str]:
        return {self.group_control(group), *map(self.queue_control, queues)}


class Service(msgspec.Struct, frozen=True):
    """One queue and what runs its jobs."""

    handler: Handler
    function: Function
    commands: QueueCommands

    @property
    def queue(self) -> str:
        return self.handler.queue

    @property
    def name(self) -> str:
        """As people see it: of a fail queue, with -fail."""
        return self.commands.keys.name


class Plan(msgspec.Struct, frozen=True):
    """All that a worker needs to know."""

    place: Place
    services: tuple[Service, ...]

    @classmethod
    def of(cls, place: Place, handlers: Sequence[tuple[Handler, Function]]) -> Plan:
        return cls(place, tuple(_service(place, *pair) for pair in handlers))


def _service(place: Place, handler: Handler, function: Function) -> Service:
    keys = QueueKeys(place.prefix, handler.queue, handler.fail)
    commands = QueueCommands(keys, handler.codec, limits=handler.options.limits)
    return Service(handler, function, commands)


def safety_interval(lines: int, processes: int = 1) -> float:
    """How often each queue is looked at when nothing is heard of it.

    Waking is the server's business; this covers a lost message. Together the workers of one
    supervisor look less than once a second, however many queues they serve.
    """
    return min(60.0, max(8.0, 1.25 * lines * processes))


def sizes(plan: Plan) -> dict[str, int]:
    """What one job of each queue costs; of one whose size is measured, the least."""
    return {
        service.name: service.handler.options.size
        or (1 if service.function.is_async else DEFAULT_SIZE)
        for service in plan.services
    }


# What is more, or less, was written by somebody else.
Whole = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Record(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a worker tells of itself, for everybody to read."""

    group: str = ""
    """Of all workers of one supervisor."""
    host: str = ""
    pid: Whole = 0
    supervisor: Whole = 0
    version: str = ""
    started: float = 0.0
    capacity: Whole = CAPACITY
    queues: dict[str, Whole] = {}
    """Each with the size of one of its jobs."""

    @classmethod
    def here(cls, group: str, supervisor: int, capacity: int, queues: dict[str, int]) -> Record:
        return cls(
            group=group,
            host=socket.gethostname(),
            pid=os.getpid(),
            supervisor=supervisor,
            version=VERSION,
            started=time.time(),
            capacity=capacity,
            queues=queues,
        )

    def pack(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def read(cls, raw: bytes) -> Record | None:
        """None for what is no worker's record: a pull lease has none."""
        try:
            return msgspec.json.decode(raw, type=cls) if raw else None
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None
