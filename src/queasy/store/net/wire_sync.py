"""One connection for code that does not await: one call at a time."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from typing import Any, cast

from queasy.store.net.connection import (
    INCOMPLETE,
    Endpoint,
    RawCommands,
    check_greeting,
    new_reader,
    pack,
)
from queasy.store.net.faults import Lost, NotSent
from queasy.store.net.server_errors import ProtocolError, ResponseError

__all__ = ["SyncWire"]

SYNC_READ_BUFFER_BYTES = 64 * 1024
HAS_POLL = hasattr(select, "poll")


class SyncWire:
    """A connection for one thread at a time. After a call that did not read all its replies it must
    be closed: the next call would take them for its own.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._reader = new_reader()
        self._buffer = bytearray(SYNC_READ_BUFFER_BYTES)
        self._socket: socket.socket | None = None
        self._hung_up = False

    def open(self) -> None:
        """Connects and greets the server. Meanwhile another thread may hang up."""
        endpoint = self.endpoint
        try:
            self._socket = self._connect()
            if self._hung_up:  # while it connected: the greeting finds it closed
                self.hang_up()
            greeting = endpoint.greeting()
            check_greeting(self.call(pack(greeting), len(greeting)))
        except BaseException as problem:
            self.close()
            if isinstance(problem, Lost):
                raise NotSent(str(problem)) from problem
            if isinstance(problem, (NotSent, ResponseError)) or not isinstance(problem, Exception):
                raise
            raise NotSent(endpoint.why(problem)) from problem
        if HAS_POLL:  # unlike select, it has no limit on descriptor numbers
            self._poll = select.poll()
            self._poll.register(self._socket, select.POLLIN)

    def _connect(self) -> socket.socket:
        endpoint, address = self.endpoint, self.endpoint.address
        if address.path:
            opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket = opened  # so that it is closed if connecting fails
            opened.settimeout(endpoint.limit)
            opened.connect(address.path)
            return opened
        opened = socket.create_connection((address.host, address.port), endpoint.limit)
        self._socket = opened
        endpoint.prepare(opened)
        context = endpoint.context()
        if context is None:
            return opened
        return context.wrap_socket(opened, server_hostname=address.host)

    def call(self, packed: bytes, reply_count: int) -> list[Any]:
        """Sends packed commands and returns `reply_count` replies, errors as values."""
        self._send(packed)
        return [self.read() for _ in range(reply_count)]

    def send(self, commands: RawCommands) -> None:
        self._send(pack(commands))

    def _send(self, packed: bytes) -> None:
        opened = self._socket
        if opened is None:
            raise NotSent("closed")
        try:
            opened.sendall(packed)
        except OSError as problem:
            raise Lost(self._why(problem)) from problem

    def read(self) -> Any:
        """The next reply."""
        reader, buffer, opened = self._reader, self._buffer, self._socket
        if opened is None:
            raise Lost("closed")
        try:
            while (reply := reader.gets()) is INCOMPLETE:
                size = opened.recv_into(buffer)
                if size == 0:
                    raise Lost("Connection closed by server")
                reader.feed(buffer, 0, size)  # pyright: ignore[reportArgumentType]
        except (OSError, ProtocolError) as problem:
            raise Lost(self._why(problem)) from problem
        return reply

    def confirm(self) -> None:
        """Reads the next reply; raises it if it is an error."""
        if isinstance(reply := self.read(), Exception):
            raise reply

    def _why(self, problem: Exception) -> str:
        if isinstance(problem, TimeoutError):
            return self.endpoint.late
        if isinstance(problem, OSError) and problem.errno:
            return f"Error {problem.errno} while talking to the server. {problem.strerror}"
        return str(problem) or type(problem).__name__

    def has_more(self, seconds: float = 0.0) -> bool:
        """Whether there is something to read, or the connection has ended. An idle connection that
        has more cannot be used again.
        """
        opened = self._socket
        if opened is None or self._reader.has_data():
            return True
        if self.endpoint.tls and cast("ssl.SSLSocket", opened).pending():
            return True
        if HAS_POLL:
            return bool(self._poll.poll(seconds * 1000))
        return bool(select.select([opened], [], [], seconds)[0])

    def hang_up(self) -> None:
        """Ends the connection while another thread opens it or reads from it: that thread finds it
        closed.
        """
        self._hung_up = True
        opened = self._socket
        if opened is not None:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        opened, self._socket = self._socket, None
        if opened is not None:
            opened.close()
