"""What takes more than one command: flows, written once for async and sync code.

A flow yields what it needs (a command run, a channel to listen on, a wait) and is sent the
answers. `follow` carries one out in an event loop, `follow_sync` in the calling thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any, TypeVar

import msgspec

from queasy.dispatch import new_id
from queasy.errors import (
    NotReady,
    QueasyError,
    Unanswered,
    UndecodablePayload,
    Unreachable,
)
from queasy.job import Job, JobError
from queasy.outcomes import Broken
from queasy.store.coalescing import CHUNK_JOBS
from queasy.store.command import Command
from queasy.store.commands import AUDIT_TALLIES, QueueCommands, RecordKind
from queasy.store.records import Ending, Taken
from queasy.store.store import AsyncStore, SyncStore

__all__ = ["Flow", "audit", "follow", "follow_sync", "take_one", "until_done"]

T = TypeVar("T")
log = logging.getLogger("queasy")

# Whoever waits looks again at least this often, in case a message was lost; and more often
# than the server takes silence for an outage (OUTAGE_MS in lua/keys.lua).
SAFETY_POLL_SECONDS = 8.0
AUDIT_PAGE_SIZE = 1000
MAX_BROKEN_IN_A_ROW = 10
# For what was given up without an answer, and may yet be carried out.
UNDO_ATTEMPTS, UNDO_PAUSE_SECONDS = 3, 1.0
# Who waits on a server that refuses asks again; most calls have been patient already.
REFUSED_RETRY_SECONDS = 1.0


class Listen(msgspec.Struct, frozen=True):
    """Hear a channel until the flow ends; answered with a signal."""

    channel: str
    unwanted: Command[Any]
    """What to do about a message that comes too late."""
    abandoned: Command[Any]
    """What to do when the last who waited was interrupted."""


class Ready(msgspec.Struct, frozen=True):
    """Make sure that the signal's channel is heard: a connection may have been lost."""

    signal: Any


class Sleep(msgspec.Struct, frozen=True):
    """Until the signal is heard, at most some seconds."""

    signal: Any
    seconds: float


class Undoable(msgspec.Struct, frozen=True):
    """Run a command; when nobody learns what came of it, undo it behind his back."""

    command: Command[Any]
    undo: Command[tuple[str, int]]
    seconds: float
    """After which it has undone itself."""


Need = Command[Any] | Listen | Ready | Sleep | Undoable
Flow = Generator[Need, Any, T]


async def follow(store: AsyncStore, flow: Flow[T]) -> T:
    """Carries a flow out in the running event loop."""
    async with AsyncExitStack() as stack:
        answer: Any = None
        problem: Unreachable | NotReady | None = None
        while True:
            try:
                need = flow.send(answer) if problem is None else flow.throw(problem)
            except StopIteration as done:
                return done.value
            problem = None
            match need:
                case Command():
                    answer = await store.run(need)
                case Undoable(command=command):
                    running = asyncio.ensure_future(store.run(command))
                    try:
                        answer = await asyncio.shield(running)
                    except asyncio.CancelledError:
                        store.in_background(_undo(store, need, running))
                        raise
                    except Unreachable as away:  # the flow may be ready to wait
                        store.in_background(_undo(store, need, running))
                        problem = away
                    except NotReady as away:  # refused: there is nothing to undo
                        problem = away
                case Listen(channel=channel, unwanted=unwanted, abandoned=abandoned):
                    listening = store.listener.listen(
                        channel,
                        partial(store.run_later, unwanted),
                        partial(store.run_later, abandoned),
                    )
                    answer = await stack.enter_async_context(listening)
                case Ready(signal=signal):
                    answer = await signal.ready()
                case Sleep(signal=signal, seconds=seconds):
                    answer = await signal.wait(seconds)


