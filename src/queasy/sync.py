"""Client, queue and lease for code that does not await: Django, Flask, scripts.

Nothing is decided here. Each method runs the same command or operation as its async sibling, in a
store that does not await. A test compares the signatures.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, overload

from queasy.bulk import put_all_sync
from queasy.client import MAX_PAYLOAD, Settings
from queasy.codec import Codec, CodecName
from queasy.consumer.threaded import SyncConsumer
from queasy.dispatch import Dispatch, DispatchDefaults, new_client_id, new_id
from queasy.errors import InvalidOption, ServerError
from queasy.job import Job
from queasy.lease import SyncLease
from queasy.operation import run_operation_sync
from queasy.options import Durability, IfExists, JobOptions, Seconds, UpdateRunAt, When
from queasy.requests import (
    MAX_LISTED_CLIENTS,
    CancelState,
    QueueRequests,
    check_concurrency,
    check_consumer_lease,
    check_queues,
    consumer_commands,
    queue_arguments,
)
from queasy.store.commands import ListState, RecordKind
from queasy.store.health import Health
from queasy.store.keys import QueueKeys
from queasy.store.records import Cancellation, ClientInfo, Counts, Dispatched, MadeDue, Stat
from queasy.store.store import SyncStore
from queasy.worker.eviction import Evicted, check_worker, evict_worker
from queasy.worker.queue_health import queue_health
from queasy.worker.roster import WorkerInfo, check_queue_names, roster

__all__ = ["SyncClient", "SyncQueue"]


class SyncQueue(QueueRequests):
    """A named set of jobs, for sync code. Get one from `SyncClient.queue`."""

    def __init__(
        self,
        keys: QueueKeys,
        codec: CodecName | Codec,
        max_payload: int,
        store: SyncStore,
        defaults: DispatchDefaults | None = None,
    ) -> None:
        super().__init__(keys, codec, max_payload, defaults)
        self._store = store

    @property
    def fail_queue(self) -> SyncQueue:
        """The queue of jobs that were given up, once `configure(fail_handler=True)` was called."""
        keys = QueueKeys(self.keys.prefix, self.keys.queue, fail=True)
        return SyncQueue(keys, self.codec, self._max_payload, self._store)

    def dispatch(
        self,
        data: Any,
        *,
        id: str | None = None,  # noqa: A002 - the word people know
        run_at: When | None = None,
        delay: Seconds | None = None,
        options: JobOptions | None = None,
        update_data: bool | None = None,
        update_run_at: UpdateRunAt | None = None,
        update_options: bool | Collection[str] | None = None,
        reset_counts: bool | None = None,
        if_exists: IfExists | None = None,
        durability: Durability | None = None,
    ) -> Dispatched:
        """Put a job, or update the one with this id; see `Queue.dispatch` for every argument."""
        dispatch = Dispatch(
            data,
            id,
            run_at,
            delay,
            options,
            update_data,
            update_run_at,
            update_options,
            reset_counts,
            if_exists,
        )
        item = self._item(dispatch)
        command = self._commands.dispatch([item])
        return self._store.run(command, self._durability(durability))[0]

    def dispatch_many(
        self, jobs: Iterable[Any | Dispatch], *, durability: Durability | None = None
    ) -> list[Dispatched]:
        """Put many jobs (data, or a `Dispatch`), a thousand or so for each round trip."""
        level, items = self._durability(durability), self._chunks(jobs)
        return put_all_sync(self._store, self._commands, items, level)

    def run_now(self, id: str) -> MadeDue:  # noqa: A002
        """Make a waiting job due now, whether it was scheduled or waits to be retried.

        Its data, options and counts stay. The result is true if it will run now: its status says
        `due`, or `already_due`. A job that is `active` or `absent` stays as it is. In a paused
        queue the job runs when the queue is resumed.
        """
        return self._store.run(self._run_now_command(id))

    def cancel(self, id: str, *, running: bool = False) -> Cancellation:  # noqa: A002
        """Remove a waiting job, or a blocked dispatch. The result is true if there was one.

        With `running`, a run is cancelled, too; without it, a run continues: see `Queue.cancel`.
        """
        return self._store.run(self._cancel_command(id, running))[0]

    def cancel_where(
        self,
        predicate: Callable[[Job], bool],
        *,
        state: CancelState | None = None,
        running: bool = False,
        limit: int | None = None,
    ) -> int:
        """Cancel the jobs for which `predicate` returns True; return how many.

        See `Queue.cancel_where` for the arguments.
        """
        operation = self._cancel_where_operation(predicate, state, running, limit)
        return run_operation_sync(self._store, operation)

    @overload
    def lease(self, seconds: Seconds = 60, *, timeout: None = None) -> SyncLease: ...

    @overload
    def lease(self, seconds: Seconds = 60, *, timeout: Seconds | None) -> SyncLease | None: ...

    def lease(self, seconds: Seconds = 60, *, timeout: Seconds | None = None) -> SyncLease | None:
        """Take one job for some seconds; the lease may be used in `with`.

        Wait without polling until a job comes; None after `timeout` seconds, so check first:
        `if lease := queue.lease(timeout=5): with lease: ...`. If the lease is neither ended nor
        extended within `seconds`, the job goes to another client.
        """
        # Each call is a waiter of its own, because threads wait at the same time.
        operation = self._take_operation(
            seconds, timeout, new_client_id(), lambda: self._store.was_reached
        )
        claim = self._store.undos.claim()
        try:
            job = run_operation_sync(self._store, operation, claim)
            lease = None if job is None else SyncLease(job, self._commands, self._store)
            claim.keep()
            return lease
        except BaseException:  # also of a signal handler
            claim.abandon()
            raise

    def consumer(self, *, concurrency: int = 10, lease: Seconds = 30) -> SyncConsumer:
        """Take several jobs at a time in a loop of your own; use it in `with`.

        At most `concurrency` leases are held at a time. A thread keeps them alive: if the process
        dies, its jobs go to other clients `lease` seconds later. `SyncClient.consumer` takes jobs
        of several queues.
        """
        return _consumer_of([self], self._store, concurrency, lease)

    def get(self, id: str) -> Job | None:  # noqa: A002
        """The job with this id: waiting or active, else its failed, else its broken record."""
        rows = self._store.run(self._get_command(id))
        return rows[0] if rows else None

    def jobs(self, state: ListState = "waiting") -> Iterator[Job]:
        """Jobs in a state: waiting ones by time, failed and broken ones newest first."""
        cursor = b""
        while True:
            page, cursor = self._store.run(self._page_command(state, cursor))
            yield from page
            if not cursor:
                return

    def counts(self) -> Counts:
        """How many jobs are in each state."""
        return self._store.run(self._commands.counts())

    def stats(self) -> list[Stat]:
        """Counters: totals, and for each of the last 60 minutes, without zeros, in no order."""
        return self._store.run(self._commands.stats())

    def clients(self) -> list[ClientInfo]:
        """The first thousand clients that hold, or may take, jobs of this queue."""
        return self._store.run(self._commands.clients(0, MAX_LISTED_CLIENTS))

    def pause(self) -> None:
        """Stop giving out jobs. Jobs that run continue, and dispatches are accepted."""
        self._store.run(self._commands.configure(paused=True))

    def resume(self) -> None:
        """Give out jobs again."""
        self._store.run(self._commands.configure(paused=False))

    def configure(
        self,
        *,
        limits: JobOptions | None = None,
        fail_handler: bool | None = None,
        failed_limit: int | None = None,
        broken_limit: int | None = None,
    ) -> None:
        """Change settings of the whole queue; a setting left out stays as it is."""
        command = self._configure_command(limits, fail_handler, failed_limit, broken_limit)
        self._store.run(command)

    def requeue(self, ids: str | Iterable[str], *, kind: RecordKind = "failed") -> int:
        """Let failed (or broken) jobs run again, with their counts reset; return how many."""
        return run_operation_sync(self._store, self._requeue_operation(ids, kind))

    def drop(self, ids: str | Iterable[str], *, kind: RecordKind = "failed") -> int:
        """Delete the records of failed (or broken) jobs; return how many there were."""
        return run_operation_sync(self._store, self._drop_operation(ids, kind))

    def trim(self, keep: int, *, kind: RecordKind = "failed") -> int:
        """Keep the newest records only; return how many were dropped."""
        return run_operation_sync(self._store, self._trim_operation(keep, kind))

    def destroy(self, *, force: bool = False) -> None:
        """Delete the queue: all its jobs, records, settings and counters. Its fail queue stays.

        Raises `QueueInUse`, and deletes nothing, if jobs are active or workers serve the queue.
        With `force` these jobs are deleted, too. Workers stop their runs, drop what they hold of
        the queue, and serve it again; their runs of other queues go on.
        """
        self._check_destroyed(self._store.run(self._destroy_command(force)))

    def sweep(self) -> int:
        """Put the jobs of dead clients back now. Every dequeue and heartbeat does it, too.

        Return how many; 0 if no client is dead. A dead client without jobs may count as one.
        """
        return run_operation_sync(self._store, self._sweep_operation())

    def evict(self, client: str, *, died: bool = True) -> int:
        """Take all jobs from a client; return how many. `died` counts a stall against each."""
        return run_operation_sync(self._store, self._evict_operation(client, died))

    def audit(self) -> list[str]:
        """Every inconsistency in the queue's records on the server; empty for a healthy queue."""
        return run_operation_sync(self._store, self._audit_operation())


