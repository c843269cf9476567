"""What the server's errors mean: one table, from its words to what is done about them."""

from __future__ import annotations

import re
from enum import Enum, auto

import msgspec

from queasy.errors import (
    AccessDenied,
    InvalidInput,
    NotReady,
    NotRunning,
    OutOfMemory,
    ProtocolError,
    QueasyError,
    ReadOnly,
    ServerError,
    Unreachable,
    Unsupported,
)
from queasy.store.net.server_errors import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

__all__ = ["PROBLEMS", "Fault", "Lost", "NotSent", "Remedy", "diagnose"]


class NotSent(Exception):
    """The call did not leave: no connection. Safe to send again."""


class Lost(Exception):
    """The call left, no answer came. It may have been carried out."""


# What `diagnose` knows; anything else is a mistake of ours.
PROBLEMS = (NotSent, Lost, ResponseError)


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


class Fault(msgspec.Struct, frozen=True):
    remedy: Remedy
    error: QueasyError
    """What to raise when the remedy does not help in time."""
    uncertain: bool = False
    """The call may have been carried out."""


# What a server that cannot serve for now says, and what ends it. A full disk stays so for a
# while: who dispatches is told at once.
PASSING = {
    "BUSY": (Remedy.WAIT, "a script has run for too long; SCRIPT KILL or FUNCTION KILL ends it"),
    "FAILOVER": (Remedy.WAIT, "a failover is under way"),
    "UNBLOCKED": (Remedy.WAIT, "a failover is under way"),
    "NOREPLICAS": (
        Remedy.WAIT,
        "fewer replicas are connected than it wants; start them, or lower min-replicas-to-write",
    ),
    "MISCONF": (
        Remedy.NONE,
        "the server cannot write to its disk and refuses writes; free its disk, see its log",
    ),
}


# What servers put behind an error that a function returned, which says nothing to anybody.
TAIL = re.compile(r" script:( \S+,)? on @user_function:\d+\.?$")


def diagnose(problem: Exception, where: str, doing: str) -> Fault:
    """The fault behind an exception of the transport or the server, `doing` ("looking at") it."""
    text = TAIL.sub("", str(problem))
    at = f"{doing} {where}"
    match problem:
        case Lost():
            return Fault(Remedy.WAIT, Unreachable(f"{at}: no answer ({text})"), uncertain=True)
        case NotSent():
            return Fault(
                Remedy.WAIT,
                (NotRunning if _is_refused(problem) else Unreachable)(
                    f"cannot reach {where} ({text}). {_advice(text, where)}"
                ),
            )
        case MovedError():
            return Fault(Remedy.MOVED, ServerError(f"{at}: the cluster keeps moving the slot"))
        case AskError():
            return Fault(Remedy.ASK, ServerError(f"{at}: the cluster keeps moving the slot"))
        case AuthenticationError():
            return Fault(
                Remedy.NONE,
                AccessDenied(
                    f"{where} refused the user or password ({text}). Put the right ones into the "
                    f"URL: {_credentials(text)}"
                ),
            )
        case BusyLoadingError():
            return Fault(Remedy.WAIT, NotReady(f"{at}: the server is still loading its data"))
        case MasterDownError():
            return Fault(
                Remedy.WAIT,
                NotReady(f"{at}: this is a replica that has lost its primary. Point the URL there"),
            )
        case TryAgainError() | ClusterDownError():
            return Fault(Remedy.WAIT, NotReady(f"{at}: the cluster cannot serve now ({text})"))
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
            return Fault(Remedy.NONE, _no_permission(at, where, text))
        case _:
            return _diagnose_text(problem, text, where, at)


def _is_refused(problem: BaseException | None) -> bool:
    """Whether the other machine said that nobody listens there, rather than nothing."""
    while problem is not None:
        if isinstance(problem, (ConnectionRefusedError, FileNotFoundError)):
            return True
        problem = problem.__cause__ or problem.__context__
    return False


