"""Bytes to servers and back: which connection a call takes, and who opens and closes it.

Twice, because one awaits and the other does not; neither knows what it carries.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

from queasy.store.embedded import server as embedded
from queasy.store.net.connection import Endpoint, limit_of, pack
from queasy.store.net.faults import NotSent
from queasy.store.net.topology import Effect, EnsureEmbedded, Exchange, HangUp, Pause
from queasy.store.net.url import Address, Target, parse_url
from queasy.store.net.wire import Wire
from queasy.store.net.wire_sync import SyncWire

__all__ = ["MAX_CONNECTIONS", "AsyncTransport", "SyncTransport"]

T = TypeVar("T")
log = logging.getLogger("queasy")

MAX_CONNECTIONS = 50
# More bytes than this would hold up the calls behind them.
LARGE_CALL_BYTES = 512 * 1024
# For connections to be closed in good order, TLS being slow about it.
CLOSE_TIMEOUT_SECONDS = 1.0


class _ServerConnections:
    """The connections to one server: one that ordinary calls share, and some for one call each."""

    def __init__(self, endpoint: Endpoint, connections: int) -> None:
        self.endpoint = endpoint
        self.shared: Wire | None = None
        self.idle: list[Wire] = []
        # Who finds none free stands in line, first come first served.
        self.turns = asyncio.Semaphore(max(1, connections - 1))


class AsyncTransport:
    """Carries steps out in an event loop.

    To one server there are at most so many `connections`: the one that calls share, and others
    for calls that would hold up the rest, because they are large or wait on the server.
    """

    def __init__(
        self,
        target: Target,
        timeout: float,
        folder: Path | None,
        connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._target = target
        self._timeout = timeout
        self._folder = folder
        self._connections = connections
        self._lines: dict[tuple[Address, bool], _ServerConnections] = {}
        self._wires: set[Wire] = set()

    async def run(self, steps: Generator[Effect, Any, T]) -> T:
        """Performs each step and returns what the last one came to."""
        try:
            effect = next(steps)
            while True:
                try:
                    if type(effect) is Exchange:
                        answer = await self.exchange(effect)
                    else:
                        answer = await self._perform(effect)
                except Exception as problem:  # the steps decide what it means
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
                return self._hang_up(address)

    def exchange(self, exchange: Exchange) -> Awaitable[list[Any]]:
        """The replies to commands."""
        lines = self._lines.get((exchange.address, exchange.sentinel))
        if lines is None:
            lines = self._find(exchange.address, exchange.sentinel)
        if exchange.alone:
            return self._exchange_apart(exchange, lines)
        commands = exchange.commands
        packed = pack(commands)
        if len(packed) > LARGE_CALL_BYTES:
            return self._exchange_apart(exchange, lines)
        wire = lines.shared
        if wire is None or wire.over is not None:
            wire = lines.shared = self._open(lines.endpoint)
        return wire.call(packed, len(commands))

    async def _exchange_apart(self, exchange: Exchange, lines: _ServerConnections) -> list[Any]:
        """Over a connection that nobody else uses meanwhile."""
        deadline = asyncio.get_running_loop().time() + lines.endpoint.limit
        try:
            async with asyncio.timeout_at(deadline):
                await lines.turns.acquire()
        except TimeoutError as problem:
            raise NotSent(lines.endpoint.late) from problem
        wire = None
        try:
            while lines.idle and (wire is None or wire.over is not None):
                wire = lines.idle.pop()
            if wire is None or wire.over is not None:
                wire = self._open(lines.endpoint)
            # Packed as late as this: while they stand in line, one copy of the bytes will do.
            replies = await wire.call(pack(exchange.commands), len(exchange.commands), deadline)
            lines.idle.append(wire)
            return replies
        except BaseException:
            if wire is not None:  # the server may be busy with what nobody waits for any more
                wire.end()
            raise
        finally:
            lines.turns.release()

    def _find(self, address: Address, sentinel: bool) -> _ServerConnections:
        endpoint = Endpoint.to(self._target, address, self._timeout, sentinel)
        lines = self._lines[address, sentinel] = _ServerConnections(endpoint, self._connections)
        return lines

    def _open(self, endpoint: Endpoint) -> Wire:
        wire = self._follow(Wire(endpoint))
        wire.begin()
        return wire

    def _follow(self, wire: Wire) -> Wire:
        self._wires.add(wire)
        wire.gone.add_done_callback(lambda _: self._wires.discard(wire))
        return wire

    def _hang_up(self, address: Address) -> None:
        """One that is being opened leads to whomever the name stands for now."""
        lines = self._lines.get((address, False))
        if lines is None:
            return
        if lines.shared is not None and lines.shared.greeted:
            lines.shared.retire()
            lines.shared = None
        idle, lines.idle = lines.idle, []
        for wire in idle:
            wire.retire()

    async def open_line(
        self, address: Address, heard: Callable[[Any], None], lost: Callable[[Exception], None]
    ) -> Wire:
        """A connection of its own, for hearing what the server says by itself."""
        endpoint = Endpoint.to(self._target, address, self._timeout, False)
        wire = self._follow(Wire(endpoint, heard, lost))
        await wire.open()
        return wire

    def in_time(self) -> asyncio.Timeout:
        """How long an answer may take."""
        return asyncio.timeout(self.limit)

    @property
    def limit(self) -> float:
        return limit_of(self._target, self._timeout)

    async def close(self) -> None:
        self._lines = {}
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
    """Carries steps out in the calling thread; safe to share between threads."""

    def __init__(self, target: Target, timeout: float, folder: Path | None) -> None:
        self._target = target
        self._timeout = timeout
        self._folder = folder
        self._idle: dict[tuple[Address, bool], list[SyncWire]] = {}
        self._lock = threading.Lock()
        self._process = os.getpid()

    def run(self, steps: Generator[Effect, Any, T]) -> T:
        """Performs each step and returns what the last one came to."""
        try:
            effect = next(steps)
            while True:
                try:
                    if type(effect) is Exchange:
                        answer = self.exchange(effect)
                    else:
                        answer = self._perform(effect)
                except Exception as problem:  # the steps decide what it means
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
                with self._lock:
                    idle = self._idle.pop((address, False), [])
                for wire in idle:
                    wire.close()
                return None

    def exchange(self, exchange: Exchange) -> list[Any]:
        """The replies to commands."""
        commands = exchange.commands
        packed = pack(commands)
        key = (exchange.address, exchange.sentinel)
        idle = self._idle_of(key)
        wire = None
        while wire is None or wire.has_more():
            if wire is not None:  # it was closed by the server while it rested
                wire.close()
            try:
                wire = idle.pop()
            except IndexError:
                wire = SyncWire(
                    Endpoint.to(self._target, exchange.address, self._timeout, exchange.sentinel)
                )
                break
        try:
            replies = wire.call(packed, len(commands))
        except BaseException:  # also KeyboardInterrupt: the reply would be the next call's
            wire.close()
            raise
        with self._lock:
            if self._idle.get(key) is idle:
                idle.append(wire)
                return replies
        wire.close()  # all that rested were closed meanwhile
        return replies

    def _idle_of(self, key: tuple[Address, bool]) -> list[SyncWire]:
        """The connections that rest, the last used last."""
        if self._process != os.getpid():  # forked: these are the parent's, who goes on using them
            self._lock, self._process = threading.Lock(), os.getpid()
            self.close()
        idle = self._idle.get(key)
        if idle is None:
            with self._lock:
                idle = self._idle.setdefault(key, [])
        return idle

    def open_line(self, address: Address) -> SyncWire:
        """A connection of its own, on which one may wait for ever."""
        return SyncWire(Endpoint.to(self._target, address, self._timeout, False))

    def close(self) -> None:
        with self._lock:
            resting, self._idle = list(self._idle.values()), {}
        for idle in resting:
            for wire in idle:
                wire.close()
