"""Dispatches many jobs: in as many calls as they need, one after another, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from itertools import islice
from typing import Any, TypeVar, cast

from queasy.codec import Codec, encode_many
from queasy.dispatch import Dispatch, item_of, new_id, new_ids
from queasy.errors import InvalidInput
from queasy.options import Durability
from queasy.store.coalescing import CHUNK_BYTES, CHUNK_JOBS
from queasy.store.command import Command
from queasy.store.commands import QueueCommands
from queasy.store.idempotency import Caller
from queasy.store.records import Dispatched, DispatchItem
from queasy.store.retrying import packed
from queasy.store.store import AsyncStore, SyncStore

__all__ = ["Chunk", "chunks", "put_all", "put_all_sync"]

T = TypeVar("T")
# The jobs of one call: payloads alone if the jobs have nothing else, or items.
Chunk = tuple[bytes, ...] | list[DispatchItem]


async def put_all(
    store: AsyncStore,
    commands: QueueCommands,
    chunks: Iterable[Chunk],
    durability: Durability,
) -> list[Dispatched]:
    """Dispatches all chunks; prepares each call while the server works on the last one."""
    with store.callers.one() as caller:
        return await _run_all(store, _prepared(commands, chunks, caller), durability)


def _prepared(
    commands: QueueCommands, chunks: Iterable[Chunk], caller: Caller
) -> Iterator[Command[list[Dispatched]]]:
    """The calls, packed into bytes, so that the server does not wait for that between two calls."""
    for chunk in chunks:
        yield packed(_command(commands, chunk).with_number(*caller.next_call()))


async def _run_all(
    store: AsyncStore, calls: Iterable[Command[list[Dispatched]]], durability: Durability
) -> list[Dispatched]:
    results: list[Dispatched] = []
    in_flight: asyncio.Task[list[Dispatched]] | None = None
    try:
        for command in calls:
            if in_flight is not None:
                results += await in_flight
            in_flight = asyncio.create_task(store.run(command, durability))
            await asyncio.sleep(0)  # it is sent now, not after the next one was prepared
    except asyncio.CancelledError:
        if in_flight is not None:
            in_flight.cancel()
            await asyncio.wait([in_flight])
        raise
    except BaseException:
        # A job was refused, or the caller's generator raised. The jobs before it are put. If that
        # fails, its error is raised instead: it came first.
        if in_flight is not None:
            await in_flight
        raise
    if in_flight is not None:
        results += await in_flight
    return results


def put_all_sync(
    store: SyncStore,
    commands: QueueCommands,
    chunks: Iterable[Chunk],
    durability: Durability,
) -> list[Dispatched]:
    results: list[Dispatched] = []
    for chunk in chunks:
        results += store.run(_command(commands, chunk), durability)
    return results


def _command(commands: QueueCommands, chunk: Chunk) -> Command[list[Dispatched]]:
    if isinstance(chunk, tuple):
        return commands.put(new_ids(len(chunk)), chunk)
    return commands.dispatch(chunk)


def chunks(
    things: Iterable[Any],
    codec: Codec,
    max_payload: int,
    complete: Callable[[Any], Any] | None = None,
) -> Iterable[Chunk]:
    """The jobs, checked and encoded, in chunks for one call each. Each is passed to `complete`, if
    given, before anything else.

    A list is checked completely before any of it is sent. Of a generator, only one or two chunks
    are in memory at a time.
    """
    if isinstance(things, (str, bytes, bytearray, Mapping)) or not isinstance(things, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        kind = type(cast("object", things)).__name__
        raise InvalidInput(f"dispatch_many: expected a list or iterable of jobs, got one {kind}")
    if complete is not None:
        completed = map(complete, things)
        things = list(completed) if isinstance(things, Sized) else completed
    if isinstance(things, Sized):
        return _popped(list(_checked(things, codec, max_payload)))
    return _cut(_items(things, 0, lambda one: item_of(one, codec, max_payload)))


def _checked(things: Iterable[Any], codec: Codec, max_payload: int) -> Iterator[Chunk]:
    """The jobs in chunks. Data is encoded a chunk at a time: most jobs have nothing but data."""
    rest, at = iter(things), 0
    while piece := list(islice(rest, CHUNK_JOBS)):
        data = piece
        if Dispatch in set(map(type, piece)):
            data = [one.data if type(one) is Dispatch else one for one in piece]
        payloads = encode_many(codec, data, max_payload)
        if payloads is None:
            yield from _cut(_items(piece, at, lambda one: item_of(one, codec, max_payload)))
        elif data is piece and sum(map(len, payloads)) <= CHUNK_BYTES:
            yield tuple(payloads)
        else:
            yield from _cut(_items(zip(piece, payloads, strict=True), at, _item_of_pair))
        at += len(piece)


def _item_of_pair(pair: tuple[object, bytes]) -> DispatchItem:
    job, payload = pair
    if isinstance(job, Dispatch):
        return job.item_with(payload)
    return DispatchItem(new_id(), payload)


def _items(
    things: Iterable[T], first: int, item: Callable[[T], DispatchItem]
) -> Iterator[DispatchItem]:
    for at, thing in enumerate(things, first):
        try:
            made = item(thing)
        except InvalidInput as problem:
            raise type(problem)(f"jobs[{at}]: {problem}") from problem.__cause__
        yield made


def _cut(items: Iterable[DispatchItem]) -> Iterator[list[DispatchItem]]:
    chunk: list[DispatchItem] = []
    size = 0
    try:
        for item in items:
            size += len(item.payload)
            if chunk and (len(chunk) >= CHUNK_JOBS or size > CHUNK_BYTES):
                yield chunk
                chunk, size = [], len(item.payload)
            chunk.append(item)
    except Exception:
        if chunk:  # the jobs before the bad one are put
            yield chunk
        raise
    if chunk:
        yield chunk


def _popped(chunks: list[Chunk]) -> Iterator[Chunk]:
    """The chunks in order; each is removed from the list, to free its memory."""
    chunks.reverse()
    while chunks:
        yield chunks.pop()
