"""A client: the connection to a server, its queues and its workers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypedDict, Unpack

import msgspec

from queasy.codec import Codec, CodecName
from queasy.consumer.awaiting import Consumer
from queasy.dispatch import DispatchDefaults, new_client_id
from queasy.errors import EmbeddedServerError, InvalidOption, InvalidUrl, ServerError
from queasy.operation import run_operation
from queasy.options import (
    Seconds,
    check_bool,
    check_name,
    check_whole,
    positive_seconds,
    seconds,
)
from queasy.queue import Queue, consumer_of
from queasy.registry import Registry
from queasy.requests import QueueRequests, check_queues, queue_arguments
from queasy.store.health import Health
from queasy.store.net.redis_client import url_of_client
from queasy.store.net.url import target_of
from queasy.store.store import AsyncStore
from queasy.worker.eviction import Evicted, check_worker, evict_worker
from queasy.worker.lease_times import DEFAULT_LEASE, LeaseTimes
from queasy.worker.plan import CAPACITY, MOST_CAPACITY, MOST_PROCESSES, Place, Plan
from queasy.worker.queue_health import queue_health
from queasy.worker.roster import WorkerInfo, check_queue_names, roster

__all__ = ["Client", "Running", "WorkOptions"]

MAX_PAYLOAD = 1024 * 1024


def check_folder(value: object) -> Path | None:
    if value is None:
        return None
    if not isinstance(value, (str, Path)) or not str(value) or "\0" in str(value):
        raise InvalidOption(f"folder: expected a path, got {value!r}")
    return Path(value)


def check_embedded_allowed() -> None:
    """Raises EmbeddedServerError if QUEASY_EMBEDDED=0 is set, as on a production host."""
    given = os.environ.get("QUEASY_EMBEDDED") or "1"
    if given not in ("0", "1"):
        raise InvalidOption(f"QUEASY_EMBEDDED: expected 0 or 1, got {given!r}")
    if given == "0":
        raise EmbeddedServerError(
            "this client has no URL, because QUEASY_URL is not set or is empty, and an embedded "
            "server is forbidden (QUEASY_EMBEDDED=0 or --require-url). Set QUEASY_URL to the "
            "address of a server (redis://host:6379)"
        )


def _beginning(url: str) -> str:
    """How a bad URL begins. Nothing else of it is shown: any other part may be a password."""
    if not url:
        return "is empty"
    scheme, found, _ = url.partition("://")
    if found and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        return f"begins with {scheme}://"
    return "does not begin with a scheme, such as redis://"


class Settings:
    """The checked arguments of a `Client` or a `SyncClient`."""

    def __init__(
        self,
        url: str | None = None,
        *,
        prefix: str = "queasy",
        timeout: float = 10.0,
        max_payload: int = MAX_PAYLOAD,
        folder: str | Path | None = None,
        connection: object = None,
    ) -> None:
        if not isinstance(max_payload, int) or isinstance(max_payload, bool) or max_payload < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(f"max_payload: expected bytes, 1 or more, got {max_payload!r}")
        self.timeout = positive_seconds(timeout, "timeout")
        self.prefix = check_name(prefix, "prefix")
        self.max_payload = max_payload
        self.folder = check_folder(folder)
        ways = {"url": url, "connection": connection, "folder (for the embedded server)": folder}
        chosen = [way for way, value in ways.items() if value is not None]
        if len(chosen) > 1:
            raise InvalidOption(f"expected one of {', '.join(ways)}, got {' and '.join(chosen)}")
        if connection is not None:
            url = url_of_client(connection)
        origin = "the argument url" if connection is None else ""
        if url is None and folder is None:  # a folder means the embedded server
            url, origin = os.environ.get("QUEASY_URL") or None, "QUEASY_URL"
        self.url = url
        if url is None:
            check_embedded_allowed()
            # absolute, because the process may change its current folder later
            self.folder = (self.folder or Path(".queasy")).absolute()
        try:
            self.target = target_of(url, self.folder)
        except InvalidUrl as problem:
            if not origin or not isinstance(url, str):
                raise
            raise InvalidUrl(f"{problem} ({origin} {_beginning(url)})") from None

    @property
    def place(self) -> Place:
        folder = None if self.folder is None else str(self.folder)
        return Place(self.url, self.prefix, self.timeout, folder)

    def __str__(self) -> str:
        return str(self.target)


class WorkOptions(TypedDict, total=False):
    """The options of a worker: see `Client.worker`."""

    processes: int
    capacity: int
    grace: Seconds
    lease: Seconds
    max_jobs: int | None
    max_memory: int | None
    signals: bool | None
    run_unconfirmed: bool


class Running(Protocol):
    """A worker, inline or supervised."""

    @property
    def ready(self) -> bool:
        """Whether it takes jobs: it has started, is not stopping, and the server answers."""
        ...

    async def run(self) -> None:
        """Work until stopped."""
        ...

    def stop(self, grace: float | None = None) -> None:
        """Take no more jobs. Running jobs have `grace` seconds to end, none after a second call."""
        ...

    async def serve(self, queue: str) -> None:
        """Take jobs of this queue again."""
        ...

    async def unserve(self, queue: str, *, release: bool = False) -> None:
        """Take no more jobs of this queue. Jobs that run may end, or are released."""
        ...


class Client:
    """A connection with an identity.

    `url` is redis://, rediss:// (TLS), unix://, redis+sentinel://host,host/service or
    redis+cluster://host,host. The default is the environment variable QUEASY_URL. Without a URL,
    or with a `folder`, an embedded server keeps the jobs in that folder (default ./.queasy);
    QUEASY_EMBEDDED=0 forbids that.

    `connection` is a client object of redis-py or valkey-py (sync or asyncio; of one server, of
    `sentinel.master_for`, or of a cluster) in place of a URL. Its settings are taken: address,
    database, user, password, TLS. Queasy opens connections of its own.

    `prefix` begins every key. `timeout` is how many seconds a call may take, including the wait
    for a server that is unreachable. `max_payload` bounds a job's encoded data, in bytes.

        async with Client() as client:
            emails = client.queue("emails")
            await emails.dispatch({"to": "x@example.org"})
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        prefix: str = "queasy",
        timeout: float = 10.0,
        max_payload: int = MAX_PAYLOAD,
        folder: str | Path | None = None,
        connection: object = None,
    ) -> None:
        self._settings = Settings(
            url, prefix=prefix, timeout=timeout, max_payload=max_payload, folder=folder,
            connection=connection,
        )  # fmt: skip
        self._store = AsyncStore(
            self._settings.target, self._settings.timeout, self._settings.folder
        )
        self._registry = Registry()
        self._listened: dict[str, Callable[..., Any] | str] = {}
        """The functions given to `listen`. Worker processes do not find them by their import."""
        self.id = new_client_id()
        """A random id, different for each client object."""

    def queue(
        self,
        name: str | QueueRequests,
        codec: CodecName | Codec | None = None,
        *,
        defaults: DispatchDefaults | None = None,
    ) -> Queue:
        """The queue of this name. The first dispatch creates it.

        `codec` is "json" (also if it is None), "raw" (bytes, untouched) or an object with encode
        and decode. `defaults` are for what a dispatch through this object does not say:

            pages = client.queue("pages", defaults=DispatchDefaults(if_exists="skip"))

        In place of a name, give a `Queue` or `SyncQueue` of another client: the new object has its
        name, codec and defaults, and the server of this client.
        """
        keys, codec, defaults = queue_arguments(self._settings.prefix, name, codec, defaults)
        max_payload = self._settings.max_payload
        return Queue(keys, codec, max_payload, self._store, self.id, self._registry, defaults)

    def consumer(
        self, queues: Iterable[str | Queue], *, concurrency: int = 10, lease: Seconds = 30
    ) -> Consumer:
        """Take jobs of several queues in a loop of your own; use it in `async with`.

        A queue is a name, for data in JSON, or a `Queue` of this client. The queues take turns.
        `lease.job.queue` names the queue of the job. See `Queue.consumer`.
        """
        found = [self.queue(one) if isinstance(one, str) else one for one in check_queues(queues)]
        return consumer_of(found, self._store, concurrency, lease)

    def plan(self, queues: Collection[str] | None = None) -> Plan:
        """The plan of a worker of this client: all handlers, imported, or those of `queues`."""
        return Plan.of(self._place, self._registry, queues)

    @property
    def _place(self) -> Place:
        return self._settings.place

    def worker(
        self,
        queues: Collection[str] | None = None,
        *,
        processes: int = 0,
        capacity: int = CAPACITY,
        grace: Seconds = 30,
        lease: Seconds = DEFAULT_LEASE,
        max_jobs: int | None = None,
        max_memory: int | None = None,
        signals: bool | None = None,
        run_unconfirmed: bool = False,
    ) -> Running:
        """A worker for the handlers of this client; `await` its `run()`.

        With `processes=0` handlers run in this event loop. With more, a supervisor starts that many
        child processes: they use all CPUs, and a handler that hangs or crashes is killed without
        harm to jobs in other processes. Children import the client by its name, so it must be a
        global of its module. `queasy worker module:client` does the same from the command line.

        `queues` are the queues to serve; None for all that have handlers. `capacity` is the total
        size of the jobs that one process runs at a time. `grace` is how many seconds jobs have to
        end when the worker is stopped. A child is replaced after `max_jobs`, or when it uses more
        than `max_memory` bytes.

        With `signals`, SIGTERM, SIGINT and SIGHUP stop the worker, and a second one stops it at
        once. By default a supervisor handles signals, and a worker in this process does not: they
        belong to your application.

        Handlers that are registered while the worker runs are taken up with `processes=0`, and
        raise `InvalidOption` with more: child processes would not have them.

        A worker that is silent for `lease` seconds (3 to 600) counts as dead, and other workers get
        its jobs. Shortly before that (11 seconds by default), if the server does not answer, a
        supervisor freezes its children until the server answers. Without processes,
        handlers are cancelled. With `run_unconfirmed` they are not: a job may run here and
        elsewhere at the same time.
        """
        self._registry.check_names(queues)
        check_whole(processes, "processes", 0, MOST_PROCESSES)
        check_whole(capacity, "capacity", 1, MOST_CAPACITY)
        grace_seconds = seconds(grace, "grace")
        lease_seconds = LeaseTimes.checked(lease).lease
        handles_signals = processes > 0 if signals is None else check_bool(signals, "signals")
        if check_bool(run_unconfirmed, "run_unconfirmed") and processes:
            raise InvalidOption(
                f"run_unconfirmed: expected processes=0, got {processes}: a supervisor freezes its "
                "processes instead"
            )
        if processes:
            from queasy.worker.app import (
                check_not_importing,
                function_reference,
                reference_to,
            )
            from queasy.worker.supervision.options import SupervisorOptions
            from queasy.worker.supervision.supervisor import Supervisor

            check_not_importing()
            app = reference_to(self)
            names = self._registry.names() if queues is None else tuple(queues)
            listened = [
                (name, one if isinstance(one, str) else function_reference(one, app))
                for name, one in self._listened.items()
                if name in names
            ]
            options = SupervisorOptions(
                app=app,
                processes=processes,
                registered=tuple(names),
                handlers=tuple(listened),
                queues=None if queues is None else tuple(queues),
                capacity=capacity,
                grace=grace_seconds,
                lease=lease_seconds,
                max_jobs=max_jobs,
                max_memory=max_memory,
            )
            self._registry.seal(
                "this client has worker processes, which would not have it. Register handlers "
                "before `work`, `worker` and `listen`",
                queues,
            )
            return Supervisor(options, signals=handles_signals)
        from queasy.worker.inline import InlineWorker

        return InlineWorker(
            self.plan(queues), capacity=capacity, grace=grace_seconds, lease=lease_seconds,
            signals=handles_signals, run_unconfirmed=run_unconfirmed,
        )  # fmt: skip

    async def work(
        self, queues: Collection[str] | None = None, **options: Unpack[WorkOptions]
    ) -> None:
        """Run the handlers of this client until stopped; the arguments are those of `worker`.

        Cancelling it releases the jobs that run, at once.
        """
        await self.worker(queues, **options).run()

    async def listen(
        self,
        handlers: Mapping[str, Callable[..., Any] | str],
        **options: Unpack[WorkOptions],
    ) -> None:
        """Register a handler for each of these queues, and run them until stopped.

            await client.listen({"emails": send, "reports": "shop.reports:build"})

        A handler is a function, or a name as for `Queue.handler`. To give it options or a codec,
        register it with `queue.handler` and call `work`. The options are those of `worker`.
        """
        if not isinstance(handlers, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(
                "handlers: expected a mapping of queues to functions, as in {'emails': send}, got "
                f"{handlers!r}"
            )
        for name, function in handlers.items():
            self.queue(name).handler(function)
        self._listened.update(handlers)
        await self.worker(list(handlers), **options).run()

    async def workers(self, queues: Collection[str] | None = None) -> list[WorkerInfo]:
        """The workers that serve these queues (None: all with handlers), on any host.

        Raises InvalidOption if no queue is named, and none has a handler.
        """
        return await run_operation(self._store, roster(self._place, self._named(queues)))

    def _named(self, queues: Collection[str] | None) -> Collection[str]:
        """These queues (None: all with handlers). Raises InvalidOption if none has one."""
        if queues is None:
            self._registry.check_names(None)
            return self._registry.names()
        return queues

    async def evict(
        self, worker: WorkerInfo | str, *, queues: Collection[str] | None = None
    ) -> Evicted:
        """Take all jobs from a worker, on every queue it serves; return which and how many.

        `worker` comes from `workers()`, or is an id, or a group: then all workers of the group. It
        is looked for in `queues` (None: all with handlers).

        A worker that is alive ends its runs first, and begins again under a new id. The jobs of one
        that is silent return when its lease is over: this waits until then. So no job runs twice at
        once. The jobs go back to the front, which does not count as an attempt; those of a silent
        worker count as stalled. Raises EvictionFailed if a worker neither ends nor dies.
        """
        found = check_worker(worker)
        names = self._named(queues) if isinstance(found, str) else ()  # else it says its queues
        return await run_operation(self._store, evict_worker(self._place, found, names))

    async def tell_workers(
        self,
        do: Literal["serve", "unserve"],
        queue: str,
        *,
        release: bool = False,
        workers: Collection[str] | None = None,
    ) -> int:
        """Make running workers serve a queue, or stop serving it. Return how many got the order.

        The order goes to all workers, or to the groups named (`WorkerInfo.group`). Jobs that run
        when a worker stops serving their queue may end or, with `release`, go back to its front.
        A worker that is just starting may not receive it.
        """
        if do not in ("serve", "unserve"):
            raise InvalidOption(f"do: expected 'serve' or 'unserve', got {do!r}")
        fields = {"do": do, "queue": check_name(queue), "release": check_bool(release, "release")}
        order = msgspec.json.encode(fields)
        place = self._place
        channels = [place.queue_control(queue)]
        if workers is not None:
            if isinstance(workers, str) or not all(isinstance(one, str) for one in workers):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InvalidOption(f"workers: expected groups in a list, got {workers!r}")
            channels = [place.group_control(group) for group in workers]
        await self.connect()
        return sum([await self._store.listener.publish(name, order.decode()) for name in channels])

    async def connect(self) -> None:
        """Connect and check the server now, rather than at the first call."""
        await self._store.connect()

    async def health(self, *, queues: Collection[str] = ()) -> Health:
        """Inspect the server once: whether it can serve, and what is wrong with it.

        With `queues` also these: which are paused, and which have due jobs and no worker. Does not
        raise for a server that is unreachable or refuses: `problem` says so.
        """
        inspect = queue_health(self._place, check_queue_names(queues))
        health = await self._store.health()
        if health.problem or not queues:
            return health
        try:
            return replace(health, queues=await run_operation(self._store, inspect))
        except ServerError as problem:
            return replace(health, problem=str(problem))

    async def close(self) -> None:
        """Send the dispatches that wait, then close every connection.

        A closed client connects again when it is used.
        """
        await self._store.close()

    async def __aenter__(self) -> Self:
        try:
            await self.connect()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} on {self._settings}>"
