"""Commands to a running worker, over a channel of the server: serve or unserve a queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from queasy.errors import QueasyError
from queasy.store.store import AsyncStore
from queasy.worker.events import event

__all__ = ["Control", "Order"]

RETRY = 5.0


class Order(msgspec.Struct):
    """One command."""

    do: Literal["serve", "unserve"]
    queue: str
    release: bool = False


class Control:
    """Hears the orders that somebody sends to this worker."""

    def __init__(
        self,
        store: AsyncStore,
        carry_out: Callable[[str, str, bool], Awaitable[None]],
    ) -> None:
        self._store = store
        self._channels: set[str] = set()
        self._carry_out = carry_out
        self._task: asyncio.Task[None] | None = None
        self._deaf = asyncio.Event()
        self._orders: asyncio.Queue[Order] = asyncio.Queue()

    def listen(self, channels: set[str]) -> None:
        """On these, too, from now on."""
        for channel in channels - self._channels:
            self._store.listener.add_callback(channel, self._told)
            self._deaf.set()
        self._channels |= channels
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._obey())
            while True:
                await self._deaf.wait()
                self._deaf.clear()
                if not await self._heard():
                    await asyncio.sleep(RETRY)
                    self._deaf.set()

    async def _heard(self) -> bool:
        try:
            await self._store.connect()
            heard = [await self._store.listener.subscribe(name) for name in self._channels]
            return None not in heard
        except QueasyError:
            return False  # whoever needs the server more says so

    def _told(self, message: str) -> None:
        if not message:  # the connection was lost
            self._deaf.set()
            return
        try:
            self._orders.put_nowait(msgspec.json.decode(message, type=Order))
        except (msgspec.MsgspecError, ValueError, RecursionError) as problem:
            event("order not understood", logging.WARNING, error=problem)

    async def _obey(self) -> None:
        """Each by itself: one may have to wait for jobs to end."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._obey_one(await self._orders.get()))

    async def _obey_one(self, order: Order) -> None:
        try:
            await self._carry_out(order.do, order.queue, order.release)
        except QueasyError as problem:
            event("order refused", logging.WARNING, order=order.do, queue=order.queue[:200],
                  error=problem)  # fmt: skip

    async def close(self) -> None:
        for channel in self._channels:
            self._store.listener.remove_callback(channel)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
