"""A queue, for code that awaits."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from typing import Any, overload

from queasy.bulk import put_all
from queasy.codec import Codec, CodecName
from queasy.consumer.awaiting import Consumer
from queasy.dispatch import Dispatch, DispatchDefaults
from queasy.job import Job
from queasy.lease import Lease, LeaseRequest
from queasy.operation import run_operation
from queasy.options import Durability, IfExists, JobOptions, Seconds, UpdateRunAt, When
from queasy.registration import HandledQueue
from queasy.registry import Registry
from queasy.requests import (
    MAX_LISTED_CLIENTS,
    CancelState,
    check_concurrency,
    check_consumer_lease,
    consumer_commands,
)
from queasy.store.commands import ListState, RecordKind
from queasy.store.keys import QueueKeys
from queasy.store.records import Cancellation, ClientInfo, Counts, Dispatched, MadeDue, Stat
from queasy.store.store import AsyncStore

__all__ = ["Queue", "consumer_of"]


class Queue(HandledQueue):
    """A named set of jobs. Get one from `Client.queue`."""

    def __init__(
        self,
        keys: QueueKeys,
        codec: CodecName | Codec,
        max_payload: int,
        store: AsyncStore,
        waiter: str,
        registry: Registry,
        defaults: DispatchDefaults | None = None,
    ) -> None:
        super().__init__(keys, codec, max_payload, registry, defaults)
        self._store = store
        self._waiter = waiter

    @property
    def fail_queue(self) -> Queue:
        """The queue of jobs that were given up, once `configure(fail_handler=True)` was called."""
        keys = QueueKeys(self.keys.prefix, self.keys.queue, fail=True)
        return Queue(keys, self.codec, self._max_payload, self._store, self._waiter, self._registry)

    async def dispatch(
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
        """Put a job, or update the one with this id.

        If the id is waiting, that job is updated: its data, its run_at (True, False, "if_later" or
        "if_earlier"), the options named (True: those given), and its counts (by default they are
        reset when the data is updated, except by the run of that job itself). A job that is due
        keeps its place. While the id is running the dispatch is blocked, and applied when the run
        ends: one id has one lease at a time. With `if_exists="skip"`, a job that waits or runs is
        left as it is, and the dispatch is dropped.

        `run_at` is a time, `delay` a duration by the server's clock; without either the job
        is due now. `durability` waits until the write is on disk ("fsynced"), on a replica
        ("replicated") or on several (`Replicated(2)`), and raises NotDurable when it is not.

        What is not given is as in the `defaults` of the queue: see `Client.queue`.

        The status of the result is created, updated, blocked, unchanged or exists.
        """
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
        return await self._store.dispatch(self._commands, item, self._durability(durability))

    async def dispatch_many(
        self, jobs: Iterable[Any | Dispatch], *, durability: Durability | None = None
    ) -> list[Dispatched]:
        """Put many jobs, a thousand or so for each round trip.

        A job is its data, or a `Dispatch` if it needs more. Any iterable will do. A list is checked
        completely before any of it is sent. A generator is read while jobs are sent: when a job is
        refused, the jobs before it have been put.
        """
        level, items = self._durability(durability), self._chunks(jobs)
        return await put_all(self._store, self._commands, items, level)

    async def run_now(self, id: str) -> MadeDue:  # noqa: A002
        """Make a waiting job due now, whether it was scheduled or waits to be retried.

        Its data, options and counts stay. The result is true if it will run now: its status says
        `due`, or `already_due`. A job that is `active` or `absent` stays as it is. In a paused
        queue the job runs when the queue is resumed.
        """
        return await self._store.run(self._run_now_command(id))

    async def cancel(self, id: str, *, running: bool = False) -> Cancellation:  # noqa: A002
        """Remove a waiting job, or a blocked dispatch. The result is true if there was one.

        With `running`, a run in progress is cancelled, too: its worker or lease holder receives the
        request, and the job does not run again, whether the run stops or not.

        The status of the result is cancelled, requested, active (it runs, and was not asked to end:
        false) or absent (false).
        """
        (result,) = await self._store.run(self._cancel_command(id, running))
        return result

    async def cancel_where(
        self,
        predicate: Callable[[Job], bool],
        *,
        state: CancelState | None = None,
        running: bool = False,
        limit: int | None = None,
    ) -> int:
        """Cancel the jobs for which `predicate` returns True; return how many.

        It searches waiting jobs and blocked dispatches; with `running` also active jobs, whose runs
        are asked to end. `state` limits the search to one state. At most `limit` are cancelled.

        Jobs are read and cancelled in pages of 100. A job that changes between the two is cancelled
        all the same. Jobs that are added meanwhile may be missed. If the predicate raises,
        `PredicateFailed` is raised, and says how many were cancelled before.
        """
        operation = self._cancel_where_operation(predicate, state, running, limit)
        return await run_operation(self._store, operation)

    @overload
    def lease(self, seconds: Seconds = 60, *, timeout: None = None) -> LeaseRequest[Lease]: ...

    @overload
    def lease(
        self, seconds: Seconds = 60, *, timeout: Seconds | None
    ) -> LeaseRequest[Lease | None]: ...

    def lease(self, seconds: Seconds = 60, *, timeout: Seconds | None = None) -> LeaseRequest[Any]:
        """Take one job for some seconds: `await` it, or use it in `async with`.

        Wait without polling until a job comes, also through a restart of the server. The result is
        None after `timeout` seconds. If the lease is neither ended nor extended within `seconds`,
        the job goes to another client. (If no client made a call for ten seconds, the server may
        have been away: then every lease lasts ten seconds longer.)
        """
        operation = self._take_operation(
            seconds, timeout, self._waiter, lambda: self._store.was_reached
        )

        async def take() -> Lease | None:
            job = await run_operation(self._store, operation)
            return None if job is None else Lease(job, self._commands, self._store)

        return LeaseRequest(take())

    def consumer(self, *, concurrency: int = 10, lease: Seconds = 30) -> Consumer:
        """Take several jobs at a time in a loop of your own; use it in `async with`.

        At most `concurrency` leases are held at a time. The consumer keeps them alive: if its
        process dies, its jobs go to other clients `lease` seconds later. `Client.consumer` takes
        jobs of several queues.
        """
        return consumer_of([self], self._store, concurrency, lease)

    async def get(self, id: str) -> Job | None:  # noqa: A002
        """The job with this id: waiting or active, else its failed, else its broken record."""
        rows = await self._store.run(self._get_command(id))
        return rows[0] if rows else None

    async def jobs(self, state: ListState = "waiting") -> AsyncGenerator[Job]:
        """Jobs in a state: waiting ones by time, failed and broken ones newest first.

        They are read in pages: you may cancel, requeue or drop the jobs you get meanwhile. Jobs
        that are added or changed meanwhile may be missed, or come twice.
        """
        cursor = b""
        while True:
            page, cursor = await self._store.run(self._page_command(state, cursor))
            for job in page:
                yield job
            if not cursor:
                return

    async def counts(self) -> Counts:
        """How many jobs are in each state."""
        return await self._store.run(self._commands.counts())

    async def stats(self) -> list[Stat]:
        """Counters: totals, and for each of the last 60 minutes, without zeros, in no order."""
        return await self._store.run(self._commands.stats())

    async def clients(self) -> list[ClientInfo]:
        """The first thousand clients that hold, or may take, jobs of this queue."""
        return await self._store.run(self._commands.clients(0, MAX_LISTED_CLIENTS))

    async def pause(self) -> None:
        """Stop giving out jobs. Jobs that run continue, and dispatches are accepted."""
        await self._store.run(self._commands.configure(paused=True))

    async def resume(self) -> None:
        """Give out jobs again."""
        await self._store.run(self._commands.configure(paused=False))

    async def configure(
        self,
        *,
        limits: JobOptions | None = None,
        fail_handler: bool | None = None,
        failed_limit: int | None = None,
        broken_limit: int | None = None,
    ) -> None:
        """Change settings of the whole queue; a setting left out stays as it is.

        `limits` apply to jobs without options of their own. `fail_handler` says whether jobs that
        are given up are put into `fail_queue`. The others bound the failed and broken records.
        """
        command = self._configure_command(limits, fail_handler, failed_limit, broken_limit)
        await self._store.run(command)

    async def requeue(self, ids: str | Iterable[str], *, kind: RecordKind = "failed") -> int:
        """Let failed (or broken) jobs run again, with their counts reset; return how many."""
        return await run_operation(self._store, self._requeue_operation(ids, kind))

    async def drop(self, ids: str | Iterable[str], *, kind: RecordKind = "failed") -> int:
        """Delete the records of failed (or broken) jobs; return how many there were."""
        return await run_operation(self._store, self._drop_operation(ids, kind))

    async def trim(self, keep: int, *, kind: RecordKind = "failed") -> int:
        """Keep the newest records only; return how many were dropped."""
        return await run_operation(self._store, self._trim_operation(keep, kind))

    async def destroy(self, *, force: bool = False) -> None:
        """Delete the queue: all its jobs, records, settings and counters. Its fail queue stays.

        Raises `QueueInUse`, and deletes nothing, if jobs are active or workers serve the queue.
        With `force` these jobs are deleted, too. Workers stop their runs, drop what they hold of
        the queue, and serve it again; their runs of other queues go on.
        """
        self._check_destroyed(await self._store.run(self._destroy_command(force)))

    async def sweep(self) -> int:
        """Put the jobs of dead clients back now. Every dequeue and heartbeat does it, too.

        Return how many; 0 if no client is dead. A dead client without jobs may count as one.
        """
        return await run_operation(self._store, self._sweep_operation())

    async def evict(self, client: str, *, died: bool = True) -> int:
        """Take all jobs from a client; return how many. `died` counts a stall against each."""
        return await run_operation(self._store, self._evict_operation(client, died))

    async def audit(self) -> list[str]:
        """Every inconsistency in the queue's records on the server; empty for a healthy queue."""
        return await run_operation(self._store, self._audit_operation())


def consumer_of(
    queues: Sequence[Queue], store: AsyncStore, concurrency: int, lease: Seconds
) -> Consumer:
    """A consumer of these queues; raises unless all are of the client that has this store."""
    ours = [queue._store is store for queue in queues]  # pyright: ignore[reportPrivateUsage]
    commands = consumer_commands(queues, ours)
    return Consumer(store, commands, check_concurrency(concurrency), check_consumer_lease(lease))
