"""Transports: they choose a connection for each exchange, and open and close connections.

There are two, one for event loops and one for threads. Neither knows what it transports.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

from queasy.store.embedded import server as embedded
from queasy.store.net.connection import Endpoint, RawCommands, limit_of, pack
from queasy.store.net.faults import NotSent
from queasy.store.net.topology import Effect, EnsureEmbedded, Exchange, HangUp, Pause
from queasy.store.net.url import Address, Target, parse_url
from queasy.store.net.wire import Wire
from queasy.store.net.wire_sync import SyncWire

__all__ = ["MAX_CONNECTIONS", "AsyncTransport", "SyncTransport"]

T = TypeVar("T")
log = logging.getLogger("queasy")

MAX_CONNECTIONS = 50
# A larger call would delay the calls after it, so it gets a connection of its own.
LARGE_CALL_BYTES = 512 * 1024
# How long a TLS connection may take to close properly.
CLOSE_TIMEOUT_SECONDS = 1.0
PRIMARY_REPLACED = "the sentinels have replaced this primary"


class _ServerConnections:
    """The connections to one server: one that is shared, and others for one call at a time."""

    def __init__(
        self, endpoint: Endpoint, connections: int, open_wire: Callable[[Endpoint], Wire]
    ) -> None:
        self._endpoint = endpoint
        self._open_wire = open_wire
        self.shared: Wire | None = None
        self._idle: list[Wire] = []
        # A call that needs a connection of its own acquires this first. Such calls wait in order.
        self._turns = asyncio.Semaphore(max(1, connections - 1))

    def open_shared(self) -> Wire:
        """A new shared connection, in place of one that has ended."""
        self.shared = self._open_wire(self._endpoint)
        return self.shared

    async def call_alone(self, commands: RawCommands) -> list[Any]:
        """The replies over a connection that no other call uses meanwhile."""
        deadline = asyncio.get_running_loop().time() + self._endpoint.limit
        try:
            async with asyncio.timeout_at(deadline):
                await self._turns.acquire()
        except TimeoutError as problem:
            raise NotSent(self._endpoint.late) from problem
        wire = None
        try:
            while self._idle and (wire is None or wire.closing_error is not None):
                wire = self._idle.pop()
            if wire is None or wire.closing_error is not None:
                wire = self._open_wire(self._endpoint)
            # Pack only now: while a call waits for its turn it must not need twice the memory.
            replies = await wire.call(pack(commands), len(commands), deadline)
            self._idle.append(wire)
            return replies
        except BaseException:
            if wire is not None:  # the server may still be busy with the abandoned call
                wire.end()
            raise
        finally:
            self._turns.release()

    def hang_up(self) -> None:
        """Retires open connections. A connection that is still being opened may stay: its host name
        was just looked up, so it leads to the current server.
        """
        if self.shared is not None and self.shared.greeted:
            self.shared.retire()
            self.shared = None
        idle, self._idle = self._idle, []
        for wire in idle:
            wire.retire()


class AsyncTransport:
    """Performs effects in an event loop.

    It opens at most `connections` connections to one server: one that most calls share, and others
    for calls that would delay the rest, because they are large or wait on the server.

    `on_lost` is called with the address when a connection to a server ends by itself.
    """

    def __init__(
        self,
        target: Target,
        timeout: float,
        folder: Path | None,
        connections: int = MAX_CONNECTIONS,
        on_lost: Callable[[Address], None] | None = None,
    ) -> None:
        self._target = target
        self._timeout = timeout
        self._folder = folder
        self._connections = connections
        self._on_lost = on_lost
        self._servers: dict[tuple[Address, bool], _ServerConnections] = {}
        self._wires: set[Wire] = set()

    async def run(self, steps: Generator[Effect, Any, T]) -> T:
        """Performs the effects that a generator yields; returns the generator's result."""
        try:
            effect = next(steps)
            while True:
                try:
                    if type(effect) is Exchange:
                        answer = await self.exchange(effect)
                    else:
                        answer = await self._perform(effect)
                except Exception as problem:  # the generator decides what it means
                    effect = steps.throw(problem)
                else:
                    effect = steps.send(answer)
        except StopIteration as done:
            return done.value
        finally:
            steps.close()

    async def _perform(self, effect: Effect) -> Any:
        match effect:
            case Exchange():
                return await self.exchange(effect)
            case Pause(seconds=seconds):
                return await asyncio.sleep(seconds)
            case EnsureEmbedded():
                url = await asyncio.to_thread(embedded.ensure, self._folder)
                log.debug("using the embedded server at %s", url)
                return parse_url(url).addresses[0]
            case HangUp(address=address):
                if (server := self._servers.get((address, False))) is not None:
                    server.hang_up()
                return None

    def exchange(self, exchange: Exchange) -> Awaitable[list[Any]]:
        """The replies to commands."""
        server = self._servers.get((exchange.address, exchange.sentinel))
        if server is None:
            server = self._add_server(exchange.address, exchange.sentinel)
        if exchange.alone:
            return server.call_alone(exchange.commands)
        commands = exchange.commands
        packed = pack(commands)
        if len(packed) > LARGE_CALL_BYTES:
            return server.call_alone(commands)
        wire = server.shared
        if wire is None or wire.closing_error is not None:
            wire = server.open_shared()
        return wire.call(packed, len(commands))

    def _add_server(self, address: Address, sentinel: bool) -> _ServerConnections:
        endpoint = Endpoint.to(self._target, address, self._timeout, sentinel)
        server = _ServerConnections(endpoint, self._connections, self._open)
        self._servers[address, sentinel] = server
        return server

    def _open(self, endpoint: Endpoint) -> Wire:
        wire = self._track(Wire(endpoint, on_lost=self._lost_callback(endpoint)))
        wire.begin()
        return wire

    def _lost_callback(
        self, endpoint: Endpoint, also: Callable[[Exception], None] | None = None
    ) -> Callable[[Exception], None] | None:
        on_lost = self._on_lost
        if on_lost is None or endpoint.sentinel:
            return also

        def lost(problem: Exception) -> None:
            on_lost(endpoint.address)
            if also is not None:
                also(problem)

        return lost

    def _track(self, wire: Wire) -> Wire:
        self._wires.add(wire)
        wire.gone.add_done_callback(lambda _: self._wires.discard(wire))
        return wire

    async def open_push_connection(
        self,
        address: Address,
        on_push: Callable[[Any], None],
        on_lost: Callable[[Exception], None],
        *,
        sentinel: bool = False,
    ) -> Wire:
        """A separate connection, for messages that the server sends without a call."""
        endpoint = Endpoint.to(self._target, address, self._timeout, sentinel)
        wire = self._track(Wire(endpoint, on_push, self._lost_callback(endpoint, on_lost)))
        await wire.open()
        return wire

    def leave(self, primary: Address) -> None:
        """Ends every connection to a server other than the primary. Calls without a reply fail."""
        for wire in list(self._wires):
            if wire.endpoint.address != primary and not wire.endpoint.sentinel:
                wire.cut(PRIMARY_REPLACED)

    def in_time(self) -> asyncio.Timeout:
        """A context that raises TimeoutError after the time that an answer may take."""
        return asyncio.timeout(self.limit)

    @property
    def limit(self) -> float:
        """The seconds that an answer may take."""
        return limit_of(self._target, self._timeout)

    async def close(self) -> None:
        self._servers = {}
        wires = list(self._wires)
        for wire in wires:
            wire.retire()
        if wires:
            _, left = await asyncio.wait(
                [wire.gone for wire in wires], timeout=CLOSE_TIMEOUT_SECONDS
            )
            for wire in wires if left else ():
                wire.end()


