"""Many jobs in as many calls as they need, one at a time, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, cast

from queasy.errors import InvalidInput
from queasy.options import Durability
from queasy.store.commands import Commands
from queasy.store.records import Dispatched, DispatchItem
from queasy.store.store import AsyncStore, SyncStore
from queasy.store.together import CHUNK_BYTES, CHUNK_JOBS

__all__ = ["chunks", "put_all", "put_all_sync"]


async def put_all(
    store: AsyncStore,
    commands: Commands,
    chunks: Iterable[list[DispatchItem]],
    durability: Durability,
) -> list[Dispatched]:
    """Prepares the next call while the server does the one before."""
    results: list[Dispatched] = []
    under_way: asyncio.Task[list[Dispatched]] | None = None
    try:
        for chunk in chunks:
            command = commands.dispatch(chunk)
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
    commands: Commands,
    chunks: Iterable[list[DispatchItem]],
    durability: Durability,
) -> list[Dispatched]:
    results: list[Dispatched] = []
    for chunk in chunks:
        results += store.run(commands.dispatch(chunk), durability)
    return results


def chunks(
    things: Iterable[Any], item_of: Callable[[object], DispatchItem]
) -> Iterable[list[DispatchItem]]:
    """Dispatches as calls take them.

    What has a length is checked whole before any of it is sent; of anything else only a chunk
    or two are held at a time.
    """
    if isinstance(things, (str, bytes, bytearray, Mapping)) or not isinstance(things, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        kind = type(cast("object", things)).__name__
        raise InvalidInput(f"dispatch_many: expected a list or iterable of jobs, got one {kind}")
    items = map(item_of, things)
    return _released(list(_cut(items))) if isinstance(things, Sized) else _cut(items)


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


def _released(chunks: list[list[DispatchItem]]) -> Iterator[list[DispatchItem]]:
    """One after another, none of which is kept."""
    chunks.reverse()
    while chunks:
        yield chunks.pop()
