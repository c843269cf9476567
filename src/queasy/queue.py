"""A queue as an application sees it."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Collection, Iterable
from typing import Any, get_args, overload

from queasy.bulk import chunks, put_all
from queasy.codec import Codec, CodecName
from queasy.dispatch import Dispatch
from queasy.errors import InvalidId, InvalidInput, InvalidOption
from queasy.handler import Registry
from queasy.job import Job
from queasy.lease import Lease, LeaseRequest
from queasy.operation import run_operation
from queasy.operations import audit, drop, evict, requeue, take_one, trim, until_done
from queasy.options import (
    MAX_COUNT,
    Durability,
    JobOptions,
    Seconds,
    UpdateRunAt,
    When,
    check_bool,
    check_known_id,
    check_optional_count,
    check_whole,
    seconds,
)
from queasy.registration import HandledQueue
from queasy.store.commands import ListState, RecordKind
from queasy.store.keys import QueueKeys
from queasy.store.records import ClientInfo, Counts, Dispatched, Stat
from queasy.store.store import AsyncStore

__all__ = ["Queue"]

JOBS_PAGE_SIZE = 100
DURABILITIES: tuple[str, ...] = get_args(Durability)


def check_durability(value: str) -> Durability:
    if value not in DURABILITIES:
        raise InvalidOption(f"durability: expected 'ack', 'fsynced' or 'replicated', got {value!r}")
    return value  # pyright: ignore[reportReturnType]


def check_state(value: str) -> ListState:
    if value not in get_args(ListState):
        raise InvalidOption(
            f"state: expected one of {', '.join(get_args(ListState))}, got {value!r}"
        )
    return value  # pyright: ignore[reportReturnType]


def check_kind(value: str) -> RecordKind:
    if value not in get_args(RecordKind):
        raise InvalidOption(f"kind: expected 'failed' or 'broken', got {value!r}")
    return value  # pyright: ignore[reportReturnType]


def check_client(value: str) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"~?[A-Za-z0-9_-]{1,63}", value):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"client: expected an id as Queue.clients() shows it, got {value!r}")
    return value


def check_limits(value: JobOptions | None) -> JobOptions | None:
    if value is not None and not isinstance(value, JobOptions):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(f"limits: expected JobOptions, got {type(value).__name__}")
    return value


def check_flag(value: bool | None, name: str) -> bool | None:
    return None if value is None else check_bool(value, name)


def check_ids(ids: str | Iterable[str]) -> list[str]:
    if not isinstance(ids, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidId(f"ids: expected an id or several, got {type(ids).__name__}")
    return [check_known_id(id_) for id_ in ([ids] if isinstance(ids, str) else ids)]


def check_lease(value: Seconds) -> float:
    length = seconds(value, "seconds")
    if length < 0.001:
        raise InvalidOption(f"seconds: expected a lease of a millisecond or more, got {value!r}")
    return length


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
    ) -> None:
        super().__init__(keys, codec, max_payload, registry)
        self._store = store
        self._waiter = waiter

    @property
    def fail_queue(self) -> Queue:
        """Where jobs go that were given up, once `configure(fail_handler=True)` was called."""
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
        update_data: bool = True,
        update_run_at: UpdateRunAt = True,
        update_options: bool | Collection[str] = True,
        reset_counts: bool | None = None,
        durability: Durability = "ack",
    ) -> Dispatched:
        """Put a job, or update the one with this id.

        A job with an id that is waiting is updated: its data, its run_at (always, never,
        "if_later" or "if_earlier"), the options named (True: those given), and its counts
        (by default reset when the data is updated). A job that is due keeps its place. While
        the id is running the dispatch is held and applied when the run ends, so one id never
        runs twice at once.

        `run_at` is a time, `delay` a duration by the server's clock; without either the job
        is due now. `durability` waits until the write is on disk ("fsynced") or on a replica
        ("replicated"), and raises NotDurable when it is not.

        The status is created, updated, blocked (held behind a run) or unchanged.
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
        )
        item = dispatch.item(self.codec, self._max_payload)
        return await self._store.dispatch(self._commands, item, check_durability(durability))

    async def dispatch_many(
        self, jobs: Iterable[Any | Dispatch], *, durability: Durability = "ack"
    ) -> list[Dispatched]:
        """Put many jobs, a thousand or so for each round trip.

        Each is its data, or a `Dispatch` when it needs more. Any iterable will do. A list is
        checked whole before any of it is sent. A generator is read as it is sent: a job that
        is refused stops it there, with what came before put.
        """
        check_durability(durability)
        items = chunks(jobs, self.codec, self._max_payload)
        return await put_all(self._store, self._commands, items, durability)

    async def cancel(self, id: str, *, running: bool = False) -> bool:  # noqa: A002
        """Remove a job that waits, or a dispatch held behind a run; True if there was one.

        With `running`, a run in progress is asked to stop too: its holder is told, and the
        job will not come back whether it listens or not.
        """
        (word,) = await self._store.run(
            self._commands.cancel([check_known_id(id)], running=check_bool(running, "running"))
        )
        return word in ("cancelled", "requested")

    @overload
    def lease(self, seconds: Seconds = 60, *, timeout: None = None) -> LeaseRequest[Lease]: ...

    @overload
    def lease(
        self, seconds: Seconds = 60, *, timeout: Seconds | None
    ) -> LeaseRequest[Lease | None]: ...

    def lease(self, seconds: Seconds = 60, *, timeout: Seconds | None = None) -> LeaseRequest[Any]:
        """Take one job for some seconds: `await` it, or use it in `async with`.

        Waits without polling until a job comes, also through a restart of the server; None
        after `timeout` seconds. After `seconds` without an answer the job goes to the next who
        asks. (If nobody at all was heard for ten seconds the server may have been away, and
        whoever holds a lease has ten more to come back.)
        """
        length, patience = check_lease(seconds), check_wait_timeout(timeout)

        async def take() -> Lease | None:
            operation = take_one(
                self._commands, length, patience, self._waiter, lambda: self._store.connected
            )
            job = await run_operation(self._store, operation)
            return None if job is None else Lease(job, self._commands, self._store)

        return LeaseRequest(take())

    async def get(self, id: str) -> Job | None:  # noqa: A002
        """The job with this id: waiting or active, else its failed or broken record."""
        rows = await self._store.run(self._commands.get(check_known_id(id)))
        return rows[0] if rows else None

    async def jobs(self, state: ListState = "waiting") -> AsyncGenerator[Job]:
        """Jobs in a state: waiting ones by time, failed and broken ones newest first.

        Read in pages: you may cancel, requeue or drop what you get as you go. Jobs that come
        or change meanwhile may be missed, or seen twice.
        """
        check_state(state)
        cursor = b""
        while True:
            page, cursor = await self._store.run(self._commands.jobs(state, cursor, JOBS_PAGE_SIZE))
            for job in page:
                yield job
            if not cursor:
                return

    async def counts(self) -> Counts:
        """How many jobs are in which state."""
        return await self._store.run(self._commands.counts())

    async def stats(self) -> list[Stat]:
        """Counters: totals, and for each of the last 60 minutes."""
        return await self._store.run(self._commands.stats())

    async def clients(self) -> list[ClientInfo]:
        """Who holds, or may take, jobs of this queue; the first thousand."""
        return await self._store.run(self._commands.clients(0, 1000))

    async def pause(self) -> None:
        """Hand out no more jobs. Those running go on; dispatches are accepted."""
        await self._store.run(self._commands.configure(paused=True))

    async def resume(self) -> None:
        """Hand out jobs again."""
        await self._store.run(self._commands.configure(paused=False))

    async def configure(
        self,
        *,
        limits: JobOptions | None = None,
        fail_handler: bool | None = None,
        failed_limit: int | None = None,
        broken_limit: int | None = None,
    ) -> None:
        """Set what holds for every job of the queue; what is left out stays as it is.

        `limits` are for jobs that ask for nothing else, `fail_handler` says whether jobs
        given up are put into `fail_queue`, the others bound the failed and broken records.
        """
        check_optional_count(failed_limit, "failed_limit")
        check_optional_count(broken_limit, "broken_limit")
        await self._store.run(
            self._commands.configure(
                limits=check_limits(limits),
                fail_handler=check_flag(fail_handler, "fail_handler"),
                failed_limit=failed_limit,
                broken_limit=broken_limit,
            )
        )

    async def requeue(self, ids: str | Iterable[str], *, kind: RecordKind = "failed") -> int:
        """Let failed (or broken) jobs run again, with fresh counts; how many do."""
        operation = requeue(self._commands, check_kind(kind), check_ids(ids))
        return await run_operation(self._store, operation)

    async def drop(self, ids: str | Iterable[str], *, kind: RecordKind = "failed") -> int:
        """Forget failed (or broken) jobs; how many there were."""
        operation = drop(self._commands, check_kind(kind), check_ids(ids))
        return await run_operation(self._store, operation)

    async def trim(self, keep: int, *, kind: RecordKind = "failed") -> int:
        """Keep the newest records only; how many were dropped."""
        check_whole(keep, "keep", 0, MAX_COUNT)
        return await run_operation(self._store, trim(self._commands, check_kind(kind), keep))

    async def sweep(self) -> int:
        """Return the jobs of dead clients now; whoever takes or extends does it anyway."""
        return await run_operation(self._store, until_done(self._commands.sweep))

    async def evict(self, client: str, *, died: bool = True) -> int:
        """Take all jobs from a client. `died` counts a stall against each of them."""
        return await run_operation(
            self._store, evict(self._commands, check_client(client), died=check_bool(died, "died"))
        )

    async def audit(self) -> list[str]:
        """What is wrong with the queue's records on the server: nothing, one hopes."""
        return await run_operation(self._store, audit(self._commands))


def check_wait_timeout(value: Seconds | None) -> float | None:
    return None if value is None else seconds(value, "timeout")
