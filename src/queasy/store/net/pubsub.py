"""Hearing of new work instead of asking for it: pub/sub channels of the server.

A message may be lost (a failover, a moved slot); whoever waits looks again by itself
before long, so nothing depends on one.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

from queasy.errors import QueasyError, Unreachable
from queasy.store.net.faults import Lost, NotSent, diagnose
from queasy.store.net.pool import AsyncTransport, SyncTransport
from queasy.store.net.server_errors import MovedError, NoPermissionError, ResponseError
from queasy.store.net.topology import Effect, Exchange, Pause, Route, redirected
from queasy.store.net.url import Address
from queasy.store.net.wire import Wire
from queasy.store.net.wire_sync import SyncWire

__all__ = ["AsyncListener", "AsyncSignal", "SyncListener", "SyncSignal"]

CONNECTION_PROBLEMS = (ResponseError, OSError, NotSent, Lost, Unreachable)
# Who cannot listen looks for himself, this often.
UNSUBSCRIBED_POLL_SECONDS = 1.0
# A line on which nothing was heard for so long may be dead, and its end not told: a firewall
# forgot it, or a host vanished. It is asked, or replaced. In a group another server may have
# taken over meanwhile.
SILENCE_SECONDS = 30.0
SILENCE_IN_GROUP_SECONDS = 5.0
# So often one follows a channel that is elsewhere.
MAX_REDIRECTS = 3


class AsyncSignal:
    """One who waits on a channel."""

    def __init__(self, listener: AsyncListener, channel: str) -> None:
        self._listener = listener
        self._channel = channel
        self._heard = asyncio.Event()
        self._hears: object | None = None
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
        self._hears = await self._listener.subscribe(self._channel)

    async def wait(self, seconds: float) -> None:
        """Until the next message since the last wait, at most `seconds`."""
        hears = self._hears
        if hears is not None and await self._listener.subscribe(self._channel) is not hears:
            self._heard.clear()
            return  # the look found the queue elsewhere: nobody wakes us here
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(
                seconds if hears is not None else min(seconds, UNSUBSCRIBED_POLL_SECONDS)
            ):
                await self._heard.wait()
        self._heard.clear()


class _Ear:
    """One connection to one server, subscribed to channels."""

    def __init__(self) -> None:
        self.wire: Wire | None = None
        """Once it is open."""
        self.confirmed: dict[str, asyncio.Future[None]] = {}
        self.asked: deque[str] = deque()
        """Channels in the order of the answers to come: an error does not name its own."""
        self.problem: Exception | None = None
        self.opening: asyncio.Task[None] | None = None
        self.heard_at = 0.0
        self.asked_at = 0.0
        """When it was last asked whether it is there."""
        self.timer: asyncio.TimerHandle | None = None

    def ask(self, *channels: str) -> None:
        assert self.wire is not None
        self.asked.extend(channels)
        self.wire.tell([("SSUBSCRIBE", channel) for channel in channels])


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
        return await self._transport.run(_tell(self._route, channel, message))

    def hears(self, channel: str) -> object | None:
        """What one hears by, if that is known without asking anybody: as nearly always."""
        address = self._route.known
        ear = None if address is None else self._ears.get(address)
        confirmed = None if ear is None else ear.confirmed.get(channel)
        if confirmed is None or not confirmed.done() or confirmed.cancelled():
            return None
        return ear if confirmed.exception() is None else None

    async def subscribe(self, channel: str) -> object | None:
        """What one hears by, once the server has confirmed it: something else after every loss.
        None when the server is away or elsewhere.
        """
        if (hears := self.hears(channel)) is not None:
            return hears
        address = None
        for _ in range(MAX_REDIRECTS):
            try:
                address = await self._transport.run(self._route.locate(channel))
                return await self._subscribe(address, channel)
            except MovedError as moved:
                assert address is not None
                self._route.moved(int(moved.slot_id), redirected(moved, address))
            except CONNECTION_PROBLEMS as problem:
                refuse_if_denied(problem, channel)
                break
        self._route.forget(address)
        return None

    async def _subscribe(self, address: Address, channel: str) -> _Ear:
        ear = self._ears.get(address)
        if ear is None:
            ear = self._ears[address] = _Ear()
            ear.opening = asyncio.create_task(self._open(address, ear))
        confirmed = ear.confirmed.get(channel)
        if confirmed is None:
            confirmed = ear.confirmed[channel] = asyncio.get_running_loop().create_future()
            if ear.wire is not None:
                ear.ask(channel)
        if not confirmed.done():
            try:
                async with self._transport.in_time():
                    await asyncio.wait([confirmed])
            except TimeoutError as late:
                self._drop(address, ear, late)  # who comes next opens another line
                raise
        if confirmed.cancelled():
            raise ear.problem or NotSent("closed")
        confirmed.result()
        return ear

    async def _open(self, address: Address, ear: _Ear) -> None:
        heard = functools.partial(self._answered, address, ear)
        lost = functools.partial(self._drop, address, ear)
        try:
            ear.wire = await self._transport.open_line(address, heard, lost)
        except CONNECTION_PROBLEMS as problem:
            self._drop(address, ear, problem)
            return
        ear.heard_at = asyncio.get_running_loop().time()
        # In one piece, before anybody else: from now on, who comes asks for himself.
        ear.ask(*ear.confirmed)
        self._watch(address, ear)

    def _answered(self, address: Address, ear: _Ear, reply: Any) -> None:
        """Called by the connection itself: between the bytes and who is told is nothing else."""
        ear.heard_at = asyncio.get_running_loop().time()
        if isinstance(reply, ResponseError) and ear.asked:
            self._refuse(ear, reply)
        elif isinstance(reply, Exception):
            self._drop(address, ear, reply)
        else:
            kind, raw_channel, *rest = reply
            channel = raw_channel.decode()
            if kind == b"smessage":
                self._heard(channel, rest[0].decode("utf-8", "surrogateescape"))
            elif kind == b"ssubscribe":
                ear.asked.popleft()
                if channel in ear.confirmed and not ear.confirmed[channel].done():
                    ear.confirmed[channel].set_result(None)
            elif (confirmed := ear.confirmed.pop(channel, None)) is not None:
                self._lose(channel, confirmed)  # the slot moved away
        if not ear.confirmed:
            self._drop(address, ear)

    def _watch(self, address: Address, ear: _Ear) -> None:
        """After a long silence, asks; when there is no answer, the line is dead."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        quiet = SILENCE_IN_GROUP_SECONDS if self._route.is_group else SILENCE_SECONDS
        if ear.asked_at > ear.heard_at:
            self._route.forget(address)
            self._drop(address, ear, TimeoutError("no answer"))
            return
        if (again := ear.heard_at + quiet) <= now:
            ear.asked_at, again = now, now + self._transport.limit
            ear.ask(next(iter(ear.confirmed)))
        ear.timer = loop.call_at(again, self._watch, address, ear)

    def _refuse(self, ear: _Ear, problem: ResponseError) -> None:
        """One channel is elsewhere, or not for us; the others of this ear are still heard."""
        confirmed = ear.confirmed.pop(ear.asked.popleft(), None)
        if confirmed is not None and not confirmed.done():
            confirmed.set_exception(problem)
            confirmed.exception()  # whoever asked may have gone

    def _heard(self, channel: str, message: str) -> None:
        if channel in self._told:
            self._told[channel](message)
        elif not self._tell_one(channel) and channel in self._unwanted:
            self._unwanted[channel]()

    def _tell_one(self, channel: str) -> bool:
        return any(signal.set() for signal in self._signals.get(channel, ()))

    def _drop(self, address: Address, ear: _Ear, problem: Exception | None = None) -> None:
        """Nothing more is heard by it; `problem` is for those who wait for a confirmation."""
        if self._ears.get(address) is not ear:
            return
        del self._ears[address]
        ear.problem = problem
        if ear.timer is not None:
            ear.timer.cancel()
        if ear.wire is not None:
            ear.wire.end()
        elif ear.opening is not None and ear.opening is not asyncio.current_task():
            ear.opening.cancel()
        for channel, confirmed in ear.confirmed.items():
            self._lose(channel, confirmed)

    def _lose(self, channel: str, confirmed: asyncio.Future[None]) -> None:
        """Who had been listening looks again, and listens anew."""
        for signal in self._signals.get(channel, ()) if confirmed.done() else ():
            signal.set()
        if channel in self._told:
            self._told[channel]("")
        confirmed.cancel()

    async def close(self) -> None:
        """Whoever waits is told that it is over."""
        for signal in [signal for signals in self._signals.values() for signal in signals]:
            signal.closed = True
            signal.set()
        ears = list(self._ears.items())
        for address, ear in ears:
            self._drop(address, ear)
        if opening := [ear.opening for _, ear in ears if ear.opening is not None]:
            await asyncio.wait(opening)


