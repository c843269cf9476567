"""Many jobs in as many calls as they need, one at a time, in order."""

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

__all__ = ["chunks", "put_all", "put_all_sync"]

T = TypeVar("T")
# One call's worth: only payloads, of jobs that are nothing else, or items.
Chunk = tuple[bytes, ...] | list[DispatchItem]


async def put_all(
    store: AsyncStore,
    commands: QueueCommands,
    chunks: Iterable[Chunk],
    durability: Durability,
) -> list[Dispatched]:
    """Prepares the next call while the server does the one before."""
    with store.callers.one() as caller:
        return await _run_all(store, _prepared(commands, chunks, caller), durability)


def _prepared(
    commands: QueueCommands, chunks: Iterable[Chunk], caller: Caller
) -> Iterator[Command[list[Dispatched]]]:
    """Down to the bytes: the server waits from one answer to the next call, and for no longer."""
    for chunk in chunks:
        yield packed(_command(commands, chunk).with_number(*caller.next_call()))


async def _run_all(
    store: AsyncStore, calls: Iterable[Command[list[Dispatched]]], durability: Durability
) -> list[Dispatched]:
    results: list[Dispatched] = []
    under_way: asyncio.Task[list[Dispatched]] | None = None
    try:
        for command in calls:
            if under_way is not None:
                results += await under_way
            under_way = asyncio.create_task(store.run(command, durability))
            await asyncio.sleep(0)  # it leaves now, not when the next is prepared
    except asyncio.CancelledError:
        if under_way is not None:
            under_way.cancel()
            await asyncio.wait([under_way])
        raise
    except BaseException:
        # Of a job that is refused, or of the caller's generator: what came before it is put, and
        # if that fails it is what the caller hears first.
        if under_way is not None:
            await under_way
        raise
    if under_way is not None:
        results += await under_way
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


def chunks(things: Iterable[Any], codec: Codec, max_payload: int) -> Iterable[Chunk]:
    """Dispatches as calls take them.

    What has a length is checked whole before any of it is sent; of anything else only a chunk
    or two are held at a time.
    """
    if isinstance(things, (str, bytes, bytearray, Mapping)) or not isinstance(things, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        kind = type(cast("object", things)).__name__
        raise InvalidInput(f"dispatch_many: expected a list or iterable of jobs, got one {kind}")
    if isinstance(things, Sized):
        return _released(list(_checked(things, codec, max_payload)))
    return _cut(_items(things, 0, lambda one: item_of(one, codec, max_payload)))


def _checked(things: Iterable[Any], codec: Codec, max_payload: int) -> Iterator[Chunk]:
    """A chunk of data is encoded at once; most are data and nothing else."""
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
        if chunk:  # what came before is put
            yield chunk
        raise
    if chunk:
        yield chunk


def _released(chunks: list[Chunk]) -> Iterator[Chunk]:
    """One after another, none of which is kept."""
    chunks.reverse()
    while chunks:
        yield chunks.pop()
