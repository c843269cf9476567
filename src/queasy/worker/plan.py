"""What a worker has to do: where the server is, which queues it serves, with which functions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from queasy.handler import Function, Handler
from queasy.registry import Registry, Resolved
from queasy.store.commands import QueueCommands
from queasy.store.keys import QueueKeys
from queasy.store.net.url import target_of
from queasy.store.store import AsyncStore
from queasy.worker_record import CAPACITY

__all__ = [
    "CAPACITY",
    "Place",
    "Plan",
    "Service",
    "job_sizes",
    "safety_interval",
]

MOST_CAPACITY = 10_000
DEFAULT_SIZE = 10
MOST_PROCESSES = 1000
# Few: there are many workers, and each of their calls is short.
CONNECTIONS = 4


@dataclass(frozen=True, slots=True)
class Place:
    """A server and a prefix on it; a value that can be sent to another process."""

    url: str | None = field(repr=False)  # it may contain a password
    prefix: str
    timeout: float
    folder: str | None

    @property
    def server(self) -> str:
        """The address of the server, or the folder of the embedded server, without secrets."""
        return str(target_of(self.url, None if self.folder is None else Path(self.folder)))

    def store(self, timeout: float | None = None) -> AsyncStore:
        """A new store for this place."""
        folder = None if self.folder is None else Path(self.folder)
        return AsyncStore(target_of(self.url, folder), timeout or self.timeout, folder, CONNECTIONS)

    def commands(self, queue: str, *, fail: bool) -> QueueCommands:
        """The commands of a queue, or of its fail queue."""
        return QueueCommands(QueueKeys(self.prefix, queue, fail))

    def group_control(self, group: str) -> str:
        """The channel for orders to the workers of one supervisor."""
        return f"{self.prefix}:{{worker-{group}}}:control"

    def queue_control(self, queue: str) -> str:
        """The channel for orders to all workers with a handler for a queue.

        Workers that do not serve the queue now receive them as well.
        """
        return f"{self.prefix}:{{{queue}}}:control"

    def controls(self, group: str, queues: Collection[str]) -> set[str]:
        """All channels that the workers of a supervisor subscribe to."""
        return {self.group_control(group), *map(self.queue_control, queues)}


class Service(msgspec.Struct, frozen=True):
    """One queue and what runs its jobs."""

    handler: Handler
    function: Function
    commands: QueueCommands
    has_fail_handler: bool = False
    """Whether the queue has a fail handler here; False for the fail queue itself."""

    @property
    def queue(self) -> str:
        """The name given to the handler; a fail queue has that of its queue."""
        return self.handler.queue

    @property
    def name(self) -> str:
        """As users see it: a fail queue with -fail."""
        return self.commands.keys.name


class Plan(msgspec.Struct, frozen=True):
    """The server, and the queues to serve."""

    place: Place
    services: tuple[Service, ...]
    registry: Registry
    """Where the application registers handlers, perhaps more of them later."""
    names: frozenset[str] | None
    """The queues that were chosen; None for all that have handlers."""

    @classmethod
    def of(cls, place: Place, registry: Registry, names: Collection[str] | None = None) -> Plan:
        """The plan for all handlers, imported, or for those of the queues in `names`."""
        handlers = registry.resolved(names)
        chosen = None if names is None else frozenset(names)
        return cls(place, cls._services(place, handlers), registry, chosen)

    def renewed(self) -> Plan:
        """A plan with the same services and, after them, those for what was registered since."""
        return self.with_more(self.registry.resolved(self.names))

    def with_more(self, handlers: Sequence[Resolved]) -> Plan:
        """A plan with the same services and, after them, those for the other ones of these."""
        found = {
            (one.handler.queue, one.handler.fail): (one.handler, one.function)
            for one in self.services
        }
        for handler, function in handlers:
            if self.names is None or handler.queue in self.names:
                found.setdefault((handler.queue, handler.fail), (handler, function))
        services = self._services(self.place, list(found.values()))
        return msgspec.structs.replace(self, services=services)

    @staticmethod
    def _services(place: Place, handlers: Sequence[Resolved]) -> tuple[Service, ...]:
        with_fail_handler = {handler.queue for handler, _ in handlers if handler.fail}
        services: list[Service] = []
        for handler, function in handlers:
            keys = QueueKeys(place.prefix, handler.queue, handler.fail)
            commands = QueueCommands(keys, handler.codec, limits=handler.options.limits)
            fails = not handler.fail and handler.queue in with_fail_handler
            services.append(Service(handler, function, commands, fails))
        return tuple(services)


def safety_interval(queues: int, processes: int = 1) -> float:
    """Seconds between polls of a queue from which no wake-up arrives.

    The server wakes workers; these polls cover a lost message. Together the workers of one
    supervisor poll less than once a second, if queues times processes is less than 48.
    """
    return min(60.0, max(8.0, 1.25 * queues * processes))


def job_sizes(plan: Plan) -> dict[str, int]:
    """The size of one job of each queue; the smallest if the size is measured."""
    return {
        service.name: service.handler.options.size
        or (1 if service.function.is_async else DEFAULT_SIZE)
        for service in plan.services
    }