class SyncTransport:
    """Performs effects in the calling thread; safe to share between threads."""

    def __init__(self, target: Target, timeout: float, folder: Path | None) -> None:
        self._target = target
        self._timeout = timeout
        self._folder = folder
        self._idle: dict[tuple[Address, bool], list[SyncWire]] = {}
        self._wires: weakref.WeakSet[SyncWire] = weakref.WeakSet()
        """All connections that were opened, so that another thread can hang up."""
        self._lock = threading.Lock()
        self._process = os.getpid()

    def run(self, steps: Generator[Effect, Any, T]) -> T:
        """Performs the effects that a generator yields; returns the generator's result."""
        try:
            effect = next(steps)
            while True:
                try:
                    if type(effect) is Exchange:
                        answer = self.exchange(effect)
                    else:
                        answer = self._perform(effect)
                except Exception as problem:  # the generator decides what it means
                    effect = steps.throw(problem)
                else:
                    effect = steps.send(answer)
        except StopIteration as done:
            return done.value
        finally:
            steps.close()

    def _perform(self, effect: Effect) -> Any:
        match effect:
            case Exchange():
                return self.exchange(effect)
            case Pause(seconds=seconds):
                return time.sleep(seconds)
            case EnsureEmbedded():
                url = embedded.ensure(self._folder)
                log.debug("using the embedded server at %s", url)
                return parse_url(url).addresses[0]
            case HangUp(address=address):
                return self._hang_up(address)

    def _hang_up(self, address: Address) -> None:
        with self._lock:
            idle = self._idle.pop((address, False), [])
        for wire in idle:
            wire.close()

    def exchange(self, exchange: Exchange) -> list[Any]:
        """The replies to commands."""
        commands = exchange.commands
        packed = pack(commands)
        key = (exchange.address, exchange.sentinel)
        idle = self._idle_of(key)
        wire = None
        while wire is None or wire.has_more():
            if wire is not None:  # the server closed it while it was idle
                wire.close()
                if self._target.kind == "sentinel" and not exchange.sentinel:
                    self._hang_up(exchange.address)
                    raise NotSent("the server closed the connection; is it still the primary?")
            try:
                wire = idle.pop()
            except IndexError:
                wire = self._open(exchange.address, exchange.sentinel)
                break
        try:
            replies = wire.call(packed, len(commands))
        except BaseException:  # also KeyboardInterrupt: the next call would read this reply
            wire.close()
            raise
        with self._lock:
            if self._idle.get(key) is idle:
                idle.append(wire)
                return replies
        wire.close()  # while this call ran, the pool was closed or hung up on this server
        return replies

    def _idle_of(self, key: tuple[Address, bool]) -> list[SyncWire]:
        """The idle connections to a server; the one that was used last comes last."""
        if self._process != os.getpid():  # forked: the parent goes on using these connections
            self._lock, self._process = threading.Lock(), os.getpid()
            self.close()
        idle = self._idle.get(key)
        if idle is None:
            with self._lock:
                idle = self._idle.setdefault(key, [])
        return idle

    def open_push_connection(self, address: Address) -> SyncWire:
        """A separate connection, for messages that the server sends without a call."""
        return self._open(address, False)

    def _open(self, address: Address, sentinel: bool) -> SyncWire:
        wire = SyncWire(Endpoint.to(self._target, address, self._timeout, sentinel))
        with self._lock:
            self._wires.add(wire)
        wire.open()
        return wire

    def leave(self, primary: Address) -> None:
        """Ends every connection to a server other than the primary, also those that other threads
        use: their calls fail.
        """
        with self._lock:
            wires = list(self._wires)
        for wire in wires:
            if wire.endpoint.address != primary and not wire.endpoint.sentinel:
                wire.hang_up()

    def close(self) -> None:
        with self._lock:
            servers, self._idle = list(self._idle.values()), {}
        for idle in servers:
            for wire in idle:
                wire.close()
