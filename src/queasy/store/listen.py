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

from redis.exceptions import NoPermissionError, RedisError

from queasy.errors import QueasyError, Unreachable
from queasy.store.faults import Lost, NotSent, diagnose
from queasy.store.route import Effect, Exchange, Route
from queasy.store.transport import AsyncTransport, SyncTransport
from queasy.store.url import Address

__all__ = ["AsyncListener", "AsyncSignal", "SyncListener", "SyncSignal"]

BROKEN = (RedisError, OSError, NotSent, Lost, Unreachable)
# Who cannot listen looks for himself, this often.
DEAF = 1.0
# A line on which nothing was heard for so long may be dead, and its end not told: a firewall
# forgot it, or a host vanished. It is asked, or replaced.
QUIET = 30.0


class AsyncSignal:
    """One who waits on a channel."""

    def __init__(self, listener: AsyncListener, channel: str) -> None:
        self._listener = listener
        self._channel = channel
        self._heard = asyncio.Event()
        self._subscribed = False
        self.closed = False

    def set(self) -> bool:
        """True when it was not set already."""
        if self._heard.is_set():
            return False
        self._heard.set()
        return True

    async def ready(self) -> None:
        """Listen, and listen again where a connection was lost."""
        if self.closed:
            raise QueasyError("the client was closed while somebody waited for a job")
        self._subscribed = await self._listener.subscribe(self._channel) is not None

    async def wait(self, seconds: float) -> None:
        """Until the next message since the last wait, at most `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds if self._subscribed else min(seconds, DEAF)):
                await self._heard.wait()
        self._heard.clear()


class _Ear:
    """One connection to one server, subscribed to channels."""

    def __init__(self) -> None:
        self.line: Any = None
        self.confirmed: dict[str, asyncio.Future[None]] = {}
        self.problem: Exception | None = None
        self.task: asyncio.Task[None] | None = None


class AsyncListener:
    """The channels of one client, over one connection for each server they are on."""

    def __init__(self, transport: AsyncTransport, route: Route) -> None:
        self._transport = transport
        self._route = route
        self._ears: dict[Address, _Ear] = {}
        self._signals: dict[str, set[AsyncSignal]] = {}
        self._unwanted: dict[str, Callable[[], None]] = {}
        self._told: dict[str, Callable[[str], None]] = {}

    @contextlib.asynccontextmanager
    async def listen(
        self, channel: str, unwanted: Callable[[], None], abandoned: Callable[[], None]
    ) -> AsyncGenerator[AsyncSignal]:
        """A signal that is set by messages on the channel from now on; each sets one signal.

        `unwanted` is called for a message that comes when nobody waits any more, `abandoned`
        when the last who waited was interrupted.
        """
        self._unwanted[channel] = unwanted
        signal = AsyncSignal(self, channel)
        self._signals.setdefault(channel, set()).add(signal)
        interrupted = True
        try:
            yield signal
            interrupted = False
        finally:
            self._signals[channel].discard(signal)
            # The server wakes a client, not one of those who wait in it: the next of them
            # looks whether there is more, and if not asks to be woken.
            if not self._tell_one(channel) and interrupted:
                abandoned()

    def attend(self, channel: str, told: Callable[[str], None]) -> None:
        """From now on `told` is called with every message on the channel, and with "" when
        messages may have been missed. `subscribe` makes sure that there are any.
        """
        self._told[channel] = told

    def leave(self, channel: str) -> None:
        self._told.pop(channel, None)

    async def tell(self, channel: str, message: str) -> int:
        """Sends a message; how many heard it."""
        address = await self._transport.run(self._route.locate(channel))
        effect = Exchange(address, (("SPUBLISH", channel, message),))
        (heard,) = await self._transport.run(_once(effect))
        if isinstance(heard, Exception):
            raise diagnose(heard, str(address), f"a message on {channel}").error from heard
        return int(heard)

    async def subscribe(self, channel: str) -> object | None:
        """What one hears by, once the server has confirmed it: something else after every loss.
        None when the server is away or elsewhere.
        """
        try:
            return await self._subscribe(channel)
        except BROKEN as problem:
            refuse_if_denied(problem, channel)
            self._route.forget()
            return None

    async def _subscribe(self, channel: str) -> _Ear:
        address = await self._transport.run(self._route.locate(channel))
        ear = self._ears.get(address)
        if ear is None:
            ear = self._ears[address] = _Ear()
            ear.task = asyncio.create_task(self._hear(address, ear))
        confirmed = ear.confirmed.get(channel)
        if confirmed is None:
            confirmed = ear.confirmed[channel] = asyncio.get_running_loop().create_future()
            if ear.line is not None:
                await ear.line.send_command("SSUBSCRIBE", channel)
        try:
            async with self._transport.in_time():
                await asyncio.wait([confirmed])
        except TimeoutError:
            if ear.task is not None:
                ear.task.cancel()  # who comes next opens another line
            raise
        if confirmed.cancelled():
            raise ear.problem or NotSent("closed")
        return ear

    async def _hear(self, address: Address, ear: _Ear) -> None:
        try:
            line = await self._transport.open_line(address)
            ear.line = line
            for channel in list(ear.confirmed):  # from now on, who comes sends for himself
                await line.send_command("SSUBSCRIBE", channel)
            while True:
                kind, raw_channel, message = await self._next(ear)
                channel = raw_channel.decode()
                if kind == b"ssubscribe":
                    if not ear.confirmed[channel].done():
                        ear.confirmed[channel].set_result(None)
                elif kind == b"sunsubscribe":
                    return  # the slot moved away
                elif channel in self._told:
                    self._told[channel](message.decode("utf-8", "surrogateescape"))
                elif not self._tell_one(channel) and channel in self._unwanted:
                    self._unwanted[channel]()
        except BROKEN as problem:
            ear.problem = problem  # for those who wait for a confirmation
        finally:
            await self._drop(address, ear)

    async def _next(self, ear: _Ear) -> Any:
        """The next message; after a long silence the answer to a question."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(QUIET):
                return await ear.line.read_response(disconnect_on_error=False)
        await ear.line.send_command("SSUBSCRIBE", next(iter(ear.confirmed)))
        async with self._transport.in_time():
            return await ear.line.read_response()

    def _tell_one(self, channel: str) -> bool:
        return any(signal.set() for signal in self._signals.get(channel, ()))

    async def _drop(self, address: Address, ear: _Ear) -> None:
        if self._ears.get(address) is ear:
            del self._ears[address]
        for channel, confirmed in ear.confirmed.items():
            # Who had been listening looks again, and listens anew.
            for signal in self._signals.get(channel, ()) if confirmed.done() else ():
                signal.set()
            if channel in self._told:
                self._told[channel]("")
            confirmed.cancel()
        if ear.line is not None:
            with contextlib.suppress(*BROKEN):
                await ear.line.disconnect(nowait=True)

    async def close(self) -> None:
        """Whoever waits is told that it is over."""
        for signal in [signal for signals in self._signals.values() for signal in signals]:
            signal.closed = True
            signal.set()
        for ear in list(self._ears.values()):
            if ear.task is not None:
                ear.task.cancel()
                await asyncio.wait([ear.task])


