"""Bytes to servers and back, on redis-py's connections: the only code that does I/O.

Twice, because one awaits and the other does not; neither knows what it carries.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, TypeVar

import redis
import redis.asyncio as aredis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    RedisError,
    ResponseError,
)
from redis.retry import Retry

from queasy.store import embedded
from queasy.store.faults import Lost, NotSent
from queasy.store.route import Effect, Ensure, Exchange, HangUp, Pause
from queasy.store.url import Address, Target, parse_url

__all__ = ["AsyncTransport", "SyncTransport"]

T = TypeVar("T")
log = logging.getLogger("queasy")

MOST_CONNECTIONS = 50
# A sentinel has nothing else to do than to answer.
SENTINEL = 2.0
UNBOUNDED = 2**31  # redis-py's own bound fails instead of waiting
# What a server answers, although redis-py files some of it under lost connections.
REFUSALS = (AuthenticationError, AuthorizationError, BusyLoadingError, ResponseError)
BROKEN = (RedisError, OSError, EOFError, asyncio.IncompleteReadError)
TLS_FILES = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"}


def _limit(target: Target, timeout: float, sentinel: bool = False) -> float:
    """How long one answer may take. Where another server may have taken over, a call must have
    time left to find it.
    """
    if sentinel:
        return min(timeout / 2, SENTINEL)
    return timeout / 2 if target.kind in ("sentinel", "cluster") else timeout


def _over(target: Target) -> str:
    """Said of what takes too long: a server that speaks no TLS waits for the rest of a line."""
    return " over TLS" if target.tls else ""


def _arguments(
    target: Target, address: Address, timeout: float | None, sentinel: bool
) -> dict[str, Any]:
    own = target.sentinel_connect if sentinel else target.connect
    for name in TLS_FILES & own.keys():  # the operating system would not say which one
        if not Path(own[name]).is_file():
            raise NotSent(f"{name}: there is no file {own[name]}")
    arguments: dict[str, Any] = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "protocol": 2,
        "client_name": "queasy",
        # Two more commands for each connection, refused to whoever has no more than he needs.
        "driver_info": None,
        **own,
    }
    if address.path:
        arguments["path"] = address.path
    else:
        arguments |= {"host": address.host, "port": address.port, "socket_keepalive": True}
    return arguments


class AsyncTransport:
    """Carries steps out in an event loop."""

    def __init__(
        self,
        target: Target,
        timeout: float,
        folder: Path | None,
        connections: int = MOST_CONNECTIONS,
    ) -> None:
        self._target = target
        self._timeout = timeout
        self._folder = folder
        self._pools: dict[tuple[Address, bool], Any] = {}
        # More calls than this to one server stand in line, first come first served; it does
        # one at a time anyway.
        self._connections = connections
        self._turns: dict[Address, asyncio.Semaphore] = {}

    async def run(self, steps: Generator[Effect, Any, T]) -> T:
        """Performs each step and returns what the last one came to."""
        try:
            effect = next(steps)
            while True:
                try:
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
                return await self._exchange_in_time(effect)
            case Pause(seconds=seconds):
                return await asyncio.sleep(seconds)
            case Ensure():
                url = await asyncio.to_thread(embedded.ensure, self._folder)
                log.debug("using the embedded server at %s", url)
                return parse_url(url).addresses[0]
            case HangUp(address=address):
                if pool := self._pools.get((address, False)):
                    await pool.disconnect(inuse_connections=False)
                return None

    def _turn(self, address: Address) -> asyncio.Semaphore:
        turn = self._turns.get(address)
        if turn is None:
            turn = self._turns[address] = asyncio.Semaphore(self._connections)
        return turn

    async def _exchange_in_time(self, exchange: Exchange) -> list[Any]:
        # One timer around it all, standing in line for a connection included. redis-py's own
        # (socket_timeout) is off: it uses `wait_for`, which before Python 3.12 swallows a
        # cancellation that comes as the wait ends.
        began = asyncio.Event()
        limit = _limit(self._target, self._timeout, exchange.sentinel)
        try:
            async with asyncio.timeout(limit), self._turn(exchange.address):
                return await self._exchange(exchange, began)
        except TimeoutError as problem:
            kind = Lost if began.is_set() else NotSent
            raise kind(f"no answer in {limit:g} s{_over(self._target)}") from problem

    async def _exchange(self, exchange: Exchange, began: asyncio.Event) -> list[Any]:
        pool = self._pool(exchange.address, exchange.sentinel)
        try:
            connection = await pool.get_connection()
        except REFUSALS:
            raise
        except BROKEN as problem:
            if isinstance(problem.__cause__, REFUSALS):  # so redis-py files it for unix sockets
                raise problem.__cause__ from None
            raise NotSent(str(problem) or type(problem).__name__) from problem
        packed = connection.pack_commands(exchange.commands)
        answered = False
        began.set()
        try:
            await connection.send_packed_command(packed, check_health=False)
            replies = [await self._read(connection) for _ in exchange.commands]
            answered = True
            return replies
        except BROKEN as problem:
            raise Lost(str(problem) or type(problem).__name__) from problem
        finally:
            if not answered:  # also when cancelled: the reply would be taken for the next call's
                await connection.disconnect(nowait=True)
            await pool.release(connection)

    async def _read(self, connection: Any) -> Any:
        try:
            return await connection.read_response()
        except REFUSALS as error:
            return error

    def _pool(self, address: Address, sentinel: bool) -> Any:
        pool = self._pools.get((address, sentinel))
        if pool is None:
            kind, arguments = self._connection(address, sentinel)
            pool = aredis.ConnectionPool(kind, max_connections=UNBOUNDED, **arguments)
            self._pools[address, sentinel] = pool
        return pool

    def _connection(self, address: Address, sentinel: bool = False) -> tuple[Any, dict[str, Any]]:
        kind: Any = aredis.UnixDomainSocketConnection if address.path else aredis.Connection
        if self._target.tls and not address.path:
            kind = aredis.SSLConnection
        arguments = _arguments(self._target, address, None, sentinel)
        return kind, arguments | {"retry": AsyncRetry(NoBackoff(), 0)}

    async def open_line(self, address: Address) -> Any:
        """A connection of its own, on which one may wait for ever."""
        kind, arguments = self._connection(address)
        line = kind(**arguments)
        try:
            async with self.in_time():
                await line.connect()
        except BaseException as problem:
            await line.disconnect(nowait=True)
            if isinstance(problem.__cause__, REFUSALS):
                raise problem.__cause__ from None
            raise
        return line

    def in_time(self) -> asyncio.Timeout:
        """How long an answer may take."""
        return asyncio.timeout(self.limit)

    @property
    def limit(self) -> float:
        return _limit(self._target, self._timeout)

    async def close(self) -> None:
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            await pool.disconnect()


class SyncTransport:
    """Carries steps out in the calling thread; safe to share between threads."""

    def __init__(self, target: Target, timeout: float, folder: Path | None) -> None:
        self._target = target
        self._timeout = timeout
        self._folder = folder
        self._pools: dict[tuple[Address, bool], Any] = {}
        self._lock = threading.Lock()

    def run(self, steps: Generator[Effect, Any, T]) -> T:
        """Performs each step and returns what the last one came to."""
        try:
            effect = next(steps)
            while True:
                try:
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
                return self._exchange(effect)
            case Pause(seconds=seconds):
                return time.sleep(seconds)
            case Ensure():
                url = embedded.ensure(self._folder)
                log.debug("using the embedded server at %s", url)
                return parse_url(url).addresses[0]
            case HangUp(address=address):
                with self._lock:
                    pool = self._pools.get((address, False))
                if pool is not None:
                    pool.disconnect(inuse_connections=False)
                return None

    def _exchange(self, exchange: Exchange) -> list[Any]:
        pool = self._pool(exchange.address, exchange.sentinel)
        try:
            connection = pool.get_connection()
        except REFUSALS:
            raise
        except redis.TimeoutError as problem:
            raise NotSent(f"{problem}{_over(self._target)}") from problem
        except BROKEN as problem:
            raise NotSent(str(problem) or type(problem).__name__) from problem
        answered = False
        try:
            packed = connection.pack_commands(exchange.commands)
            connection.send_packed_command(packed, check_health=False)
            replies = [self._read(connection) for _ in exchange.commands]
            answered = True
            return replies
        except BROKEN as problem:
            raise Lost(str(problem) or type(problem).__name__) from problem
        finally:
            if not answered:  # also on KeyboardInterrupt: the reply would be the next call's
                connection.disconnect()
            pool.release(connection)

    def _read(self, connection: Any) -> Any:
        try:
            return connection.read_response()
        except REFUSALS as error:
            return error

    def _pool(self, address: Address, sentinel: bool) -> Any:
        with self._lock:
            pool = self._pools.get((address, sentinel))
            if pool is None:
                kind, arguments = self._connection(address, sentinel)
                pool = redis.ConnectionPool(kind, max_connections=UNBOUNDED, **arguments)
                self._pools[address, sentinel] = pool
            return pool

    def _connection(self, address: Address, sentinel: bool = False) -> tuple[Any, dict[str, Any]]:
        kind: Any = redis.UnixDomainSocketConnection if address.path else redis.Connection
        if self._target.tls and not address.path:
            kind = redis.SSLConnection
        limit = _limit(self._target, self._timeout, sentinel)
        arguments = _arguments(self._target, address, limit, sentinel)
        return kind, arguments | {"retry": Retry(NoBackoff(), 0)}

    def open_line(self, address: Address) -> Any:
        """A connection of its own, on which one may wait for ever."""
        kind, arguments = self._connection(address)
        line = kind(**arguments)
        line.connect()
        return line

    def close(self) -> None:
        with self._lock:
            pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.disconnect()
