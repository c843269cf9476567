"""The store: commands in, answers out. What an application's classes talk to."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from queasy.errors import QueasyError
from queasy.options import Durability
from queasy.store.coalescing import DispatchCoalescer
from queasy.store.command import Command
from queasy.store.commands import QueueCommands
from queasy.store.health import Health, inspect_server
from queasy.store.idempotency import Callers
from queasy.store.net.faults import PROBLEMS
from queasy.store.net.pool import MAX_CONNECTIONS, AsyncTransport, SyncTransport
from queasy.store.net.pubsub import AsyncListener, SyncListener
from queasy.store.net.topology import Exchange, route_to
from queasy.store.net.url import Target
from queasy.store.records import Dispatched, DispatchItem
from queasy.store.retrying import FailedTry, answer_of, call, connect, words_of

__all__ = ["AsyncStore", "SyncStore"]

T = TypeVar("T")
log = logging.getLogger("queasy")


class AsyncStore:
    """Runs commands in an event loop."""

    def __init__(
        self,
        target: Target,
        timeout: float,
        folder: Path | None = None,
        connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._target = target
        self._timeout = timeout
        self._folder = folder
        self._connections = connections
        self.callers = Callers()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._start()

    def _start(self) -> None:
        """All that lives and dies with one event loop."""
        self._route = route_to(self._target)
        self._transport = AsyncTransport(
            self._target, self._timeout, self._folder, self._connections
        )
        self._connected = False
        self._connecting = asyncio.Lock()
        self._lines: dict[tuple[str, Durability], DispatchCoalescer] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self.listener = AsyncListener(self._transport, self._route)

    def _bind(self) -> None:
        """Connections belong to a loop: one that is over is left behind, two are a mistake."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None:
            if not self._loop.is_closed():
                raise QueasyError(
                    "this Client is in use in another event loop. Make a Client for each loop, or "
                    "close it there first; for threads there is SyncClient"
                )
            self._start()
        self._loop = loop

    async def connect(self) -> None:
        """Looks at the server once; the first command does it if nobody did."""
        self._bind()
        async with self._connecting:
            if not self._connected:
                await self._transport.run(connect(self._route, self._timeout))
                self._connected = True

    @property
    def connected(self) -> bool:
        """Whether the server was ever reached."""
        return self._connected

    async def health(self) -> Health:
        """A inspect_server at the server; says rather than raises what is wrong with it."""
        self._bind()
        return await self._transport.run(inspect_server(self._route))

    async def run(self, command: Command[T], durability: Durability = "ack") -> T:
        """The answer to a command."""
        self._bind()
        if not self._connected:
            await self.connect()
        if not command.call_keys:
            return await self._run(command, durability)
        with self.callers.number(command) as numbered:
            return await self._run(numbered, durability)

    def _run_numbered(self, durability: Durability, command: Command[T]) -> Awaitable[T]:
        """For a line, who numbers its calls: as little as possible is in between."""
        return (self._run if self._connected else self.run)(command, durability)

    async def _run(self, command: Command[T], durability: Durability) -> T:
        failed = None
        address = self._route.known
        if address is not None and durability == "ack":
            # As nearly every call goes; the steps are for what may come in between.
            began, sent = time.monotonic(), (command.packed or words_of(command),)
            try:
                (reply,) = await self._transport.exchange(Exchange(address, sent))
                return answer_of(command, reply)
            except PROBLEMS as problem:
                failed = FailedTry(address, began, problem)
        steps = call(
            command, self._route, patience=self._timeout, durability=durability, failed=failed
        )
        return await self._transport.run(steps)

    def run_later(self, command: Command[Any]) -> None:
        """Runs a command in the background; `close` waits for it. Best effort."""
        self.in_background(self._run_quietly(command))

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """`close` waits for it, so it should use `rest` where it waits itself."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def rest(self, seconds: float) -> bool:
        """Waits; False when there is no time for more, because the store is being closed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        return not self._closing.is_set()

    async def _run_quietly(self, command: Command[Any]) -> None:
        try:
            await self.run(command)
        except QueasyError as error:
            log.warning("%s in the background failed: %s", command.function, error)

    def dispatch(
        self, commands: QueueCommands, item: DispatchItem, durability: Durability = "ack"
    ) -> Awaitable[Dispatched]:
        """Dispatches of one queue that are awaited at the same time share a round trip."""
        self._bind()
        line = self._lines.get((commands.keys.base, durability))
        if line is None:
            line = DispatchCoalescer(partial(self._run_numbered, durability))
            self._lines[commands.keys.base, durability] = line
        return line.dispatch(commands, item)

    async def close(self) -> None:
        """Sends what is in line, then closes every connection."""
        self._bind()
        self._closing.set()
        for line in list(self._lines.values()):
            await line.emptied()
        if self._background:
            await asyncio.wait(self._background)
        await self.listener.close()
        await self._transport.close()
        self._closing.clear()
        self._lines.clear()  # they belong to this loop, and the next use may be in another
        self._loop = None


class SyncStore:
    """Runs commands in the calling thread."""

    def __init__(self, target: Target, timeout: float, folder: Path | None = None) -> None:
        self._route = route_to(target)
        self._transport = SyncTransport(target, timeout, folder)
        self._timeout = timeout
        self.callers = Callers()
        self._connected = False
        self._connecting = threading.Lock()
        self.listener = SyncListener(self._transport, self._route)
        self.owed: deque[Any] = deque()
        """What could not be undone yet (see `follow_sync`)."""

    def connect(self) -> None:
        """Looks at the server once; the first command does it if nobody did."""
        with self._connecting:
            if not self._connected:
                self._transport.run(connect(self._route, self._timeout))
                self._connected = True

    @property
    def connected(self) -> bool:
        """Whether the server was ever reached."""
        return self._connected

    def health(self) -> Health:
        """A inspect_server at the server; says rather than raises what is wrong with it."""
        return self._transport.run(inspect_server(self._route))

    def run(self, command: Command[T], durability: Durability = "ack") -> T:
        """The answer to a command."""
        if not self._connected:
            self.connect()
        if not command.call_keys:
            return self._run(command, durability)
        with self.callers.number(command) as numbered:
            return self._run(numbered, durability)

    def _run(self, command: Command[T], durability: Durability) -> T:
        failed = None
        address = self._route.known
        if address is not None and durability == "ack":
            # As nearly every call goes; the steps are for what may come in between.
            began, sent = time.monotonic(), (command.packed or words_of(command),)
            try:
                (reply,) = self._transport.exchange(Exchange(address, sent))
                return answer_of(command, reply)
            except PROBLEMS as problem:
                failed = FailedTry(address, began, problem)
        steps = call(
            command, self._route, patience=self._timeout, durability=durability, failed=failed
        )
        return self._transport.run(steps)

    def close(self) -> None:
        self._transport.close()
