"""An operation: work that takes more than one command, written once for async and sync code.

An operation is a generator. It yields steps (run a command, subscribe to a channel, wait) and
receives the result of each. `run_operation` performs the steps in an event loop,
`run_operation_sync` in the calling thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any, TypeVar

import msgspec

from queasy.errors import (
    SERVER_AWAY,
    ClientClosed,
    InvalidInput,
    NotReady,
    ReadOnly,
    Unanswered,
    Unreachable,
)
from queasy.store.command import Command, WaitForItem
from queasy.store.store import AsyncStore, SyncStore
from queasy.store.undo import Claim

__all__ = [
    "EnsureSubscribed",
    "Operation",
    "Publish",
    "Sleep",
    "Step",
    "Subscribe",
    "Undoable",
    "WaitForSignal",
    "run_operation",
    "run_operation_sync",
]

T = TypeVar("T")


class Subscribe(msgspec.Struct, frozen=True):
    """Subscribe to a channel until the operation ends; the result is a signal."""

    channel: str
    unwanted: Command[Any]
    """Run for a message that arrives when no operation waits for it any more."""
    abandoned: Command[Any]
    """Run when the last operation that waited on the channel was interrupted."""


class EnsureSubscribed(msgspec.Struct, frozen=True):
    """Subscribe again if the connection of the signal's channel was lost."""

    signal: Any


class WaitForSignal(msgspec.Struct, frozen=True):
    """Wait for the next message on the signal's channel, at most some seconds."""

    signal: Any
    seconds: float


class Publish(msgspec.Struct, frozen=True):
    """Publish a message; the result is how many subscribers received it."""

    channel: str
    message: str


class Sleep(msgspec.Struct, frozen=True):
    """Wait some seconds."""

    seconds: float


class Undoable(msgspec.Struct, frozen=True):
    """Run a command; if its answer cannot reach the operation, run `undo` afterwards."""

    command: Command[Any]
    """Its answer has a `count`: how many leases it took."""
    undo: Command[tuple[str, int]]
    expires_in: float
    """Seconds after which the command's effect ends by itself."""


CLOSED = "the client was closed while this call waited; it took no job"

Step = Command[Any] | Subscribe | EnsureSubscribed | WaitForSignal | Undoable | Publish | Sleep
Operation = Generator[Step, Any, T]


async def run_operation(store: AsyncStore, operation: Operation[T]) -> T:
    """The result of an operation, performed in the running event loop."""
    async with AsyncExitStack() as stack:
        answer: Any = None
        problem: InvalidInput | Unreachable | NotReady | ReadOnly | None = None
        while True:
            try:
                step = operation.send(answer) if problem is None else operation.throw(problem)
            except StopIteration as done:
                return done.value
            problem = None
            match step:
                case WaitForItem(args=(seconds,)):
                    try:
                        answer = await store.wait(step, float(seconds))
                    except SERVER_AWAY as away:  # the operation may decide to wait
                        problem = away
                case Command():
                    try:
                        answer = await store.run(step)
                    except InvalidInput as refused:  # the operation may decide to ask for less
                        problem = refused
                case Undoable(command=command, undo=undo, expires_in=expires_in):
                    running = asyncio.ensure_future(store.run(command))
                    try:
                        answer = await asyncio.shield(running)
                    except asyncio.CancelledError:
                        store.undo_later(running, undo, expires_in)
                        raise
                    except Unreachable as away:  # the operation may decide to wait
                        store.undo_later(running, undo, expires_in)
                        problem = away
                    except (NotReady, ReadOnly) as away:  # refused: there is nothing to undo
                        problem = away
                case Subscribe(channel=channel, unwanted=unwanted, abandoned=abandoned):
                    listening = store.listener.listen(
                        channel,
                        partial(store.run_later, unwanted),
                        partial(store.run_later, abandoned),
                    )
                    answer = await stack.enter_async_context(listening)
                case EnsureSubscribed(signal=signal):
                    answer = await signal.ensure_subscribed()
                case WaitForSignal(signal=signal, seconds=seconds):
                    answer = await signal.wait(seconds)
                case Publish(channel=channel, message=message):
                    await store.connect()
                    answer = await store.listener.publish(channel, message)
                case Sleep(seconds=seconds):
                    await asyncio.sleep(seconds)


def run_operation_sync(store: SyncStore, operation: Operation[T], claim: Claim | None = None) -> T:
    """The result of an operation, performed in the calling thread.

    An operation with undoable steps needs a claim, which the caller keeps or abandons. It raises
    ClientClosed if another thread closes the store meanwhile.
    """
    closings = store.closings
    with ExitStack() as stack:
        answer: Any = None
        problem: InvalidInput | Unreachable | NotReady | ReadOnly | None = None
        while True:
            try:
                step = operation.send(answer) if problem is None else operation.throw(problem)
            except StopIteration as done:
                return done.value
            problem = None
            waits = not isinstance(step, Command) or step.alone
            if store.closings != closings and waits:
                raise ClientClosed(CLOSED)
            match step:
                case WaitForItem():
                    try:
                        answer = store.wait(step)
                    except SERVER_AWAY as away:  # the operation may decide to wait
                        problem = away
                case Command():
                    try:
                        answer = store.run(step)
                    except InvalidInput as refused:  # the operation may decide to ask for less
                        problem = refused
                case Undoable():
                    assert claim is not None
                    try:
                        answer = _run_undoable(store, step, claim)
                    except SERVER_AWAY as away:  # the operation may decide to wait
                        problem = away
                    if store.closings != closings:  # give back what it took
                        claim.abandon()
                        store.drop_connections()
                        raise ClientClosed(CLOSED)
                case Subscribe(channel=channel):
                    answer = stack.enter_context(store.listener.listen(channel))
                case EnsureSubscribed(signal=signal):
                    answer = signal.ensure_subscribed()
                case WaitForSignal(signal=signal, seconds=seconds):
                    answer = signal.wait(seconds)
                case Publish(channel=channel, message=message):
                    store.connect()
                    answer = store.listener.publish(channel, message)
                case Sleep(seconds=seconds):
                    time.sleep(seconds)


def _run_undoable(store: SyncStore, step: Undoable, claim: Claim) -> Any:
    claim.begin(step.undo, step.expires_in)
    try:
        answer = store.run(step.command)
    except Unanswered:
        claim.unanswered()
        raise
    except SERVER_AWAY:
        claim.refused()
        raise
    claim.answered(took=answer.count > 0)
    store.undos.attempt()  # older undos, now that the server answers
    return answer