def _consumer_of(
    queues: Sequence[SyncQueue], store: SyncStore, concurrency: int, lease: Seconds
) -> SyncConsumer:
    """A consumer of these queues; raises unless all are of the client that has this store."""
    ours = [queue._store is store for queue in queues]  # pyright: ignore[reportPrivateUsage]
    commands = consumer_commands(queues, ours)
    return SyncConsumer(
        store, commands, check_concurrency(concurrency), check_consumer_lease(lease)
    )


class SyncClient:
    """A connection with an identity, for sync code. The arguments are those of `Client`.

        with SyncClient() as client:
            client.queue("emails").dispatch({"to": "x@example.org"})

    Threads may share it.
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
        self._store = SyncStore(
            self._settings.target, self._settings.timeout, self._settings.folder
        )
        self.id = new_id()
        """A random id, different for each client object."""

    def queue(
        self,
        name: str | QueueRequests,
        codec: CodecName | Codec | None = None,
        *,
        defaults: DispatchDefaults | None = None,
    ) -> SyncQueue:
        """The queue of this name; see `Client.queue` for every argument."""
        keys, codec, defaults = queue_arguments(self._settings.prefix, name, codec, defaults)
        return SyncQueue(keys, codec, self._settings.max_payload, self._store, defaults)

    def consumer(
        self, queues: Iterable[str | SyncQueue], *, concurrency: int = 10, lease: Seconds = 30
    ) -> SyncConsumer:
        """Take jobs of several queues in a loop of your own; see `Client.consumer`."""
        found = [self.queue(one) if isinstance(one, str) else one for one in check_queues(queues)]
        return _consumer_of(found, self._store, concurrency, lease)

    def workers(self, queues: Collection[str]) -> list[WorkerInfo]:
        """The workers that serve these queues, on any host."""
        return run_operation_sync(self._store, roster(self._settings.place, queues))

    def evict(self, worker: WorkerInfo | str, *, queues: Collection[str] | None = None) -> Evicted:
        """Take all jobs from a worker, on every queue it serves; see `Client.evict`.

        A group or an id is looked for in `queues`, which are then required.
        """
        if isinstance(worker, str) and queues is None:
            raise InvalidOption(
                "queues: expected the names of queues that the worker serves, got None: a "
                "SyncClient has no handlers"
            )
        operation = evict_worker(self._settings.place, check_worker(worker), queues or ())
        return run_operation_sync(self._store, operation)

    def connect(self) -> None:
        """Connect and check the server now, rather than at the first call."""
        self._store.connect()

    def health(self, *, queues: Collection[str] = ()) -> Health:
        """Inspect the server once: whether it can serve, and what is wrong with it.

        With `queues` also these: which are paused, and which have due jobs and no worker. Does not
        raise for a server that is unreachable or refuses: `problem` says so.
        """
        inspect = queue_health(self._settings.place, check_queue_names(queues))
        health = self._store.health()
        if health.problem or not queues:
            return health
        try:
            return replace(health, queues=run_operation_sync(self._store, inspect))
        except ServerError as problem:
            return replace(health, problem=str(problem))

    def close(self) -> None:
        """Close every connection.

        A `lease()` in another thread takes no job, and raises `ClientClosed`. A closed client
        connects again when it is used.
        """
        self._store.close()

    def __enter__(self) -> Self:
        try:
            self.connect()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} on {self._settings}>"
