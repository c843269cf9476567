"""Follows what sentinels announce, so that a client leaves a primary as soon as it is replaced.

Sentinel lets the old primary accept writes for about ten seconds after it has made a replica the
primary, and all of them are lost. So a client does not wait until the old primary refuses it:

1. Just before a sentinel promotes a replica, calls are held.
2. When the replica is a primary, and at every `+switch-master`, the client ends its connections to
   other servers and asks the sentinels. Calls without a reply are sent again, to the new primary.
3. While no sentinel is heard, the client asks the sentinels before each call (`SentinelRoute`).

There is one implementation, for event loops. A sync client runs it in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from queasy.store.net.faults import Lost, NotSent
from queasy.store.net.pool import AsyncTransport
from queasy.store.net.server_errors import NoPermissionError, ResponseError
from queasy.store.net.topology import Exchange, SentinelRoute
from queasy.store.net.url import Address, Target

__all__ = ["SentinelWatch", "SentinelWatchThread"]

log = logging.getLogger("queasy")

# A sentinel announces this up to 100 ms before it promotes a replica.
PROMOTING = "+failover-state-send-slaveof-noone"
# The replica is a primary. Other replicas follow it before the sentinel announces the switch.
PROMOTED = "+promoted-slave"
SWITCHED = "+switch-master"
GIVEN_UP = "-failover-abort-slave-timeout"
CHANNELS = (PROMOTING, PROMOTED, SWITCHED, GIVEN_UP)

# A connection is checked this often. It is lost if nothing arrived since the check before.
CHECK_SECONDS = 5.0
FIRST_PAUSE_SECONDS = 0.1
MAX_PAUSE_SECONDS = 5.0
# A sentinel that the URL does not name is given up after this many failures in a row.
MAX_FAILURES = 5
STOP_TIMEOUT_SECONDS = 2.0

Leave = Callable[[Address], None]
"""Ends the connections to every server but the one at this address."""


class SentinelWatch:
    """Listens to every sentinel in the running event loop."""

    def __init__(self, transport: AsyncTransport, route: SentinelRoute, leave: Leave) -> None:
        self._transport = transport
        self._route = route
        self._leave = leave
        self._tasks: dict[Address, asyncio.Task[None]] = {}
        self._warned = False

    def start(self) -> None:
        """Starts to listen, in the background, unless it has been started."""
        if not self._tasks:
            for sentinel in self._route.target.addresses:
                self._begin(sentinel)

    def _begin(self, sentinel: Address) -> None:
        if sentinel not in self._tasks:
            self._tasks[sentinel] = asyncio.create_task(self._follow(sentinel))

    async def close(self) -> None:
        """Stops listening."""
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _follow(self, sentinel: Address) -> None:
        """Listens to one sentinel; connects again whenever the connection is lost.

        Gives up a sentinel that the URL does not name, if it cannot be reached: perhaps it was
        removed, or has another address in this network.
        """
        failures = 0
        named = sentinel in self._route.target.addresses
        while named or failures < MAX_FAILURES:
            connection = _Connection(sentinel, self._hear)
            try:
                await connection.listen(self._transport)
                failures = 0
                self._route.sentinel_heard(sentinel)
                await self._discover(sentinel)
                problem = await connection.wait_until_lost()
            except (NotSent, Lost, OSError) as unreachable:
                failures, problem = failures + 1, unreachable
                self._route.sentinel_away(sentinel)
            except ResponseError as refusal:  # it may still answer questions
                failures, problem = failures + 1, refusal
                self._warn_if_denied(sentinel, refusal)
            finally:
                connection.end()
                self._route.sentinel_lost(sentinel)
            log.debug("sentinel %s is not heard: %s", sentinel, problem)
            # With jitter: all clients lose a sentinel at the same moment.
            pause = min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(failures, 10))
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        del self._tasks[sentinel]

    async def _discover(self, sentinel: Address) -> None:
        """Also listens to the sentinels that this one knows.

        Only the sentinel that leads a failover announces the promotion before it begins, and any of
        them may lead it.
        """
        question = ("SENTINEL", "SENTINELS", self._route.target.service)
        answer: Any
        (answer,) = await self._transport.exchange(Exchange(sentinel, (question,), sentinel=True))
        if isinstance(answer, Exception):
            return  # this user may not ask
        for words in answer:
            known = dict(zip(words[::2], words[1::2], strict=False))
            self._begin(Address(known[b"ip"].decode(), int(known[b"port"])))

    def _warn_if_denied(self, sentinel: Address, problem: Exception) -> None:
        if isinstance(problem, NoPermissionError) and not self._warned:
            self._warned = True
            log.warning(
                "sentinel %s: the user may not subscribe (%s), so every call asks the sentinels "
                "first. Grant +subscribe +ping and the channels (ACL SETUSER)",
                sentinel, problem,
            )  # fmt: skip

    def _hear(self, sentinel: Address, channel: str, text: str) -> None:
        """Handles an announcement; the loop calls it as soon as it has arrived."""
        try:
            service, old, new = _read(channel, text)
        except ValueError:  # not the form of a sentinel
            return
        if service != self._route.target.service:
            return
        log.debug("sentinel %s: %s %s", sentinel, channel, text)
        if channel == PROMOTING:
            self._route.hold()
        elif channel == GIVEN_UP:
            self._route.release(sentinel)
        elif self._route.known != new:
            self._route.switch(sentinel, old)
            self._leave(new)


def _read(channel: str, text: str) -> tuple[str, Address, Address]:
    """The service of an announcement, its primary, and the replica that takes over. Where no
    replica is named, the primary is returned twice.
    """
    words = text.split(" ")
    if channel == SWITCHED:
        service, host, port, new_host, new_port = words
    elif "@" in words:
        _, _, new_host, new_port, _, service, host, port = words
    else:
        _, service, host, port = words
        new_host, new_port = host, port
    return service, Address(host, int(port)), Address(new_host, int(new_port))


class _Connection:
    """One subscription to the announcements of one sentinel."""

    def __init__(self, sentinel: Address, hear: Callable[[Address, str, str], None]) -> None:
        self._sentinel = sentinel
        self._hear = hear
        self._wire: Any = None
        self._received = 0
        self._subscribed = 0
        self._changed = asyncio.Event()
        self._problem: Exception | None = None

    async def listen(self, transport: AsyncTransport) -> None:
        """Subscribes; returns once the sentinel has confirmed that."""
        self._wire = await transport.open_push_connection(
            self._sentinel, self._on_push, self._on_lost, sentinel=True
        )
        self._wire.send([("SUBSCRIBE", *CHANNELS)])
        try:
            async with transport.in_time():
                while self._subscribed < len(CHANNELS):
                    await self._wait_for_change()
        except TimeoutError as late:
            raise NotSent("no answer") from late

    async def wait_until_lost(self) -> Exception:
        """Waits until the connection is lost, or silent for `CHECK_SECONDS`; returns why."""
        while True:
            before = self._received
            self._wire.send([("PING",)])
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    while True:
                        await self._wait_for_change()
            except TimeoutError as silent:
                if self._received == before:
                    return silent
            except Exception as problem:
                return problem

    def end(self) -> None:
        if self._wire is not None:
            self._wire.end()

    async def _wait_for_change(self) -> None:
        if self._problem is None:
            self._changed.clear()
            await self._changed.wait()
        if self._problem is not None:
            raise self._problem

    def _on_push(self, reply: Any) -> None:
        self._received += 1
        if isinstance(reply, Exception):
            self._on_lost(reply)
            return
        if reply[0] == b"message":
            self._hear(self._sentinel, reply[1].decode(), reply[2].decode("utf-8", "replace"))
        elif reply[0] == b"subscribe":
            self._subscribed += 1
        self._changed.set()

    def _on_lost(self, problem: Exception) -> None:
        self._problem = problem
        self._changed.set()


class SentinelWatchThread:
    """Runs a watch for a sync client, in a thread with an event loop of its own."""

    def __init__(self, target: Target, timeout: float, route: SentinelRoute, leave: Leave) -> None:
        self._target = target
        self._timeout = timeout
        self._route = route
        self._leave = leave
        self._lock = threading.Lock()
        self._running: tuple[threading.Thread, Future[None]] | None = None
        """The thread, and the future that ends it."""
        _threads.add(self)

    def start(self) -> None:
        """Starts the thread, unless it runs."""
        with self._lock:
            if self._running is None:
                stop: Future[None] = Future()
                thread = threading.Thread(
                    target=self._run, args=(stop,), name="queasy-sentinel-watch", daemon=True
                )
                self._running = thread, stop
                thread.start()

    def _run(self, stop: Future[None]) -> None:
        asyncio.run(self._watch(stop))

    async def _watch(self, stop: Future[None]) -> None:
        transport = AsyncTransport(self._target, self._timeout, None)
        watch = SentinelWatch(transport, self._route, self._leave)
        watch.start()
        await asyncio.wrap_future(stop)
        await watch.close()
        await transport.close()

    def stop(self) -> None:
        """Ends the thread. The next call of the client starts another."""
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            thread, stop = running
            stop.set_result(None)
            # The garbage collector may stop a client that was not closed, even in this very thread.
            if thread is not threading.current_thread():
                thread.join(STOP_TIMEOUT_SECONDS)

    def forked(self) -> None:
        """The thread is not there in this process. The next call starts another."""
        self._lock, self._running = threading.Lock(), None
        self._route.reset()


_threads: weakref.WeakSet[SentinelWatchThread] = weakref.WeakSet()


def _after_fork() -> None:
    for thread in list(_threads):
        thread.forked()


os.register_at_fork(after_in_child=_after_fork)
