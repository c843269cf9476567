"""Subscriptions to channels of the server, so that clients need not poll for new jobs.

A message may be lost (a failover, a moved slot). Every waiter also polls, at long intervals, so
no job depends on a message.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

from queasy.errors import QueasyError, Unreachable
from queasy.store.net.faults import Lost, NotSent, diagnose
from queasy.store.net.pool import AsyncTransport
from queasy.store.net.server_errors import MovedError, NoPermissionError, ResponseError
from queasy.store.net.topology import Effect, Exchange, Pause, Route, redirected
from queasy.store.net.url import Address
from queasy.store.net.wire import Wire

__all__ = ["AsyncListener", "AsyncSignal", "pause_before_resubscribing", "raise_if_denied"]

CONNECTION_PROBLEMS = (ResponseError, OSError, NotSent, Lost, Unreachable)
# A waiter without a subscription polls this often.
UNSUBSCRIBED_POLL_SECONDS = 1.0
# How long to wait before a message is published again, after its server could not be reached.
REPUBLISH_PAUSE_SECONDS = 1.0
# A connection may die without a sign: a firewall dropped it, or the host vanished. After this long
# without a message it is checked, and replaced if no answer comes. In a group (Sentinel, Cluster)
# another server may take over, so connections are checked more often.
SILENCE_SECONDS = 30.0
SILENCE_IN_GROUP_SECONDS = 5.0
MAX_REDIRECTS = 3
# Many clients may lose their connections at once. So a client subscribes again after a random pause
# of up to this many seconds.
RESUBSCRIBE_WITHIN = 0.5
# A client with many channels spreads them over a longer time: this many seconds for each channel,
# up to a limit for all.
RESUBSCRIBE_EACH_WITHIN = 0.05
RESUBSCRIBE_ALL_WITHIN = 5.0


def pause_before_resubscribing() -> float:
    """Seconds to wait after a connection was lost."""
    return random.uniform(0, RESUBSCRIBE_WITHIN)


class AsyncSignal:
    """Waits for messages on one channel, for one operation."""

    def __init__(self, listener: AsyncListener, channel: str) -> None:
        self._listener = listener
        self._channel = channel
        self._received = asyncio.Event()
        self._connection: object | None = None
        self._closed = False

    def set(self) -> bool:
        """Wakes the waiter; False when it was set already."""
        if self._received.is_set():
            return False
        self._received.set()
        return True

    def close(self) -> None:
        """Wakes the waiter; `ensure_subscribed` raises from now on."""
        self._closed = True
        self._received.set()

    async def ensure_subscribed(self) -> None:
        """Subscribes, or subscribes again after the connection was lost."""
        if self._closed:
            raise QueasyError("the client was closed while a lease waited for a job")
        self._connection = await self._listener.subscribe(self._channel)

    async def wait(self, seconds: float) -> None:
        """Waits for the next message since the last wait, at most `seconds`."""
        connection = self._connection
        if connection is None:
            seconds = min(seconds, UNSUBSCRIBED_POLL_SECONDS)
        elif await self._listener.subscribe(self._channel) is not connection:
            self._received.clear()
            return  # the queue has moved to another server, where no wake-up was requested yet
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._received.wait()
        self._received.clear()


class _Subscriber:
    """One connection to one server, and the channels it is subscribed to.

    It opens by itself. It reports messages, and the loss of channels, to its listener. Once it has
    ended, the listener opens another.
    """

    def __init__(
        self, address: Address, transport: AsyncTransport, silence: float, listener: AsyncListener
    ) -> None:
        self.address = address
        self._transport = transport
        self._silence = silence
        self._listener = listener
        self._wire: Wire | None = None
        """Set when the connection is open."""
        self._confirmed: dict[str, asyncio.Future[None]] = {}
        """For each channel: done when the server has confirmed the subscription."""
        self._requested: deque[str] = deque()
        """Channels in the order of the replies to come: an error reply names no channel."""
        self._ended = False
        self._problem: Exception | None = None
        """Why the connection has ended."""
        self._received_at = 0.0
        self._checked_at = 0.0
        """When the connection was last checked."""
        self._pause_after_end = pause_before_resubscribing()
        self._timer: asyncio.TimerHandle | None = None
        self.opening = asyncio.create_task(self._open())

    def is_subscribed(self, channel: str) -> bool:
        """Whether the server has confirmed the subscription."""
        confirmed = self._confirmed.get(channel)
        if confirmed is None or not confirmed.done() or confirmed.cancelled():
            return False
        return confirmed.exception() is None

    async def subscribe(self, channel: str) -> None:
        """Returns once the server has confirmed the subscription."""
        confirmed = self._confirmed.get(channel)
        if confirmed is None:
            confirmed = asyncio.get_running_loop().create_future()
            self._confirmed[channel] = confirmed
            if self._wire is not None:
                self._request(self._wire, channel)
        if not confirmed.done():
            try:
                async with self._transport.in_time():
                    await asyncio.wait([confirmed])
            except TimeoutError as late:
                self.end(late)  # the next subscribe opens another one
                raise
        if confirmed.cancelled():
            raise self._problem or NotSent("closed")
        confirmed.result()

    def end(self, problem: Exception | None = None) -> None:
        """Ends the connection; `problem` is raised where a subscription awaits confirmation."""
        if self._ended:
            return
        self._ended, self._problem = True, problem
        self._listener.on_end(self, problem)
        if self._timer is not None:
            self._timer.cancel()
        if self._wire is not None:
            self._wire.end()
        elif self.opening is not asyncio.current_task():
            self.opening.cancel()
        for channel, confirmed in self._confirmed.items():
            self._lose(channel, confirmed)

    async def _open(self) -> None:
        try:
            wire = await self._transport.open_push_connection(self.address, self._on_push, self.end)
        except CONNECTION_PROBLEMS as problem:
            self.end(problem)
            return
        self._wire = wire
        self._received_at = asyncio.get_running_loop().time()
        # All at once, without an await: later subscriptions find the wire and send their own.
        self._request(wire, *self._confirmed)
        self._check_silence(wire)

    def _request(self, wire: Wire, *channels: str) -> None:
        self._requested.extend(channels)
        wire.send([("SSUBSCRIBE", channel) for channel in channels])

    def _on_push(self, reply: Any) -> None:
        """Handles what the server sends. The wire calls it directly, for speed."""
        self._received_at = asyncio.get_running_loop().time()
        if isinstance(reply, ResponseError) and self._requested:
            self._refuse(reply)
        elif isinstance(reply, Exception):
            self.end(reply)
        else:
            kind, raw_channel, *rest = reply
            channel = raw_channel.decode()
            if kind == b"smessage":
                self._listener.on_message(channel, rest[0])
            elif kind == b"ssubscribe":
                self._requested.popleft()
                if channel in self._confirmed and not self._confirmed[channel].done():
                    self._confirmed[channel].set_result(None)
            elif (confirmed := self._confirmed.pop(channel, None)) is not None:
                self._lose(channel, confirmed)  # the slot moved away
        if not self._confirmed:
            self.end()

    def _refuse(self, problem: ResponseError) -> None:
        """One channel is elsewhere or forbidden; the others of this connection stay subscribed."""
        confirmed = self._confirmed.pop(self._requested.popleft(), None)
        if confirmed is not None and not confirmed.done():
            confirmed.set_exception(problem)
            confirmed.exception()  # marks it as read: asyncio warns if nothing awaits it

    def _lose(self, channel: str, confirmed: asyncio.Future[None]) -> None:
        spread = min(RESUBSCRIBE_EACH_WITHIN * len(self._confirmed), RESUBSCRIBE_ALL_WITHIN)
        pause = self._pause_after_end + random.uniform(0, spread)
        self._listener.on_channel_lost(channel, confirmed.done(), pause)
        confirmed.cancel()

    def _check_silence(self, wire: Wire) -> None:
        """Checks the connection after a long silence; ends it if no answer comes."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._checked_at > self._received_at:
            self.end(TimeoutError("no answer"))
            return
        if (check_at := self._received_at + self._silence) <= now:
            self._checked_at, check_at = now, now + self._transport.limit
            # The server confirms a repeated subscription like the first one.
            self._request(wire, next(iter(self._confirmed)))
        self._timer = loop.call_at(check_at, self._check_silence, wire)