def _tell(route: Route, channel: str, message: str) -> Generator[Effect, Any, int]:
    """Publishes where the channel is now. Said twice, an order is the same order."""
    before: Address | None = None
    for turn in range(1, MAX_REDIRECTS + 1):
        try:
            address = yield from route.locate(channel)
            if address == before:
                return 0
            (heard,) = yield Exchange(address, (("SPUBLISH", channel, message),))
        except (NotSent, Lost) as problem:
            route.forget()
            if turn == MAX_REDIRECTS or not route.is_group:
                raise Unreachable(str(problem)) from problem
            yield Pause(UNSUBSCRIBED_POLL_SECONDS)
            continue
        if isinstance(heard, MovedError):
            route.moved(int(heard.slot_id), redirected(heard, address))
        elif isinstance(heard, Exception):
            raise diagnose(heard, str(address), f"a message on {channel} on").error from heard
        elif heard or not route.is_group:
            return int(heard)
        else:  # who listens may do so at another, which was not the primary when we last asked
            before = address
            route.forget()
    return 0


def refuse_if_denied(problem: Exception, channel: str) -> None:
    """A channel that one may not hear will not be heard later either: say so."""
    if isinstance(problem, NoPermissionError):
        raise diagnose(problem, "the server", f"listening on {channel} on").error from problem


