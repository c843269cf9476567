"""Hearing of new work instead of asking for it: pub/sub channels of the server.

A message may be lost (a failover, a moved slot); whoever waits looks again by itself
before long, so nothing depends on one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Generator
from typing import Any

from redis.exceptions import RedisError

from queasy.store.route import Route
from queasy.store.transport import AsyncTransport, SyncTransport
from queasy.store.url import Address

__all__ = ["AsyncListener", "AsyncSignal", "SyncListener", "SyncSignal"]

BROKEN = (RedisError, OSError)


class AsyncSignal:
    """One who waits on a channel."""

    def __init__(self) -> None:
        self._heard = asyncio.Event()

    def set(self) -> None:
        self._heard.set()

    async def wait(self, seconds: float) -> None:
        """Until the next message since the last wait, at most `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._heard.wait()
        self._heard.clear()


class _Ear:
    """One connection to one server, subscribed to channels."""

    def __init__(self, pubsub: Any) -> None:
        self.pubsub = pubsub
        self.confirmed: dict[str, asyncio.Future[None]] = {}
        self.task: asyncio.Task[None] | None = None


class AsyncListener:
    """The channels of one client, over one connection for each server they are on."""

    def __init__(self, transport: AsyncTransport, route: Route) -> None:
        self._transport = transport
        self._route = route
        self._ears: dict[Address, _Ear] = {}
        self._signals: dict[str, set[AsyncSignal]] = {}

    @contextlib.asynccontextmanager
    async def listen(self, channel: str) -> AsyncGenerator[AsyncSignal]:
        """A signal that is set by every message on the channel from now on."""
        signal = AsyncSignal()
        self._signals.setdefault(channel, set()).add(signal)
        try:
            # When the server is away, who waits finds out by its own next call.
            with contextlib.suppress(*BROKEN):
                await self._subscribe(channel)
            yield signal
        finally:
            self._signals[channel].discard(signal)

    async def _subscribe(self, channel: str) -> None:
        address = await self._transport.run(self._route.locate(channel))
        ear = self._ears.get(address)
        if ear is None:
            ear = self._ears[address] = _Ear(self._transport.pubsub(address))
        confirmed = ear.confirmed.get(channel)
        if confirmed is None:
            confirmed = ear.confirmed[channel] = asyncio.get_running_loop().create_future()
            try:
                await ear.pubsub.ssubscribe(channel)
            except BaseException:
                confirmed.cancel()
                await self._drop(address, ear)
                raise
            if ear.task is None:
                ear.task = asyncio.create_task(self._hear(address, ear))
        await asyncio.wait([confirmed])

    async def _hear(self, address: Address, ear: _Ear) -> None:
        try:
            while True:
                message = await ear.pubsub.get_message(timeout=None)
                if message is None:
                    continue
                channel = message["channel"].decode()
                if message["type"] == "ssubscribe":
                    if channel in ear.confirmed and not ear.confirmed[channel].done():
                        ear.confirmed[channel].set_result(None)
                elif message["type"] == "sunsubscribe":
                    return  # the slot moved away
                else:
                    self._tell(channel)
        except BROKEN:
            return  # whoever waits is told below, looks again and subscribes anew
        finally:
            await self._drop(address, ear)

    def _tell(self, channel: str) -> None:
        for signal in self._signals.get(channel, ()):
            signal.set()

    async def _drop(self, address: Address, ear: _Ear) -> None:
        if self._ears.get(address) is ear:
            del self._ears[address]
        for channel, confirmed in ear.confirmed.items():
            confirmed.cancel()
            self._tell(channel)
        with contextlib.suppress(*BROKEN):
            await ear.pubsub.aclose()

    async def close(self) -> None:
        for ear in list(self._ears.values()):
            if ear.task is not None:
                ear.task.cancel()
                await asyncio.wait([ear.task])


class SyncSignal:
    """One who waits on a channel, over a connection of its own."""

    def __init__(self, pubsub: Any) -> None:
        self._pubsub = pubsub

    def wait(self, seconds: float) -> None:
        """Until the next message since the last wait, at most `seconds`."""
        give_up_at = time.monotonic() + seconds
        while (left := give_up_at - time.monotonic()) > 0:
            try:
                message = self._pubsub.get_message(timeout=left)
            except BROKEN:
                return
            if message is not None and message["type"] == "smessage":
                return


class SyncListener:
    """Channels for sync code: every wait has a connection of its own."""

    def __init__(self, transport: SyncTransport, route: Route) -> None:
        self._transport = transport
        self._route = route

    @contextlib.contextmanager
    def listen(self, channel: str) -> Generator[SyncSignal]:
        """A signal for every message on the channel from now on."""
        address = self._transport.run(self._route.locate(channel))
        pubsub = self._transport.pubsub(address)
        try:
            with contextlib.suppress(*BROKEN):
                pubsub.ssubscribe(channel)
                pubsub.get_message(timeout=1.0)  # the confirmation
            yield SyncSignal(pubsub)
        finally:
            with contextlib.suppress(*BROKEN):
                pubsub.close()
