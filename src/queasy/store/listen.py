"""Hearing of new work instead of asking for it: pub/sub channels of the server.

A message may be lost (a failover, a moved slot); whoever waits looks again by itself
before long, so nothing depends on one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

from redis.exceptions import RedisError

from queasy.errors import Unreachable
from queasy.store.faults import Lost, NotSent
from queasy.store.route import Route
from queasy.store.transport import AsyncTransport, SyncTransport
from queasy.store.url import Address

__all__ = ["AsyncListener", "AsyncSignal", "SyncListener", "SyncSignal"]

BROKEN = (RedisError, OSError, NotSent, Lost, Unreachable)
CONFIRMED_WITHIN = 5.0


class AsyncSignal:
    """One who waits on a channel."""

    def __init__(self, listener: AsyncListener, channel: str) -> None:
        self._listener = listener
        self._channel = channel
        self._heard = asyncio.Event()

    def set(self) -> bool:
        """True when it was not set already."""
        if self._heard.is_set():
            return False
        self._heard.set()
        return True

    async def ready(self) -> None:
        """Listen, and listen again where a connection was lost."""
        await self._listener.subscribe(self._channel)

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
        self._unwanted: dict[str, Callable[[], None]] = {}

    @contextlib.asynccontextmanager
    async def listen(
        self, channel: str, unwanted: Callable[[], None]
    ) -> AsyncGenerator[AsyncSignal]:
        """A signal that is set by messages on the channel from now on; each sets one signal.

        `unwanted` is called for a message that comes when nobody waits any more.
        """
        self._unwanted[channel] = unwanted
        signal = AsyncSignal(self, channel)
        self._signals.setdefault(channel, set()).add(signal)
        try:
            yield signal
        finally:
            self._signals[channel].discard(signal)
            # The server wakes a client, not one of those who wait in it: the next of them
            # looks whether there is more, and if not asks to be woken.
            self._tell_one(channel)

    async def subscribe(self, channel: str) -> None:
        """Returns when the server confirmed it. When it is away, nothing happens: who waits
        finds out by its own next call.
        """
        with contextlib.suppress(*BROKEN):
            await self._subscribe(channel)

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
                elif not self._tell_one(channel) and channel in self._unwanted:
                    self._unwanted[channel]()
        except BROKEN:
            return  # whoever waits is told below, looks again and subscribes anew
        finally:
            await self._drop(address, ear)

    def _tell_one(self, channel: str) -> bool:
        return any(signal.set() for signal in self._signals.get(channel, ()))

    async def _drop(self, address: Address, ear: _Ear) -> None:
        if self._ears.get(address) is ear:
            del self._ears[address]
        for channel, confirmed in ear.confirmed.items():
            confirmed.cancel()
            for signal in self._signals.get(channel, ()):
                signal.set()
        with contextlib.suppress(*BROKEN):
            await ear.pubsub.aclose()

    async def close(self) -> None:
        for ear in list(self._ears.values()):
            if ear.task is not None:
                ear.task.cancel()
                await asyncio.wait([ear.task])


class SyncSignal:
    """One who waits on a channel, over a connection of its own."""

    def __init__(self, subscribe: Callable[[], Any]) -> None:
        self._subscribe = subscribe
        self._pubsub: Any = None

    def ready(self) -> None:
        """Listen, and listen again where a connection was lost."""
        if self._pubsub is None:
            with contextlib.suppress(*BROKEN):
                self._pubsub = self._subscribe()

    def wait(self, seconds: float) -> None:
        """Until the next message since the last wait, at most `seconds`."""
        give_up_at = time.monotonic() + seconds
        while self._pubsub and (left := give_up_at - time.monotonic()) > 0:
            try:
                message = self._pubsub.get_message(timeout=left)
            except BROKEN:
                self.close()
                return
            if message is not None and message["type"] in ("smessage", "sunsubscribe"):
                return

    def close(self) -> None:
        if self._pubsub is not None:
            with contextlib.suppress(*BROKEN):
                self._pubsub.close()
            self._pubsub = None


class SyncListener:
    """Channels for sync code: every wait has a connection of its own."""

    def __init__(self, transport: SyncTransport, route: Route) -> None:
        self._transport = transport
        self._route = route

    @contextlib.contextmanager
    def listen(self, channel: str) -> Generator[SyncSignal]:
        """A signal for every message on the channel from now on."""

        def subscribe() -> Any:
            address = self._transport.run(self._route.locate(channel))
            pubsub = self._transport.pubsub(address)
            try:
                pubsub.ssubscribe(channel)
                pubsub.get_message(timeout=CONFIRMED_WITHIN)
            except BaseException:
                pubsub.close()
                raise
            return pubsub

        signal = SyncSignal(subscribe)
        try:
            yield signal
        finally:
            signal.close()