class SyncSignal:
    """One who waits on a channel, over a connection of its own."""

    def __init__(
        self, locate: Callable[[], Address], subscribe: Callable[[Address], SyncWire]
    ) -> None:
        self._locate = locate
        self._subscribe = subscribe
        self._line: SyncWire | None = None
        self._heard_at = 0.0
        self._at: Address | None = None

    def ready(self) -> None:
        """Listen, and listen again where a connection was lost."""
        if time.monotonic() - self._heard_at > SILENCE_SECONDS:
            self.close()
        if self._line is None:
            try:
                self._at = self._locate()
                self._line = self._subscribe(self._at)
                self._heard_at = time.monotonic()
            except CONNECTION_PROBLEMS as problem:
                refuse_if_denied(problem, "a queue")

    def wait(self, seconds: float) -> None:
        """Until the next message since the last wait, at most `seconds`."""
        if self._line is None:
            time.sleep(min(seconds, UNSUBSCRIBED_POLL_SECONDS))
            return
        if self._is_elsewhere():
            self.close()
            return
        give_up_at = time.monotonic() + seconds
        while (line := self._line) and (left := give_up_at - time.monotonic()) > 0:
            try:
                if line.has_more(left):
                    kind, _, _ = line.read()
                    self._heard_at = time.monotonic()
                    if kind == b"sunsubscribe":  # the slot moved away
                        self.close()
                    return
            except CONNECTION_PROBLEMS:
                self.close()

    def _is_elsewhere(self) -> bool:
        """The look found the queue at another server: nobody wakes us here."""
        try:
            return self._locate() != self._at
        except CONNECTION_PROBLEMS:
            return True

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None


class SyncListener:
    """Channels for sync code: every wait has a connection of its own."""

    def __init__(self, transport: SyncTransport, route: Route) -> None:
        self._transport = transport
        self._route = route

    @contextlib.contextmanager
    def listen(self, channel: str) -> Generator[SyncSignal]:
        """A signal for every message on the channel from now on."""

        def locate() -> Address:
            return self._transport.run(self._route.locate(channel))

        def subscribe(address: Address) -> SyncWire:
            line = self._transport.open_line(address)
            try:
                line.tell([("SSUBSCRIBE", channel)])
                line.confirm()
            except BaseException:
                line.close()
                raise
            return line

        signal = SyncSignal(locate, subscribe)
        try:
            yield signal
        finally:
            signal.close()