def _credentials(text: str) -> str:
    if text.startswith("sentinel "):  # as `SentinelRoute` says
        return "redis+sentinel://host/service?sentinel_username=…&sentinel_password=…"
    return "redis://user:password@host (unix://user:password@/path)"


def _advice(text: str, where: str) -> str:
    """What to look at when there is no connection."""
    if "max number of clients" in text:
        return "It takes no more connections: raise its maxclients"
    if "certificate verify failed" in text:
        return (
            "The URL says which authority signs the server's certificate "
            "(?ssl_ca_certs=/path/to/ca.pem), and names the host as the certificate does"
        )
    right = "is the URL (the url argument, or QUEASY_URL) right"
    if NOT_THERE.search(text):
        return f"I{right[1:]}?"
    if OTHER_SPEECH.search(text) and not where.startswith("unix://"):
        return (
            f"Is the server running, and {right}: rediss:// if the server speaks TLS there (with "
            "ssl_certfile and ssl_keyfile if it asks for a certificate), redis:// if not?"
        )
    return f"Is the server running, and {right}?"


# A file, a name or a service of the URL; each is named.
NOT_THERE = re.compile(r"there is no file|Error -\d+ connecting|knows no service")
# One side speaks TLS and the other does not: it hangs up, or waits for more.
OTHER_SPEECH = re.compile(
    r"SSL|over TLS|Error connecting|Error \d+ while|Protocol error|"
    r"[Cc]onnection (closed|reset|lost)"
)


def _no_permission(at: str, where: str, text: str) -> AccessDenied:
    command = re.search(r"run the '([\w|-]+)' command", text) or re.search(r"not run (\w+),", text)
    if command is not None and command[1] == "function|load":
        return AccessDenied(
            f"{where} has no library yet, or an older one, and this user may not load it ({text}). "
            "Connect a worker first, or any client whose user may; or grant +function|load (ACL "
            "SETUSER), to somebody who is trusted"
        )
    grant = f"+{command[1].lower()}" if command is not None else "it"
    if " key" in text:
        grant = "the keys, as ~queasy:* for the prefix queasy"
    elif "channel" in text:
        grant = "the channels, as &queasy:* for the prefix queasy"
    return AccessDenied(
        f"{at}: the user lacks a permission ({text}). Grant {grant} (ACL SETUSER); "
        "docs/guides/security.md lists all that Queasy needs"
    )


def _diagnose_text(problem: Exception, text: str, where: str, at: str) -> Fault:
    word = text.partition(" ")[0]
    if not isinstance(problem, ResponseError):
        return Fault(Remedy.NONE, ServerError(f"{at}: {text}"))
    if "Function not found" in text:
        return Fault(Remedy.LOAD, ProtocolError(f"{at}: the server does not keep the library"))
    if "unknown command" in text.lower() and (
        "FCALL" in text.upper() or "FUNCTION" in text.upper()
    ):
        return Fault(
            Remedy.NONE,
            Unsupported(
                f"{at}: the server does not know this command ({text}). Queasy needs Redis 7.0 or "
                "Valkey, with FCALL, FCALL_RO and FUNCTION not disabled by rename-command"
            ),
        )
    if "can't run this command" in text or "ACL failure" in text:  # inside a function
        return Fault(Remedy.NONE, _no_permission(at, where, text))
    if word == "QUEASYBAD":
        return Fault(Remedy.NONE, InvalidInput(text.removeprefix("QUEASYBAD ")))
    if word in PASSING:
        remedy, what_to_do = PASSING[word]
        return Fault(remedy, NotReady(f"{at}: {what_to_do} ({text})"))
    if "WRONGTYPE" in text:
        return Fault(
            Remedy.NONE,
            ProtocolError(
                f"{at}: {text.removeprefix('WRONGTYPE ')}. Somebody "
                "else wrote to it: rename or delete that key, and the queue goes on"
            ),
        )
    return Fault(Remedy.NONE, ServerError(f"{at}: {text}"))
