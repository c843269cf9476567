"""What each method of a queue sends: its arguments checked, as a command or an operation.

`Queue` awaits these, `SyncQueue` does not; nothing else differs between the two.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar, get_args

import msgspec

from queasy.bulk import Chunk, chunks
from queasy.codec import Codec, CodecName, codec_of
from queasy.current import current_job, is_current
from queasy.dispatch import Dispatch, DispatchDefaults, check_durability
from queasy.errors import InvalidId, InvalidInput, InvalidOption, InvalidQueue, QueueInUse
from queasy.job import Job
from queasy.operation import Operation
from queasy.operations import audit, cancel_where, drop, evict, requeue, take_one, trim, until_done
from queasy.options import (
    MAX_COUNT,
    MAX_LEASE_SECONDS,
    Durability,
    JobOptions,
    Seconds,
    check_bool,
    check_known_id,
    check_name,
    check_optional_count,
    check_whole,
    lease_seconds,
    seconds,
)
from queasy.store.command import Command
from queasy.store.commands import ListState, QueueCommands, RecordKind
from queasy.store.keys import QueueKeys
from queasy.store.records import Cancellation, DispatchItem, MadeDue

__all__ = [
    "CancelState",
    "QueueRequests",
    "check_concurrency",
    "check_consumer_lease",
    "check_queues",
    "consumer_commands",
    "queue_arguments",
]

CancelState = Literal["waiting", "due", "scheduled", "active", "blocked"]

Q = TypeVar("Q")
JOBS_PAGE_SIZE = 100
MAX_LISTED_CLIENTS = 1000
MIN_LEASE_SECONDS = 0.001
MIN_CONSUMER_LEASE_SECONDS = 3.0
MAX_CONCURRENCY = 10_000


class QueueRequests:
    """A queue's name, its codec, and what its methods send."""

    def __init__(
        self,
        keys: QueueKeys,
        codec: CodecName | Codec,
        max_payload: int,
        defaults: DispatchDefaults | None = None,
    ) -> None:
        self.keys = keys
        """The names of its keys on the server."""
        self.codec = codec_of(codec)
        """Encodes and decodes the data of its jobs."""
        self._max_payload = max_payload
        self._defaults = check_defaults(defaults)
        self._commands = QueueCommands(keys, self.codec)

    @property
    def name(self) -> str:
        """The name; that of a fail queue is `{name}-fail`."""
        return self.keys.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def _item(self, dispatch: Dispatch) -> DispatchItem:
        if self._defaults is not None or dispatch.id is not None:
            dispatch = self._complete(dispatch)
        return dispatch.item(self.codec, self._max_payload)

    def _complete(self, job: Dispatch) -> Dispatch:
        """The dispatch with the queue's defaults for what it does not say.

        A run that dispatches its own id keeps the counts: otherwise no limit would ever end it.
        """
        if self._defaults is not None:
            job = self._defaults.complete(job)
        if job.id is None or job.reset_counts is not None or job.if_exists == "skip":
            return job
        if is_current(self.keys, job.id):
            return msgspec.structs.replace(job, reset_counts=False)
        return job

    def _complete_any(self, job: object) -> object:
        """The same for one of many jobs: a `Dispatch`, or data."""
        if isinstance(job, Dispatch):
            return self._complete(job)
        return job if self._defaults is None else self._complete(Dispatch(job))

    def _chunks(self, jobs: Iterable[Any | Dispatch]) -> Iterable[Chunk]:
        """Many jobs, in chunks for one call each."""
        is_plain = self._defaults is None and current_job() is None
        complete = None if is_plain else self._complete_any
        return chunks(jobs, self.codec, self._max_payload, complete)

    def _durability(self, given: Durability | None) -> Durability:
        if given is None:
            return (self._defaults and self._defaults.durability) or "ack"
        return check_durability(given)

    def _run_now_command(self, id_: str) -> Command[MadeDue]:
        return self._commands.run_now(check_known_id(id_))

    def _cancel_command(self, id_: str, running: bool) -> Command[list[Cancellation]]:
        running = check_bool(running, "running")
        return self._commands.cancel([check_known_id(id_)], running=running)

    def _cancel_where_operation(
        self,
        predicate: Callable[[Job], bool],
        state: CancelState | None,
        running: bool,
        limit: int | None,
    ) -> Operation[int]:
        return cancel_where(
            self._commands,
            check_predicate(predicate),
            states_to_cancel(state, running=check_bool(running, "running")),
            running=running,
            limit=math.inf if limit is None else check_whole(limit, "limit", 0, MAX_COUNT),
        )

    def _take_operation(
        self,
        lease: Seconds,
        timeout: Seconds | None,
        waiter: str,
        was_reached: Callable[[], bool],
    ) -> Operation[Job | None]:
        return take_one(
            self._commands, check_lease(lease), check_wait_timeout(timeout), waiter, was_reached
        )

    def _get_command(self, id_: str) -> Command[list[Job]]:
        return self._commands.get(check_known_id(id_))

    def _page_command(self, state: ListState, cursor: bytes) -> Command[tuple[list[Job], bytes]]:
        return self._commands.jobs(check_state(state), cursor, JOBS_PAGE_SIZE)

    def _configure_command(
        self,
        limits: JobOptions | None,
        fail_handler: bool | None,
        failed_limit: int | None,
        broken_limit: int | None,
    ) -> Command[str]:
        check_optional_count(failed_limit, "failed_limit")
        check_optional_count(broken_limit, "broken_limit")
        if fail_handler is not None:
            check_bool(fail_handler, "fail_handler")
        return self._commands.configure(
            limits=check_limits(limits),
            fail_handler=fail_handler,
            failed_limit=failed_limit,
            broken_limit=broken_limit,
        )

    def _requeue_operation(self, ids: str | Iterable[str], kind: RecordKind) -> Operation[int]:
        return requeue(self._commands, check_kind(kind), check_ids(ids))

    def _drop_operation(self, ids: str | Iterable[str], kind: RecordKind) -> Operation[int]:
        return drop(self._commands, check_kind(kind), check_ids(ids))

    def _trim_operation(self, keep: int, kind: RecordKind) -> Operation[int]:
        return trim(self._commands, check_kind(kind), check_whole(keep, "keep", 0, MAX_COUNT))

    def _destroy_command(self, force: bool) -> Command[tuple[str, int, int]]:
        return self._commands.destroy(force=check_bool(force, "force"))

    def _check_destroyed(self, answer: tuple[str, int, int]) -> None:
        state, active, clients = answer
        if state == "active":
            jobs = "1 job is" if active == 1 else f"{active} jobs are"
            others = "1 worker or other client is"
            if clients != 1:
                others = f"{clients} workers or other clients are"
            raise QueueInUse(
                f"queue {self.name!r}: {jobs} active, and {others} registered, so nothing was "
                "deleted. Stop the workers of this queue, or have them leave it (queasy unserve). "
                "Or use force=True: it cancels active jobs"
            )

    def _sweep_operation(self) -> Operation[int]:
        return until_done(self._commands.sweep)

    def _evict_operation(self, client: str, died: bool) -> Operation[int]:
        return evict(self._commands, check_client(client), died=check_bool(died, "died"))

    def _audit_operation(self) -> Operation[list[str]]:
        return audit(self._commands)