def _once(effect: Effect) -> Generator[Effect, Any, Any]:
    """A step that is sent once, come what may."""
    try:
        return (yield effect)
    except (NotSent, Lost) as problem:
        raise Unreachable(str(problem)) from problem


def refuse_if_denied(problem: Exception, channel: str) -> None:
    """A channel that one may not hear will not be heard later either: say so."""
    if isinstance(problem, NoPermissionError):
        raise diagnose(problem, "the server", f"listening on {channel}").error from problem


class SyncSignal:
    """One who waits on a channel, over a connection of its own."""

    def __init__(self, subscribe: Callable[[], Any]) -> None:
        self._subscribe = subscribe
        self._line: Any = None
        self._heard_at = 0.0

    def ready(self) -> None:
        """Listen, and listen again where a connection was lost."""
        if time.monotonic() - self._heard_at > QUIET:
            self.close()
        if self._line is None:
            try:
                self._line = self._subscribe()
                self._heard_at = time.monotonic()
            except BROKEN as problem:
                refuse_if_denied(problem, "a queue")

    def wait(self, seconds: float) -> None:
        """Until the next message since the last wait, at most `seconds`."""
        if self._line is None:
            time.sleep(min(seconds, DEAF))
            return
        give_up_at = time.monotonic() + seconds
        while self._line is not None and (left := give_up_at - time.monotonic()) > 0:
            try:
                if self._line.can_read(timeout=left):
                    kind, _, _ = self._line.read_response()
                    self._heard_at = time.monotonic()
                    if kind == b"sunsubscribe":  # the slot moved away
                        self.close()
                    return
            except BROKEN:
                self.close()

    def close(self) -> None:
        if self._line is not None:
            with contextlib.suppress(*BROKEN):
                self._line.disconnect()
            self._line = None


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
            line = self._transport.open_line(address)
            try:
                line.send_command("SSUBSCRIBE", channel)
                line.read_response()  # the confirmation
            except BaseException:
                line.disconnect()
                raise
            return line

        signal = SyncSignal(subscribe)
        try:
            yield signal
        finally:
            signal.close()