class AsyncListener:
    """The subscriptions of one client, over one connection to each server they are on."""

    def __init__(self, transport: AsyncTransport, route: Route) -> None:
        self._transport = transport
        self._route = route
        self._subscribers: dict[Address, _Subscriber] = {}
        self._signals: dict[str, set[AsyncSignal]] = {}
        self._on_unwanted: dict[str, Callable[[], None]] = {}
        self._callbacks: dict[str, Callable[[bytes], None]] = {}
        self._is_urgent: dict[str, Callable[[], bool]] = {}

    @contextlib.asynccontextmanager
    async def listen(
        self, channel: str, on_unwanted: Callable[[], None], on_abandoned: Callable[[], None]
    ) -> AsyncGenerator[AsyncSignal]:
        """A signal for messages on the channel; each message sets one of the channel's signals.

        `on_unwanted` is called for a message that no signal waits for. `on_abandoned` is called
        when a waiter was interrupted and no other waits.
        """
        self._on_unwanted[channel] = on_unwanted
        signal = AsyncSignal(self, channel)
        self._signals.setdefault(channel, set()).add(signal)
        interrupted = True
        try:
            yield signal
            interrupted = False
        finally:
            self._signals[channel].discard(signal)
            # The server wakes a client, and does not know how many waiters it has. So another
            # waiter polls now: it takes a job that is left, or asks the server to be woken.
            if not self._set_one_signal(channel) and interrupted:
                on_abandoned()

    def add_callback(
        self,
        channel: str,
        callback: Callable[[bytes], None],
        is_urgent: Callable[[], bool] = lambda: False,
    ) -> None:
        """Calls `callback` with every message on the channel, and with b"" when messages may
        have been missed: after a random pause, or at once if `is_urgent()`. `subscribe` starts the
        messages.
        """
        self._callbacks[channel] = callback
        self._is_urgent[channel] = is_urgent

    def remove_callback(self, channel: str) -> None:
        self._callbacks.pop(channel, None)
        self._is_urgent.pop(channel, None)

    async def publish(self, channel: str, message: str) -> int:
        """Publishes a message; returns how many subscribers received it."""
        return await self._transport.run(publish(self._route, channel, message))

    def connection_of(self, channel: str) -> object | None:
        """The connection that is subscribed to the channel. None if the channel is not confirmed,
        or if finding its server needs a call (always in a Cluster).
        """
        address = self._route.known
        subscriber = None if address is None else self._subscribers.get(address)
        if subscriber is None or not subscriber.is_subscribed(channel):
            return None
        return subscriber

    async def subscribe(self, channel: str) -> object | None:
        """Subscribes; returns the connection once the server has confirmed it.

        After each loss of the connection, another object is returned. Returns None when the server
        cannot be reached or the channel keeps moving. Raises if the user may not subscribe.
        """
        if (connection := self.connection_of(channel)) is not None:
            return connection
        address = None
        for _ in range(MAX_REDIRECTS):
            try:
                address = await self._transport.run(self._route.locate(channel))
                return await self._subscribe(address, channel)
            except MovedError as moved:
                assert address is not None
                self._route.moved(int(moved.slot_id), redirected(moved, address))
            except CONNECTION_PROBLEMS as problem:
                raise_if_denied(problem, channel)
                break
        self._route.forget(address)
        return None

    async def _subscribe(self, address: Address, channel: str) -> _Subscriber:
        subscriber = self._subscribers.get(address)
        if subscriber is None:
            silence = SILENCE_IN_GROUP_SECONDS if self._route.is_group else SILENCE_SECONDS
            subscriber = _Subscriber(address, self._transport, silence, self)
            self._subscribers[address] = subscriber
        await subscriber.subscribe(channel)
        return subscriber

    # Events of a subscriber

    def on_message(self, channel: str, message: bytes) -> None:
        if channel in self._callbacks:
            self._callbacks[channel](message)
        elif not self._set_one_signal(channel) and channel in self._on_unwanted:
            self._on_unwanted[channel]()

    def on_channel_lost(self, channel: str, was_confirmed: bool, pause: float) -> None:
        """The connection of a channel was lost. Reports that after a pause, unless it is urgent."""
        loop = asyncio.get_running_loop()
        if channel in self._is_urgent and self._is_urgent[channel]():
            pause = 0.0
        loop.call_later(pause, self._report_loss, channel, was_confirmed)

    def _report_loss(self, channel: str, was_confirmed: bool) -> None:
        """Wakes the waiters of a channel, so that they poll and subscribe again.

        A waiter that has subscribed again in the meantime has polled since.
        """
        if self.connection_of(channel) is not None:
            return
        for signal in self._signals.get(channel, ()) if was_confirmed else ():
            signal.set()
        if channel in self._callbacks:
            self._callbacks[channel](b"")

    def on_end(self, subscriber: _Subscriber, problem: Exception | None) -> None:
        del self._subscribers[subscriber.address]
        if isinstance(problem, TimeoutError):  # another server may have taken over
            self._route.forget(subscriber.address)

    def _set_one_signal(self, channel: str) -> bool:
        """Wakes one waiter of the channel; False when none sleeps."""
        return any(signal.set() for signal in self._signals.get(channel, ()))

    async def close(self) -> None:
        """Ends every subscription; the waiters raise."""
        for signal in [signal for signals in self._signals.values() for signal in signals]:
            signal.close()
        subscribers = list(self._subscribers.values())
        for subscriber in subscribers:
            subscriber.end()
        if subscribers:
            await asyncio.wait([subscriber.opening for subscriber in subscribers])


