"""The stores: they run commands on a server, in an event loop or in the calling thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from queasy.errors import QueasyError
from queasy.options import Durability
from queasy.store.coalescing import DispatchCoalescer
from queasy.store.command import Command, WaitForItem
from queasy.store.commands import QueueCommands
from queasy.store.health import Health, inspect_server
from queasy.store.idempotency import Callers
from queasy.store.library import NATIVE, Library
from queasy.store.net.connection import limit_of
from queasy.store.net.faults import PROBLEMS
from queasy.store.net.pool import MAX_CONNECTIONS, AsyncTransport, SyncTransport
from queasy.store.net.pubsub import AsyncListener
from queasy.store.net.pubsub_sync import SyncListener
from queasy.store.net.sentinel_watch import SentinelWatch, SentinelWatchThread
from queasy.store.net.topology import Exchange, SentinelRoute, route_to
from queasy.store.net.url import Target
from queasy.store.records import Dispatched, DispatchItem
from queasy.store.retrying import FailedTry, call, connect
from queasy.store.undo import SyncUndos, UndoCommand, undo_once_answered
from queasy.store.waits import SharedWaits

__all__ = ["AsyncStore", "SyncStore"]

T = TypeVar("T")
# For one thread whose calls are short.
FEW_CONNECTIONS = 2
# The share of the time an answer may take that a call may spend waiting on the server for an item.
WAIT_SHARE = 0.4
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
        self.on_close: set[Callable[[], None]] = set()
        """Called when the store is being closed."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._start()

    def _start(self) -> None:
        """Makes all that belongs to one event loop: connections, locks, tasks."""
        self._route = route = route_to(self._target)
        self._transport = AsyncTransport(
            self._target, self._timeout, self._folder, self._connections, route.on_connection_lost
        )
        self._watch: SentinelWatch | None = None
        if isinstance(route, SentinelRoute):
            self._watch = SentinelWatch(self._transport, route, self._transport.leave)
            route.use_watch(self._watch.start)
        self._connected = False
        self._libraries = {NATIVE}
        """The libraries that are on the server, once it was connected to."""
        self._connecting = asyncio.Lock()
        self._waits = SharedWaits(self._call)
        self._coalescers: dict[tuple[str, Durability], DispatchCoalescer] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self.listener = AsyncListener(self._transport, self._route)

    def _bind(self) -> None:
        """Binds the store to the running loop: connections belong to one loop.

        Starts anew if the last loop was closed; raises if that loop is still open.
        """
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
        """Checks the server and loads the library, once. The first command does it, too."""
        self._bind()
        async with self._connecting:
            if not self._connected:
                await self._transport.run(connect(self._route, self._timeout))
                self._connected = True

    async def _load(self, library: Library) -> None:
        """Loads another library than the native one, once."""
        async with self._connecting:
            if library not in self._libraries:
                await self._transport.run(connect(self._route, self._timeout, library))
                self._libraries.add(library)

    @property
    def was_reached(self) -> bool:
        """Whether the server was ever reached."""
        return self._connected

    @property
    def longest_wait(self) -> float:
        """How many seconds one call may wait on the server: see `wait`."""
        return self._transport.limit * WAIT_SHARE

    async def health(self) -> Health:
        """The findings of an inspection of the server. Problems are reported, not raised."""
        self._bind()
        return await self._transport.run(inspect_server(self._route))

    async def run(self, command: Command[T], durability: Durability = "ack") -> T:
        """The answer to a command."""
        self._bind()
        if not self._connected:
            await self.connect()
        if command.library not in self._libraries:
            await self._load(command.library)
        if not command.needs_number:
            return await self._run(command, durability)
        with self.callers.number(command) as numbered:
            return await self._run(numbered, durability)

    def _run_numbered(self, durability: Durability, command: Command[T]) -> Awaitable[T]:
        """The answer to a command that a coalescer has numbered. Every dispatch takes this path."""
        return (self._run if self._connected else self.run)(command, durability)

    async def _run(self, command: Command[T], durability: Durability) -> T:
        failed = None
        address = self._route.known
        if address is not None and durability == "ack":
            # Nearly every call is one exchange that succeeds. `call` handles everything else.
            began, sent = time.monotonic(), (command.packed or command.words(),)
            try:
                (reply,) = await self._transport.exchange(Exchange(address, sent))
                return command.answer(reply)
            except PROBLEMS as problem:
                failed = FailedTry(address, began, problem)
        steps = call(
            command, self._route, patience=self._timeout, durability=durability, failed=failed
        )
        return await self._transport.run(steps)

    async def _call(self, command: Command[T]) -> T:
        return await self._transport.run(call(command, self._route, patience=self._timeout))

    async def wait(self, command: WaitForItem, seconds: float) -> None:
        """Waits on the server, at most some seconds, over a connection that other calls do not use.
        A caller that is cancelled leaves nothing on the server.
        """
        self._bind()
        if not self._connected:
            await self.connect()
        await self._waits.wait(command, seconds)

    def run_later(self, command: Command[Any]) -> None:
        """Runs a command in the background; logs an error. `close` waits for it."""
        self._in_background(self._run_and_log(command))

    async def _run_and_log(self, command: Command[Any]) -> None:
        try:
            await self.run(command)
        except QueasyError as error:
            log.warning("%s in the background failed: %s", command.title, error)

    def undo_later(
        self, running: asyncio.Future[Any], undo: UndoCommand, expires_in: float
    ) -> None:
        """Undoes, in the background, a call whose answer can no longer reach its caller."""
        self._in_background(
            undo_once_answered(running, undo, expires_in, self.run, self._sleep_unless_closing)
        )

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _sleep_unless_closing(self, seconds: float) -> bool:
        """Sleeps; returns False, early, when the store is being closed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        return not self._closing.is_set()

    def dispatch(
        self, commands: QueueCommands, item: DispatchItem, durability: Durability = "ack"
    ) -> Awaitable[Dispatched]:
        """Dispatches one job; dispatches awaited at the same time share a round trip."""
        self._bind()
        coalescer = self._coalescers.get((commands.keys.base, durability))
        if coalescer is None:
            coalescer = DispatchCoalescer(partial(self._run_numbered, durability))
            self._coalescers[commands.keys.base, durability] = coalescer
        return coalescer.dispatch(commands, item)

    async def close(self) -> None:
        """Sends the dispatches that wait, then closes every connection."""
        self._bind()
        for callback in list(self.on_close):
            callback()
        self._closing.set()
        self._waits.close()
        for coalescer in list(self._coalescers.values()):
            await coalescer.wait_until_sent()
        if self._background:
            await asyncio.wait(self._background)
        await self.listener.close()
        if self._watch is not None:
            await self._watch.close()
        await self._transport.close()
        self._closing.clear()
        self._coalescers.clear()  # they belong to this loop; the next use may be in another
        self._loop = None


class SyncStore:
    """Runs commands in the calling thread. Safe to share between threads."""

    def __init__(self, target: Target, timeout: float, folder: Path | None = None) -> None:
        self._target = target
        self._folder = folder
        self._route = route = route_to(target)
        self._transport = transport = SyncTransport(target, timeout, folder)
        self._watch: SentinelWatchThread | None = None
        if isinstance(route, SentinelRoute):
            self._watch = SentinelWatchThread(target, timeout, route, transport.leave)
            route.use_watch(self._watch.start)
            weakref.finalize(self, self._watch.stop)  # a client that is not closed
        self._timeout = timeout
        self.callers = Callers()
        self._connected = False
        self._libraries = {NATIVE}
        self._connecting = threading.Lock()
        self.listener = SyncListener(self._transport, self._route)
        self.undos = SyncUndos(self.run)
        self.closings = 0
        """How often it was closed: an operation that began before the last close must end."""
        self.on_close: set[Callable[[], None]] = set()
        """Called when the store is being closed."""

    def connect(self) -> None:
        """Checks the server and loads the library, once. The first command does it, too."""
        with self._connecting:
            if not self._connected:
                self._transport.run(connect(self._route, self._timeout))
                self._connected = True

    def _load(self, library: Library) -> None:
        """Loads another library than the native one, once."""
        with self._connecting:
            if library not in self._libraries:
                self._transport.run(connect(self._route, self._timeout, library))
                self._libraries.add(library)

    @property
    def was_reached(self) -> bool:
        """Whether the server was ever reached."""
        return self._connected

    @property
    def longest_wait(self) -> float:
        """How many seconds one call may wait on the server: see `wait`."""
        return limit_of(self._target, self._timeout) * WAIT_SHARE

    def health(self) -> Health:
        """The findings of an inspection of the server. Problems are reported, not raised."""
        return self._transport.run(inspect_server(self._route))

    def run(self, command: Command[T], durability: Durability = "ack") -> T:
        """The answer to a command."""
        if not self._connected:
            self.connect()
        if command.library not in self._libraries:
            self._load(command.library)
        if not command.needs_number:
            return self._run(command, durability)
        with self.callers.number(command) as numbered:
            return self._run(numbered, durability)

    def _run(self, command: Command[T], durability: Durability) -> T:
        failed = None
        address = self._route.known
        if address is not None and durability == "ack":
            # Nearly every call is one exchange that succeeds. `call` handles everything else.
            began, sent = time.monotonic(), (command.packed or command.words(),)
            try:
                (reply,) = self._transport.exchange(Exchange(address, sent))
                return command.answer(reply)
            except PROBLEMS as problem:
                failed = FailedTry(address, began, problem)
        steps = call(
            command, self._route, patience=self._timeout, durability=durability, failed=failed
        )
        return self._transport.run(steps)

    def wait(self, command: WaitForItem) -> None:
        """Waits on the server for the seconds that the command says."""
        if not self._connected:
            self.connect()
        self._transport.run(call(command, self._route, patience=self._timeout))

    def for_event_loop(self) -> AsyncStore:
        """A store for the same server, for an event loop in another thread."""
        return AsyncStore(self._target, self._timeout, self._folder, FEW_CONNECTIONS)

    def drop_connections(self) -> None:
        """Closes the idle connections; the next call opens another."""
        self._transport.close()

    def close(self) -> None:
        """Closes the connections, and ends the operations that run in other threads."""
        self.closings += 1
        for callback in list(self.on_close):
            callback()
        self.listener.interrupt()
        if self._watch is not None:
            self._watch.stop()
        self._transport.close()