async def _undo(store: AsyncStore, done: Undoable, running: asyncio.Future[Any]) -> None:
    """Only when it was answered, or given up: the undo, over another connection, could overtake
    it. What was given up may arrive yet, when a network that stalls lets go of it: so insist.
    """
    await asyncio.wait([running])
    failure = running.exception()
    unanswered = isinstance(failure, Unanswered)
    if isinstance(failure, Unreachable) and not unanswered:
        return  # it was never sent
    over_at = time.monotonic() + done.seconds
    looks = UNDO_ATTEMPTS if unanswered else 1
    while looks:
        try:
            state, _ = await store.run(done.undo)
            looks = 0 if state == "gone" else looks - 1
        except QueasyError as problem:
            if not unanswered or time.monotonic() > over_at:
                log.warning("a lease that nobody waits for runs out by itself: %s", problem)
                return
        if looks and not await store.rest(UNDO_PAUSE_SECONDS):
            return


def follow_sync(store: SyncStore, flow: Flow[T]) -> T:
    """Carries a flow out in the calling thread."""
    with ExitStack() as stack:
        answer: Any = None
        problem: Unreachable | NotReady | None = None
        while True:
            try:
                need = flow.send(answer) if problem is None else flow.throw(problem)
            except StopIteration as done:
                return done.value
            problem = None
            match need:
                case Command():
                    answer = store.run(need)
                case Undoable(command=command):
                    try:
                        answer = store.run(command)
                        _undo_owed(store)  # the server is there
                    except KeyboardInterrupt:
                        store.owed.append(Owed(need))
                        _undo_owed(store)
                        raise
                    except Unanswered as away:
                        problem = away
                        store.owed.append(Owed(need))
                        _undo_owed(store)
                    except (Unreachable, NotReady) as away:  # the flow may be ready to wait
                        problem = away
                case Listen(channel=channel):
                    answer = stack.enter_context(store.listener.listen(channel))
                case Ready(signal=signal):
                    answer = signal.ready()
                case Sleep(signal=signal, seconds=seconds):
                    answer = signal.wait(seconds)


class Owed:
    """What a thread did and nobody learnt of, to be undone."""

    def __init__(self, done: Undoable) -> None:
        self.undo = done.undo
        self.over_at = time.monotonic() + done.seconds
        self.looks = UNDO_ATTEMPTS
        self.next_look = 0.0


def _undo_owed(store: SyncStore) -> None:
    """A thread has no background: what cannot be undone now is undone by the next that leases."""
    for _ in range(len(store.owed)):
        try:
            owed = store.owed.popleft()
        except IndexError:  # other threads are at it, too
            return
        now, away = time.monotonic(), False
        if now >= owed.next_look:
            try:
                state, _ = store.run(owed.undo)
                owed.looks = 0 if state == "gone" else owed.looks - 1
            except QueasyError as problem:
                log.debug("%s failed, and is tried again: %s", owed.undo.function, problem)
                away = True
            owed.next_look = now + UNDO_PAUSE_SECONDS
        if owed.looks and now < owed.over_at:
            store.owed.append(owed)
        if away:
            return


def take_one(
    commands: QueueCommands,
    seconds: float,
    timeout: float | None,
    waiter: str,
    reached: Callable[[], bool],
) -> Flow[Job | None]:
    """Leases one job; None when none came in `timeout` seconds (None: wait for ever).

    A server that was `reached` before and is away is waited for, too; one that never was is a
    mistake, and said at once.

    A job whose payload cannot be decoded is set aside as broken, and the next is taken; but a
    consumer that cannot decode one after another is the one that is wrong, and is told so.
    """
    give_up_at = None if timeout is None else time.monotonic() + timeout
    broken: list[Ending] = []
    set_aside = 0
    signal = None
    said: type[Exception] | None = None
    while True:
        left = SAFETY_POLL_SECONDS if give_up_at is None else give_up_at - time.monotonic()
        last = left <= 0
        waits = 0 if signal is None or last else min(left, SAFETY_POLL_SECONDS)
        if waits:
            yield Ready(signal)
        try:
            taken: Taken = yield _look(commands, seconds, waiter if signal else "", waits, broken)
        except (Unreachable, NotReady) as away:
            if last or not reached():
                raise
            if type(away) is not said:
                log.warning("waiting for a job of queue %r: %s", commands.keys.name, away)
            said = type(away)
            if signal is None:
                signal = yield _listen(commands, waiter)
            yield Sleep(signal, min(left, REFUSED_RETRY_SECONDS))
            continue
        said = None
        broken = []
        if taken.count:
            (job,) = taken.jobs
            problem = _undecodable(job)
            if problem is None:
                return job
            broken = [Ending(job.id, job.token, Broken(problem))]
            set_aside += 1
            if set_aside == MAX_BROKEN_IN_A_ROW:
                yield commands.settle(broken)
                raise _wrong_codec(commands, set_aside, problem)
        elif last and taken.next_in != 0:  # 0: what was due was set aside, and there is more
            return None
        elif signal is None:
            # Only now is it worth a subscription. Look once more behind it: a job that
            # came in between told nobody.
            signal = yield _listen(commands, waiter)
        else:
            yield Sleep(signal, waits if taken.next_in is None else min(waits, taken.next_in))


