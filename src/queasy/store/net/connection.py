"""How a connection is opened: the address, TLS, and the greeting.

redis-py is not used: its connections bring streams and pools that cost more than the calls made
over them.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import hiredis
import msgspec

from queasy.store.net.faults import NotSent
from queasy.store.net.server_errors import ResponseError, parse_error
from queasy.store.net.url import Address, Target

__all__ = [
    "INCOMPLETE",
    "Endpoint",
    "RawCommand",
    "RawCommands",
    "check_greeting",
    "new_reader",
    "pack",
]

RawCommand = tuple[str | bytes, ...] | bytes
"""A command as words, without numbers (see `Command.words`), or already packed into bytes."""
RawCommands = Sequence[RawCommand]

# A sentinel has little to do, so it answers quickly or not at all.
SENTINEL_TIMEOUT_SECONDS = 2.0
TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
CERTIFICATE_CHECKS = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
# A host that vanished sends nothing. These probe it, and end the connection within a minute.
TCP_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
# What a reader returns while a reply is incomplete. It cannot be None, which is a reply.
INCOMPLETE = object()


_pack: Callable[[tuple[str | bytes, ...]], bytes] = cast("Any", hiredis).pack_command


def new_reader() -> hiredis.Reader:
    """A parser of replies; an error reply becomes an exception, as a value."""
    return hiredis.Reader(replyError=parse_error, notEnoughData=INCOMPLETE)


def pack(commands: RawCommands) -> bytes:
    """The bytes of one or more commands."""
    if len(commands) == 1:
        (command,) = commands
        return command if isinstance(command, bytes) else _pack(command)
    return b"".join([pack((command,)) for command in commands])


def check_greeting(replies: list[Any]) -> None:
    """Raises if the server refused the greeting."""
    for reply in replies:
        if isinstance(reply, ResponseError):
            raise reply
        if isinstance(reply, Exception):  # the server takes no more connections
            raise NotSent(str(reply)) from reply


def limit_of(target: Target, timeout: float, sentinel: bool = False) -> float:
    """Seconds that one answer may take. Where another server may take over it is only half of the
    timeout, so that a call has time left to find that server.
    """
    if sentinel:
        return min(timeout / 2, SENTINEL_TIMEOUT_SECONDS)
    return timeout / 2 if target.kind in ("sentinel", "cluster") else timeout


class Endpoint(msgspec.Struct, frozen=True):
    """Everything needed to open a connection to one server."""

    address: Address
    options: dict[str, Any]
    """From the URL: user, password, database and TLS settings."""
    tls: bool
    limit: float
    """Seconds that an answer may take."""
    sentinel: bool = False

    def __repr__(self) -> str:
        return f"Endpoint({self.address}, tls={self.tls})"  # the options hold a password

    @classmethod
    def to(cls, target: Target, address: Address, timeout: float, sentinel: bool) -> Endpoint:
        options = target.sentinel_connect if sentinel else target.connect
        for name in TLS_FILES:  # the operating system's error would not name the file
            if name in options and not Path(options[name]).is_file():
                raise NotSent(f"{name}: there is no file {options[name]}")
        tls = target.tls and not address.path
        return cls(address, options, tls, limit_of(target, timeout, sentinel), sentinel)

    @property
    def late(self) -> str:
        """The message for a late answer. It mentions TLS, because a server that does not speak TLS
        waits for the rest of a line instead of answering.
        """
        return f"no answer in {self.limit:g} s{' over TLS' if self.tls else ''}"

    def greeting(self) -> RawCommands:
        """The commands to send first. They are sent together: any error ends the connection."""
        user, password = self.options.get("username"), self.options.get("password")
        words: list[tuple[str, ...]] = []
        if user:
            words.append(("AUTH", user, password or ""))
        elif password:
            words.append(("AUTH", password))
        words.append(("CLIENT", "SETNAME", "queasy"))
        if database := self.options.get("db"):
            words.append(("SELECT", str(database)))
        return words

    def context(self) -> ssl.SSLContext | None:
        """A new TLS context; a new one for each connection, since certificates are renewed."""
        if not self.tls:
            return None
        of = self.options.get
        context = ssl.create_default_context()
        verify = CERTIFICATE_CHECKS[of("ssl_cert_reqs", "required")]
        context.check_hostname = verify != ssl.CERT_NONE and of("ssl_check_hostname", True)
        context.verify_mode = verify
        if of("ssl_certfile") or of("ssl_keyfile"):
            context.load_cert_chain(of("ssl_certfile") or "", of("ssl_keyfile"))
        if of("ssl_ca_certs"):
            context.load_verify_locations(of("ssl_ca_certs"))
        return context

    def prepare(self, opened: Any) -> None:
        """Sets the options of a new TCP socket."""
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in TCP_KEEPALIVE.items():
            if hasattr(socket, name):  # some systems do not have all of them
                opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def why(self, problem: BaseException) -> str:
        """The message for a connection that could not be opened."""
        if isinstance(problem, TimeoutError) and not problem.errno:
            return self.late
        if not isinstance(problem, OSError):
            return str(problem) or type(problem).__name__
        number, text = (*problem.args, "", "")[:2]
        where = self.address.path or f"{self.address.host}:{self.address.port}"
        return " ".join(f"Error {number} connecting to {where}. {text}".split())