def queue_arguments(
    prefix: str,
    queue: str | QueueRequests,
    codec: CodecName | Codec | None,
    defaults: DispatchDefaults | None,
) -> tuple[QueueKeys, CodecName | Codec, DispatchDefaults | None]:
    """Keys, codec and defaults of a queue that is named, or given as the queue of any client."""
    if not isinstance(queue, QueueRequests):
        return QueueKeys(prefix, check_name(queue)), "json" if codec is None else codec, defaults
    given = {"codec": codec, "defaults": defaults}
    if beside := [name for name, value in given.items() if value is not None]:
        raise InvalidOption(
            f"{' and '.join(beside)}: expected none beside {queue!r}, which has its own. To use "
            "others, give its name"
        )
    keys = QueueKeys(prefix, queue.keys.queue, queue.keys.fail)
    return keys, queue.codec, queue._defaults  # pyright: ignore[reportPrivateUsage]


def check_predicate(value: Callable[[Job], bool]) -> Callable[[Job], bool]:
    if not callable(value):
        raise InvalidOption(f"predicate: expected a function of a Job, got {value!r}")
    if inspect.iscoroutinefunction(value):
        raise InvalidOption("predicate: expected a plain function (def) of a Job, got an async one")
    return value


def states_to_cancel(state: CancelState | None, *, running: bool) -> tuple[ListState, ...]:
    """The states to search, in the order in which jobs go through them: a job that begins to run
    meanwhile is met again.
    """
    if state is None:
        return ("waiting", "active", "blocked") if running else ("waiting", "blocked")
    if state not in get_args(CancelState):
        known = ", ".join(get_args(CancelState))
        raise InvalidOption(f"state: expected None or one of {known}, got {state!r}")
    if state == "active" and not running:
        raise InvalidOption(
            "running: expected True with state='active', got False: without it a run is not "
            "asked to end"
        )
    return (state,)


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
    if not isinstance(value, str) or not re.fullmatch(r"~{0,2}[A-Za-z0-9_-]{1,62}", value):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"client: expected an id as Queue.clients() shows it, got {value!r}")
    return value