def publish(route: Route, channel: str, message: str) -> Generator[Effect, Any, int]:
    """Publishes where the channel is now. A message may be published twice, which does no harm:
    the orders sent this way are idempotent.
    """
    unheard_at: Address | None = None  # where no subscriber received the message
    for turn in range(1, MAX_REDIRECTS + 1):
        try:
            address = yield from route.locate(channel)
            if address == unheard_at:
                return 0
            (received,) = yield Exchange(address, (("SPUBLISH", channel, message),))
        except (NotSent, Lost, ResponseError) as problem:
            route.forget()
            if turn == MAX_REDIRECTS or not route.is_group:
                where = str(route.target)
                raise diagnose(problem, where, f"publishing on {channel} on").error from problem
            yield Pause(REPUBLISH_PAUSE_SECONDS)
            continue
        if isinstance(received, MovedError):
            route.moved(int(received.slot_id), redirected(received, address))
        elif isinstance(received, Exception):
            raise diagnose(
                received, str(address), f"publishing on {channel} on"
            ).error from received
        elif received or not route.is_group:
            return int(received)
        else:  # the subscribers may be at another server, which has become the primary
            unheard_at = address
            route.forget()
    return 0


def raise_if_denied(problem: Exception, channel: str) -> None:
    """Raises when the user may not subscribe: trying again would not help."""
    if isinstance(problem, NoPermissionError):
        raise diagnose(problem, "the server", f"subscribing to {channel} on").error from problem
