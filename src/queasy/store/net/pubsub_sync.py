"""Subscriptions for code that does not await: each wait has a connection of its own."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator

from queasy.store.net import pubsub
from queasy.store.net.pool import SyncTransport
from queasy.store.net.pubsub import (
    CONNECTION_PROBLEMS,
    UNSUBSCRIBED_POLL_SECONDS,
    pause_before_resubscribing,
    raise_if_denied,
)
from queasy.store.net.topology import Route
from queasy.store.net.url import Address
from queasy.store.net.wire_sync import SyncWire

__all__ = ["SyncListener", "SyncSignal"]


class SyncSignal:
    """Waits for messages on one channel, over a connection of its own."""

    def __init__(
        self, locate: Callable[[], Address], subscribe: Callable[[Address], SyncWire]
    ) -> None:
        self._locate = locate
        self._subscribe = subscribe
        self._wire: SyncWire | None = None
        self._address: Address | None = None
        self._received_at = 0.0
        self._interrupted = threading.Event()

    def ensure_subscribed(self) -> None:
        """Subscribes, or subscribes again after the connection was lost or silent for long."""
        if time.monotonic() - self._received_at > pubsub.SILENCE_SECONDS:
            self.close()
        if self._wire is None:
            try:
                self._address = self._locate()
                self._wire = self._subscribe(self._address)
                self._received_at = time.monotonic()
            except CONNECTION_PROBLEMS as problem:
                raise_if_denied(problem, "a queue")

    def wait(self, seconds: float) -> None:
        """Waits for the next message since the last wait, at most `seconds`."""
        if self._wire is None:
            time.sleep(min(seconds, UNSUBSCRIBED_POLL_SECONDS))
            return
        if self._has_moved():
            self.close()
            return
        give_up_at = time.monotonic() + seconds
        while (wire := self._wire) and (left := give_up_at - time.monotonic()) > 0:
            try:
                if wire.has_more(left):
                    kind, _, _ = wire.read()
                    self._received_at = time.monotonic()
                    if kind == b"sunsubscribe":  # the slot moved away
                        self.close()
                    return
            except CONNECTION_PROBLEMS:
                self.close()
                self._interrupted.wait(min(left, pause_before_resubscribing()))

    def _has_moved(self) -> bool:
        """Whether the queue is at another server now, where no wake-up was requested."""
        try:
            return self._locate() != self._address
        except CONNECTION_PROBLEMS:
            return True

    def interrupt(self) -> None:
        """Ends the wait of another thread."""
        self._interrupted.set()
        if (wire := self._wire) is not None:
            wire.hang_up()

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None


class SyncListener:
    """The subscriptions of one client, for sync code."""

    def __init__(self, transport: SyncTransport, route: Route) -> None:
        self._transport = transport
        self._route = route
        self._signals: set[SyncSignal] = set()

    def interrupt(self) -> None:
        """Ends the waits of all threads; each of them finds its connection closed."""
        for signal in list(self._signals):
            signal.interrupt()

    def publish(self, channel: str, message: str) -> int:
        """Publishes a message; returns how many subscribers received it."""
        return self._transport.run(pubsub.publish(self._route, channel, message))

    @contextlib.contextmanager
    def listen(self, channel: str) -> Generator[SyncSignal]:
        """A signal for every message on the channel from now on."""

        def locate() -> Address:
            return self._transport.run(self._route.locate(channel))

        def subscribe(address: Address) -> SyncWire:
            wire = self._transport.open_push_connection(address)
            try:
                wire.send([("SSUBSCRIBE", channel)])
                wire.confirm()
            except BaseException:
                wire.close()
                raise
            return wire

        signal = SyncSignal(locate, subscribe)
        self._signals.add(signal)
        try:
            yield signal
        finally:
            self._signals.discard(signal)
            signal.close()
