"""Queues of Queasy for Node, shared with its clients.

    from queasy.interop import node

    emails = node.Queue(client, "emails")
    await emails.dispatch({"to": "x@example.org"}, id="welcome-7")
    for job in await emails.dequeue(10):
        await emails.finish(job)

With a `SyncClient` the same methods need no `await`.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from queasy.attributes import attributes_of, redact_secrets
from queasy.codec import JsonCodec
from queasy.errors import InvalidOption, InvalidPayload, InvalidQueue, UndecodablePayload
from queasy.interop.node_protocol import (
    Batch,
    JobCounts,
    NodeDialect,
    Record,
    Update,
)
from queasy.interop.taking import take_some
from queasy.interop.verbs import C, ForeignQueue, verb
from queasy.operation import Operation
from queasy.options import (
    Seconds,
    UpdateRunAt,
    When,
    check_bool,
    check_id,
    check_known_id,
    check_whole,
    epoch,
    positive_seconds,
    seconds,
)

__all__ = ["Job", "JobCounts", "Queue"]

JSON = JsonCodec()
HEARTBEAT_TIMEOUT = 10.0
MIN_BACKOFF, MAX_BACKOFF = 2.0, 300.0
MAX_LIMIT = 1000
KEY = re.compile(r"\{[^{}]+\}(-fail)?")


@dataclass(frozen=True, slots=True)
class Job:
    """A job that was dequeued."""

    id: str
    payload: bytes
    """Its data as it is stored: JSON."""
    retry_count: int
    stall_count: int
    client_id: str
    """The client that holds it. All jobs of one dequeue have the same one."""

    @classmethod
    def of(cls, record: Record) -> Self:
        return cls(
            record.id, record.payload, record.retry_count, record.stall_count, record.client_id
        )

    @property
    def data(self) -> Any:
        """Its data."""
        try:
            return JSON.decode(self.payload)
        except ValueError as problem:
            raise UndecodablePayload(f"job {self.id!r}: expected JSON: {problem}") from problem

    @property
    def backoff(self) -> float:
        """Seconds before the next run, as Queasy for Node waits by default: 2, 4, 8 … 300."""
        return min(MAX_BACKOFF, MIN_BACKOFF * 2.0 ** min(self.retry_count, 20))


class Queue(ForeignQueue[C]):
    """One queue of Queasy for Node, by its name.

    Every method is one function of the library `queasy` on the server. If a client of Queasy for
    Node has loaded its own, that one is used; otherwise ours. Due times and expiries are compared
    with the clocks of the clients, so these must agree.
    """

    def __init__(self, client: C, name: str) -> None:
        super().__init__(client, _key_of(name))
        self._dialect = NodeDialect(self.prefix)
        self._client = client

    @property
    def fail_queue(self) -> Queue[C]:
        """The queue of the jobs that were given up: `data` is [id, data, error]."""
        if self._is_fail_queue:
            raise InvalidQueue(f"{self.prefix} is a fail queue: it has none of its own")
        return Queue(self._client, f"{self.prefix}-fail")

    @property
    def _is_fail_queue(self) -> bool:
        return self.prefix.endswith("}-fail")

    @verb
    def dispatch(
        self,
        data: Any,
        *,
        id: str | None = None,  # noqa: A002 - the word people know
        run_at: When | None = None,
        update_data: bool = True,
        update_run_at: UpdateRunAt = True,
        reset_counts: bool | None = None,
    ) -> Operation[str]:
        """Add a job, or update the one with this id; the result is the id.

        The job does not run before `run_at`. If a job of this id waits, `update_data` and
        `update_run_at` (True, False, "if_later", "if_earlier") say what of it changes, and
        `reset_counts` (default: as `update_data`) whether its counts begin anew. If one is active,
        this job is blocked until that one ends; if that one is retried, this one updates it.
        """
        checked = check_bool(update_data, "update_data")
        resets = checked if reset_counts is None else check_bool(reset_counts, "reset_counts")
        update = Update(checked, _update_run_at(update_run_at), resets)
        id_ = str(uuid.uuid4()) if id is None else check_id(id)
        at = 0.0 if run_at is None else epoch(run_at, "run_at")
        return (yield self._dialect.dispatch(id_, self._encoded(data), at, update))

    @verb
    def cancel(self, id: str) -> Operation[bool]:  # noqa: A002
        """Remove a waiting or blocked job; False if there is none. A run continues."""
        return (yield self._dialect.cancel(check_known_id(id)))

    @verb
    def dequeue(
        self,
        limit: int = 1,
        *,
        timeout: Seconds | None = 0,
        expires_in: Seconds = HEARTBEAT_TIMEOUT,
    ) -> Operation[list[Job]]:
        """Take up to `limit` due jobs. They return to the queue after `expires_in` seconds, unless
        `bump` is called before, and count as stalled then.

        If there is none, look for one every 100 ms, for `timeout` seconds (None: without a limit),
        also while the server cannot be reached, if it was reached before.

        Each call is a client of its own for the protocol. If the answer is lost, or the caller is
        interrupted, the jobs return at once.
        """
        check_whole(limit, "limit", 1, MAX_LIMIT)
        length = positive_seconds(expires_in, "expires_in")
        wait = None if timeout is None else seconds(timeout, "timeout")
        batch: Batch = yield from take_some(
            self._dialect, lambda: self._dialect.dequeue(limit, length), self._store, wait
        )
        return [Job.of(record) for record in batch.jobs]

    @verb
    def bump(self, job: Job, *, expires_in: Seconds = HEARTBEAT_TIMEOUT) -> Operation[bool]:
        """Keep a job for so many seconds from now, and all others of its dequeue. Call it every few
        seconds. False if they are lost: they are back in the queue, or run elsewhere.
        """
        length = positive_seconds(expires_in, "expires_in")
        return (yield self._dialect.bump(_checked(job).client_id, length))

    @verb
    def finish(self, job: Job) -> Operation[bool]:
        """End a job as done. False if it was lost before: then nothing is changed."""
        return (yield self._dialect.finish_job(_checked(job).id, job.client_id))

    @verb
    def retry(
        self, job: Job, *, delay: Seconds | None = None, run_at: When | None = None
    ) -> Operation[bool]:
        """Let a job run again after `delay` seconds or at `run_at`, by default after its `backoff`.
        False if it was lost before: then nothing is changed.
        """
        if delay is not None and run_at is not None:
            raise InvalidOption("expected either delay or run_at, got both")
        if run_at is not None:
            at = epoch(run_at, "run_at")
        else:
            pause = _checked(job).backoff if delay is None else seconds(delay, "delay")
            at = time.time() + pause
        return (yield self._dialect.retry_job(_checked(job).id, job.client_id, at))

    @verb
    def fail(self, job: Job, error: BaseException | Mapping[str, Any] | str) -> Operation[bool]:
        """Give a job up: its fail queue receives a job with the data [id, data, error]. False if it
        was lost before: then nothing is changed.
        """
        if self._is_fail_queue:
            raise InvalidOption(f"{self.prefix}: a job of a fail queue is not given up: retry it")
        described = _error_of(error)
        return (
            yield self._dialect.fail_job(_checked(job).id, job.client_id, job.payload, described)
        )

    @verb
    def counts(self) -> Operation[JobCounts]:
        """How many jobs wait (due or scheduled), are blocked, and are active."""
        return (yield self._dialect.job_counts())

    def _encoded(self, data: Any) -> bytes:
        try:
            payload = JSON.encode(data)
        except (TypeError, ValueError, RecursionError, OverflowError) as problem:
            raise InvalidPayload(f"data: cannot be encoded as JSON: {problem}") from problem
        if len(payload) > self._max_payload:
            raise InvalidPayload(
                f"data: expected at most {self._max_payload} bytes, got {len(payload)}; raise "
                "Client(max_payload=...) if the queue is to hold so much"
            )
        return payload


def _key_of(name: object) -> str:
    """The key of a queue. A name in braces is the key: that is how tests of Node write it."""
    if not isinstance(name, str):
        raise InvalidQueue(f"queue name: expected a str, got {type(name).__name__}")
    if KEY.fullmatch(name):
        return name
    if not name or "{" in name or "}" in name:
        raise InvalidQueue(f"queue name: expected text without braces, got {name!r}")
    return f"{{{name}}}"


def _update_run_at(value: UpdateRunAt) -> UpdateRunAt:
    if not isinstance(value, bool) and value not in ("if_later", "if_earlier"):
        raise InvalidOption(
            f"update_run_at: expected True, False, 'if_later' or 'if_earlier', got {value!r}"
        )
    return value


def _checked(job: object) -> Job:
    if not isinstance(job, Job):
        raise InvalidOption(f"job: expected a job of `dequeue`, got {type(job).__name__}")
    return job


def _error_of(error: BaseException | Mapping[str, Any] | str) -> dict[str, Any]:
    """An error as its fail handler receives it: a JSON object, without secrets."""
    match error:
        case BaseException():
            described = {"name": type(error).__name__, "message": str(error)}
            return attributes_of(error, redact_secrets) | described
        case Mapping():
            return dict(error)
        case str():
            return {"message": error}
    raise InvalidOption(f"error: expected an exception, a mapping or text, got {error!r}")
