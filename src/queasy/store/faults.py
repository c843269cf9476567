"""What the server's errors mean: one table, from its words to what is done about them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

from queasy.errors import (
    AccessDenied,
    InvalidInput,
    OutOfMemory,
    ProtocolError,
    QueasyError,
    ReadOnly,
    ServerError,
    Unreachable,
    Unsupported,
)

__all__ = ["Fault", "Lost", "NotSent", "Remedy", "diagnose"]


class NotSent(Exception):
    """The call did not leave: no connection. Safe to send again."""


class Lost(Exception):
    """The call left, no answer came. It may have been carried out."""


class Remedy(Enum):
    """What mends a fault."""

    NONE = auto()
    WAIT = auto()
    """Passes by itself; the route may have changed."""
    ROUTE = auto()
    """Another server now has the role of this one."""
    LOAD = auto()
    """The library is not there."""
    MOVED = auto()
    ASK = auto()


@dataclass(frozen=True, slots=True)
class Fault:
    remedy: Remedy
    error: QueasyError
    """What to raise when the remedy does not help in time."""
    uncertain: bool = False
    """The call may have been carried out."""


def diagnose(problem: Exception, where: str, doing: str) -> Fault:
    """The fault behind an exception of the transport or of redis-py."""
    text = str(problem)
    at = f"{doing} on {where}"
    match problem:
        case Lost():
            return Fault(Remedy.WAIT, Unreachable(f"{at}: no answer ({text})"), uncertain=True)
        case NotSent():
            return Fault(
                Remedy.WAIT,
                Unreachable(
                    f"cannot reach {where} ({text}). Is the server running, and is the URL "
                    "(the url argument, or QUEASY_URL) right?"
                ),
            )
        case MovedError():
            return Fault(Remedy.MOVED, ServerError(f"{at}: the cluster keeps moving the slot"))
        case AskError():
            return Fault(Remedy.ASK, ServerError(f"{at}: the cluster keeps moving the slot"))
        case AuthenticationError() | AuthorizationError() | AuthenticationWrongNumberOfArgsError():
            return Fault(
                Remedy.NONE,
                AccessDenied(
                    f"{where} refused the user or password ({text}). Put the right ones into the "
                    "URL: redis://user:password@host"
                ),
            )
        case BusyLoadingError():
            return Fault(Remedy.WAIT, ServerError(f"{at}: the server is still loading its data"))
        case TryAgainError() | ClusterDownError():
            return Fault(
                Remedy.WAIT, ServerError(f"{at}: the cluster cannot serve this now ({text})")
            )
        case ReadOnlyError():
            return Fault(
                Remedy.ROUTE,
                ReadOnly(
                    f"{where} is a read-only replica. Point the URL at the primary, or use the "
                    "redis+sentinel:// or redis+cluster:// form, which find it"
                ),
            )
        case OutOfMemoryError():
            return Fault(
                Remedy.NONE,
                OutOfMemory(
                    f"{at}: the server's memory is full, nothing was written. Let the queues "
                    "drain, or raise maxmemory"
                ),
            )
        case NoPermissionError():
            return Fault(Remedy.NONE, _no_permission(at, text))
        case _:
            return _diagnose_text(problem, text, at)


def _no_permission(at: str, text: str) -> AccessDenied:
    return AccessDenied(
        f"{at}: the user lacks a permission ({text}). docs/protocol.md lists the commands, keys "
        "and channels Queasy needs"
    )


def _diagnose_text(problem: Exception, text: str, at: str) -> Fault:
    word = text.partition(" ")[0]
    if isinstance(problem, ResponseError):
        if "Function not found" in text:
            return Fault(Remedy.LOAD, ProtocolError(f"{at}: the server does not keep the library"))
        if "unknown command" in text.lower() and "FCALL" in text.upper():
            return Fault(
                Remedy.NONE,
                Unsupported(f"{at}: the server is too old. Queasy needs Redis 7.0 or Valkey"),
            )
        if "can't run this command" in text or "ACL failure" in text:  # inside a function
            return Fault(Remedy.NONE, _no_permission(at, text))
        if word == "QUEASYBAD":
            return Fault(
                Remedy.NONE, InvalidInput(text.removeprefix("QUEASYBAD ").partition(" script:")[0])
            )
        if word in ("BUSY", "MASTERDOWN", "FAILOVER", "NOREPLICAS", "UNBLOCKED"):
            return Fault(Remedy.WAIT, ServerError(f"{at}: {text}"))
        if word == "MISCONF":
            return Fault(
                Remedy.NONE,
                ServerError(
                    f"{at}: the server cannot write to its disk and refuses writes ({text})"
                ),
            )
        if word == "WRONGTYPE" or "WRONGTYPE" in text:
            return Fault(
                Remedy.NONE,
                ProtocolError(
                    f"{at}: {text.removeprefix('WRONGTYPE ').partition(' script:')[0]}. Somebody "
                    "else wrote to it: rename or delete that key, and the queue goes on"
                ),
            )
    return Fault(Remedy.NONE, ServerError(f"{at}: {text}"))