def _listen(commands: QueueCommands, waiter: str) -> Listen:
    return Listen(commands.keys.channel(waiter), pass_on(commands), pass_on(commands, waiter))


def _look(
    commands: QueueCommands, seconds: float, waiter: str, waits: float, broken: list[Ending]
) -> Undoable:
    """One try to take a job, for a client of its own."""
    client = f"~{new_id()}"
    take = commands.dequeue(
        client, lease=seconds, limit=1, waiter=waiter, waits=waits, endings=broken
    )
    return Undoable(take, commands.evict(client, "release"), seconds)


def _wrong_codec(commands: QueueCommands, jobs: int, problem: JobError) -> UndecodablePayload:
    return UndecodablePayload(
        f"queue {commands.keys.name!r}: {jobs} jobs in a row cannot be decoded and were set aside, "
        f"the last for: {problem.message}. Is this the codec they were dispatched with?"
    )


def pass_on(commands: QueueCommands, waiter: str = "") -> Command[Taken]:
    """A wake-up that nobody wants any more goes to another client; a `waiter` that leaves is
    not woken any more, and another keeps the time in its place.
    """
    return commands.dequeue(f"~{new_id()}", lease=1, limit=0, waiter=waiter)


def _undecodable(job: Job) -> JobError | None:
    if not job.readable:
        log.warning("set aside as broken: job %r of queue %r: %s", job.id, job.queue, job.error)
        return job.error
    try:
        job.data  # noqa: B018 - decoding is the check
    except UndecodablePayload as problem:
        # Not the message: it may quote the payload.
        log.warning("set aside as broken: job %r of queue %r", job.id, job.queue)
        return JobError.of(problem.__cause__ or problem, "broken")
    return None


def until_done(command: Callable[[], Command[int]]) -> Flow[int]:
    """Repeats a bounded command until it has nothing more to do; the sum of its answers."""
    total = 0
    while True:
        done: int = yield command()
        if done == 0:
            return total
        total += done


def requeue(commands: QueueCommands, kind: RecordKind, ids: list[str]) -> Flow[int]:
    """How many of the ids, however many they are, wait again."""
    total = 0
    for some in _thousands(ids):
        left = some
        while left:
            words: list[str] = yield commands.requeue(kind, left)
            total += words.count("requeued")
            left = [id_ for id_, word in zip(left, words, strict=True) if word == "later"]
    return total


def drop(commands: QueueCommands, kind: RecordKind, ids: list[str]) -> Flow[int]:
    """How many of the ids, however many they are, had a record."""
    total = 0
    for some in _thousands(ids):
        total += yield commands.drop(kind, some)
    return total


def _thousands(ids: list[str]) -> Iterator[list[str]]:
    return (ids[first : first + CHUNK_JOBS] for first in range(0, len(ids), CHUNK_JOBS))


def trim(commands: QueueCommands, kind: RecordKind, keep: int) -> Flow[int]:
    return until_done(lambda: commands.trim(kind, keep))


def evict(
    commands: QueueCommands, client: str, *, died: bool, started: Sequence[str] | None = None
) -> Flow[int]:
    """Ends a client, however many jobs it holds; how many those were.

    Of one that died only the jobs it had `started` (None: all) count a stall and are suspects.
    """
    command = commands.evict(client, "release")
    if died and (started is None or started):
        command = commands.evict(client, "stall", started or ())
    total = 0
    while True:
        state, ended = yield command
        total += ended
        if state != "more":
            return total


def audit(commands: QueueCommands) -> Flow[list[str]]:
    """Every broken invariant, in words; a queue in use may be caught between two pages."""
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