def check_defaults(value: DispatchDefaults | None) -> DispatchDefaults | None:
    if value is not None and not isinstance(value, DispatchDefaults):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(f"defaults: expected DispatchDefaults, got {type(value).__name__}")
    return value


def check_limits(value: JobOptions | None) -> JobOptions | None:
    if value is not None and not isinstance(value, JobOptions):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(f"limits: expected JobOptions, got {type(value).__name__}")
    return value


def check_ids(ids: str | Iterable[str]) -> list[str]:
    if not isinstance(ids, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidId(f"ids: expected an id or several, got {type(ids).__name__}")
    return [check_known_id(id_) for id_ in ([ids] if isinstance(ids, str) else ids)]


def check_lease(value: Seconds) -> float:
    length = lease_seconds(value)
    if length < MIN_LEASE_SECONDS:
        raise InvalidOption(f"seconds: expected a lease of a millisecond or more, got {value!r}")
    return length


def check_queues(queues: Iterable[Q]) -> list[Q]:
    if isinstance(queues, str) or not isinstance(queues, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidQueue(f"queues: expected names or queues in a list, got {queues!r}")
    return list(queues)


def consumer_commands(queues: Sequence[QueueRequests], ours: list[bool]) -> list[QueueCommands]:
    """The commands of the queues of a consumer; `ours` says which are of the same client."""
    if not queues:
        raise InvalidQueue("queues: expected at least one queue for a consumer, got none")
    names = [queue.name for queue in queues]
    for queue, is_ours in zip(queues, ours, strict=True):
        if not is_ours:
            raise InvalidQueue(
                f"queues: expected queues of the client that makes the consumer, got {queue!r} of "
                f"another one. Write client.queue({queue.name!r})"
            )
        if names.count(queue.name) > 1:
            raise InvalidQueue(f"queues: expected each queue once, got {queue.name!r} again")
    return [QueueCommands(queue.keys, queue.codec) for queue in queues]


def check_concurrency(value: int) -> int:
    return check_whole(value, "concurrency", 1, MAX_CONCURRENCY)


def check_consumer_lease(value: Seconds) -> float:
    expected = f"{MIN_CONSUMER_LEASE_SECONDS:.0f} to {MAX_LEASE_SECONDS:.0f} seconds"
    length = seconds(value, "lease", expected)
    if not MIN_CONSUMER_LEASE_SECONDS <= length <= MAX_LEASE_SECONDS:
        raise InvalidOption(
            f"lease: expected {expected}, got {value!r}. The consumer extends its leases every "
            "second: `lease` is how long the jobs of a consumer that died wait for another client"
        )
    return length


def check_wait_timeout(value: Seconds | None) -> float | None:
    """How long to wait for a job: 0 polls once, None waits without a limit."""
    return None if value is None else seconds(value, "timeout")
