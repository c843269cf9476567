"""The operations of a queue: everything that takes several commands."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from queasy.dispatch import new_id
from queasy.errors import (
    SERVER_AWAY,
    InvalidInput,
    PredicateFailed,
    UndecodablePayload,
)
from queasy.job import Job, JobError
from queasy.operation import EnsureSubscribed, Operation, Subscribe, Undoable, WaitForSignal
from queasy.outcomes import Broken, Died
from queasy.store.coalescing import CHUNK_JOBS
from queasy.store.command import Command
from queasy.store.commands import AUDIT_TALLIES, ListState, QueueCommands, RecordKind
from queasy.store.records import Cancellation, Ending, LeaseKey, Taken

__all__ = [
    "MAX_BROKEN_IN_A_ROW",
    "REFUSED_RETRY_SECONDS",
    "SAFETY_POLL_SECONDS",
    "audit",
    "cancel_where",
    "decoding_problem",
    "drop",
    "evict",
    "forward_wake_up",
    "leases_of",
    "requeue",
    "settle_all",
    "take_one",
    "trim",
    "until_done",
    "wrong_codec",
]

T = TypeVar("T")

log = logging.getLogger("queasy")

# A waiter dequeues at least this often, in case a wake-up was lost. The interval must be shorter
# than the silence that the server takes for an outage (OUTAGE_MS in lua/keys.lua).
SAFETY_POLL_SECONDS = 8.0
AUDIT_PAGE_SIZE = 1000
# The jobs of a page are cancelled in one call. A small page bounds that call, and keeps the time
# short between reading a job and cancelling it.
CANCEL_PAGE_SIZE = 100
MAX_BROKEN_IN_A_ROW = 10
# If the server cannot be reached, or refuses, a waiter tries again after this pause. The pause can
# be short: most calls have already been retried for the client's timeout.
REFUSED_RETRY_SECONDS = 1.0


def take_one(
    commands: QueueCommands,
    seconds: float,
    timeout: float | None,
    waiter: str,
    was_reached: Callable[[], bool],
) -> Operation[Job | None]:
    """Leases one job; None when none came within `timeout` seconds (None: no limit).

    If the server was reached before (`was_reached`), the operation waits while the server is
    unreachable. If it was never reached, the URL is most likely wrong, and the operation raises the
    error at once.

    The operation sets a job that cannot be decoded aside as broken, and takes the next one. After
    `MAX_BROKEN_IN_A_ROW` such jobs the consumer's codec is most likely wrong, and the operation
    raises `UndecodablePayload`.
    """
    give_up_at = None if timeout is None else time.monotonic() + timeout
    broken: list[Ending] = []
    broken_in_a_row = 0
    signal = None
    logged: type[Exception] | None = None
    while True:
        left = SAFETY_POLL_SECONDS if give_up_at is None else give_up_at - time.monotonic()
        last = left <= 0
        waits = 0 if signal is None or last else min(left, SAFETY_POLL_SECONDS)
        if waits:
            yield EnsureSubscribed(signal)
        try:
            taken: Taken = yield _dequeue_one(
                commands, seconds, waiter if signal else "", waits, broken
            )
        except SERVER_AWAY as away:
            if last or not was_reached():
                raise
            if type(away) is not logged:
                log.warning("waiting for a job of queue %r: %s", commands.keys.name, away)
            logged = type(away)
            if signal is None:
                signal = yield _subscribe(commands, waiter)
            yield WaitForSignal(signal, min(left, REFUSED_RETRY_SECONDS))
            continue
        logged = None
        broken = []
        if taken.count:
            (job,) = taken.jobs
            problem = decoding_problem(job)
            if problem is None:
                return job
            broken = [Ending(job.id, job.token, Broken(problem))]
            broken_in_a_row += 1
            if broken_in_a_row == MAX_BROKEN_IN_A_ROW:
                yield commands.settle(broken)
                raise wrong_codec(commands, broken_in_a_row, problem)
        elif last and taken.next_in != 0:  # 0: more jobs are due after those that were set aside
            return None
        elif signal is None:
            # The queue was empty. Subscribe, then dequeue once more: no wake-up was sent for a job
            # that came before the subscription.
            signal = yield _subscribe(commands, waiter)
        else:
            pause = waits if taken.next_in is None else min(waits, taken.next_in)
            yield WaitForSignal(signal, pause)


def _subscribe(commands: QueueCommands, waiter: str) -> Subscribe:
    return Subscribe(
        commands.keys.channel(waiter), forward_wake_up(commands), forward_wake_up(commands, waiter)
    )


def _dequeue_one(
    commands: QueueCommands, seconds: float, waiter: str, waits: float, broken: list[Ending]
) -> Undoable:
    """One attempt to lease a job, under a client id of its own."""
    client = f"~{new_id()}"
    take = commands.dequeue(
        client, lease=seconds, limit=1, waiter=waiter, waits=waits, endings=broken
    )
    return Undoable(take, commands.evict(client), seconds)


def wrong_codec(commands: QueueCommands, jobs: int, problem: JobError) -> UndecodablePayload:
    return UndecodablePayload(
        f"queue {commands.keys.name!r}: {jobs} jobs in a row cannot be decoded and were set aside "
        f"as broken. The last error: {problem.message}. Is this the codec they were dispatched "
        "with?"
    )


def forward_wake_up(commands: QueueCommands, waiter: str = "") -> Command[Taken]:
    """Forwards a wake-up that is not needed here to another waiter of the queue.

    With `waiter`, the client of that name stops being a waiter, and another waiter polls when jobs
    are due.
    """
    return commands.dequeue(f"~{new_id()}", lease=1, limit=0, waiter=waiter)


def decoding_problem(job: Job) -> JobError | None:
    """Why the job cannot be decoded; None when it can."""
    if not job.readable:
        log.warning("job %r of queue %r set aside as broken: %s", job.id, job.queue, job.error)
        return job.error
    try:
        job.data  # noqa: B018 - decoding is the check
    except UndecodablePayload as problem:
        # The message is not logged: it may quote the payload.
        log.warning("job %r of queue %r set aside as broken", job.id, job.queue)
        return JobError.of(problem.__cause__ or problem, "broken")
    return None


def until_done(command: Callable[[], Command[int]]) -> Operation[int]:
    """Repeats a bounded command until nothing is left to do; returns the sum of its answers."""
    total = 0
    while True:
        done: int = yield command()
        if done == 0:
            return total
        total += done


def requeue(commands: QueueCommands, kind: RecordKind, ids: list[str]) -> Operation[int]:
    """Puts any number of failed or broken jobs back; returns how many wait again."""
    total = 0
    for chunk in _chunks(ids):
        left = chunk
        while left:
            words: list[str] = yield commands.requeue(kind, left)
            total += words.count("requeued")
            left = [id_ for id_, word in zip(left, words, strict=True) if word == "later"]
    return total


def drop(commands: QueueCommands, kind: RecordKind, ids: list[str]) -> Operation[int]:
    """Drops the failed or broken records of any number of ids; returns how many there were."""
    total = 0
    for chunk in _chunks(ids):
        total += yield commands.drop(kind, chunk)
    return total


def _chunks(items: list[T]) -> Iterator[list[T]]:
    return (items[first : first + CHUNK_JOBS] for first in range(0, len(items), CHUNK_JOBS))


def cancel_where(
    commands: QueueCommands,
    predicate: Callable[[Job], bool],
    states: Sequence[ListState],
    *,
    running: bool,
    limit: float,
) -> Operation[int]:
    """Cancels jobs for which the predicate is true, at most `limit`; returns how many.

    A page of jobs is read, the predicate is called for each, and those it chose are cancelled in
    one call. A predicate that raises stops the operation, and no job of its page is cancelled.
    """
    total = 0
    for state in states:
        cursor: bytes | None = None
        while cursor != b"" and total < limit:
            page: list[Job]
            page, cursor = yield commands.jobs(state, cursor or b"", CANCEL_PAGE_SIZE)
            chosen: list[str] = []
            for job in page:
                if total + len(chosen) == limit:
                    break
                # A run that was asked to end before is not counted again.
                if not job.cancelled and _is_chosen(commands, predicate, job, total):
                    chosen.append(job.id)
            if chosen:
                # A held dispatch that was chosen says nothing about the run that it waits for.
                asks_run = running and state != "blocked"
                results: list[Cancellation] = yield commands.cancel(chosen, running=asks_run)
                total += sum(map(bool, results))
    return total


def _is_chosen(
    commands: QueueCommands, predicate: Callable[[Job], bool], job: Job, cancelled: int
) -> bool:
    where = f"queue {commands.keys.name!r}: cancel_where stopped at job {job.id!r}"
    before = f"{cancelled} jobs were cancelled before, and none after"
    try:
        answer = predicate(job)
    except Exception as problem:
        why = f"the predicate raised {type(problem).__name__}"
        raise PredicateFailed(f"{where}: {why}. {before}", cancelled) from problem
    if not isinstance(answer, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        kind = type(answer).__name__
        why = f"expected the predicate to return True or False, got {kind}"
        raise PredicateFailed(f"{where}: {why}. {before}", cancelled)
    return answer


def trim(commands: QueueCommands, kind: RecordKind, keep: int) -> Operation[int]:
    """Drops all but the newest records; returns how many it dropped."""
    return until_done(lambda: commands.trim(kind, keep))


def evict(commands: QueueCommands, client: str, *, died: bool) -> Operation[int]:
    """Ends a client that holds any number of jobs; returns how many it held.

    If the client `died`, its jobs become suspects. Otherwise they are released.
    """
    total = 0
    if died:
        leases = yield from leases_of(commands, client)
        endings = [Ending(id_, token, Died(len(leases))) for id_, token in leases]
        total = yield from settle_all(commands, endings)
    while True:
        state, ended = yield commands.evict(client)
        total += ended
        if state != "more":
            return total


def leases_of(commands: QueueCommands, client: str) -> Operation[list[LeaseKey]]:
    """The id and token of each lease of a client."""
    found: list[LeaseKey] = []
    cursor = None
    while cursor != b"":
        page, cursor = yield commands.leases(client, cursor or b"", CHUNK_JOBS)
        found += page
    return found


def settle_all(commands: QueueCommands, endings: list[Ending]) -> Operation[int]:
    """Ends any number of leases; returns how many had not ended before."""
    total = 0
    for chunk in _chunks(endings):
        total += yield from _settle(commands, chunk)
    return total


def _settle(commands: QueueCommands, endings: list[Ending]) -> Operation[int]:
    """Ends leases, in several calls if the server refuses to give up so many bytes in one."""
    try:
        words: list[str] = yield commands.settle(endings)
    except InvalidInput:
        half = len(endings) // 2
        if not half:
            raise
        first = yield from _settle(commands, endings[:half])
        return first + (yield from _settle(commands, endings[half:]))
    return len(words) - words.count("lost")


def audit(commands: QueueCommands) -> Operation[list[str]]:
    """Every broken invariant, as a sentence.

    A queue in use may change between two pages. Then the audit may report a problem that does not
    exist.
    """
    problems: list[str] = []
    sums = [0] * len(AUDIT_TALLIES)
    offset = 0
    while True:
        page = yield commands.audit(offset, AUDIT_PAGE_SIZE)
        problems += page.problems
        sums = [a + b for a, b in zip(sums, page.tallies, strict=False)]
        offset += AUDIT_PAGE_SIZE
        if not page.sizes or offset >= max(page.sizes):
            break
    problems += [
        f"{name}: {size} in the hash or set, {counted} accounted for"
        for name, counted, size in zip(AUDIT_TALLIES, sums, page.sizes, strict=False)
        if counted != size
    ]
    return problems
