"""Orders to a running worker, over channels of the server: serve or unserve a queue, or end."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from queasy.errors import QueasyError
from queasy.store.store import AsyncStore
from queasy.worker.events import event

__all__ = ["Control", "Order"]

RESUBSCRIBE_AFTER = 5.0


class Order(msgspec.Struct):
    """What a client asks of a worker, with `queasy serve`, `queasy unserve` or `Client.evict`."""

    do: Literal["serve", "unserve", "evict"]
    queue: str = ""
    """Which queue to serve, or not to serve."""
    release: bool = False
    client: str = ""
    """Which worker is to end."""


class Control:
    """Subscribes to channels, and calls `carry_out` for each order."""

    def __init__(
        self,
        store: AsyncStore,
        carry_out: Callable[[Order], Awaitable[None]],
    ) -> None:
        self._store = store
        self._channels: set[str] = set()
        self._carry_out = carry_out
        self._task: asyncio.Task[None] | None = None
        self._unsubscribed = asyncio.Event()
        self._orders: asyncio.Queue[Order] = asyncio.Queue()

    def listen(self, channels: set[str]) -> None:
        """Receives orders from these channels, too, from now on."""
        for channel in channels - self._channels:
            self._store.listener.add_callback(channel, self._received)
            self._unsubscribed.set()
        self._channels |= channels
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._carry_out_all())
            while True:
                await self._unsubscribed.wait()
                self._unsubscribed.clear()
                if not await self._subscribe():
                    # Many workers may try at once.
                    await asyncio.sleep(random.uniform(RESUBSCRIBE_AFTER / 2, RESUBSCRIBE_AFTER))
                    self._unsubscribed.set()

    async def _subscribe(self) -> bool:
        """Subscribes to all channels; False if that failed."""
        try:
            await self._store.connect()
            answers = [await self._store.listener.subscribe(name) for name in list(self._channels)]
            return None not in answers
        except QueasyError:
            return False  # the heartbeat and the worker log that the server is unreachable

    def _received(self, message: bytes) -> None:
        if not message:  # the connection was lost
            self._unsubscribed.set()
            return
        try:
            self._orders.put_nowait(msgspec.json.decode(message, type=Order))
        except (msgspec.MsgspecError, ValueError, RecursionError) as problem:
            event("order_invalid", logging.WARNING, error=problem)

    async def _carry_out_all(self) -> None:
        """Carries out orders concurrently: one may have to wait for jobs to end."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._carry_out_one(await self._orders.get()))

    async def _carry_out_one(self, order: Order) -> None:
        try:
            await self._carry_out(order)
        except QueasyError as problem:
            event("order_refused", logging.WARNING, order=order.do, queue=order.queue[:200],
                  error=problem)  # fmt: skip

    async def close(self) -> None:
        """Receives no more orders; those under way are cancelled."""
        for channel in self._channels:
            self._store.listener.remove_callback(channel)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
