"""What an error of the server or the connection means, and what to do about it."""

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
    """The call was not sent, for lack of a connection. It is safe to send it again."""


class Lost(Exception):
    """The call was sent, but no answer came. It may have been carried out."""


# What `diagnose` handles; any other exception is a bug in Queasy.
PROBLEMS = (NotSent, Lost, ResponseError)


class Remedy(Enum):
    """What to do about a fault."""

    NONE = auto()
    WAIT = auto()
    """Wait: it ends without our doing. The route may have changed meanwhile."""
    ROUTE = auto()
    """Find the primary: another server has this role now."""
    LOAD = auto()
    """Load the library: the server does not have it."""
    MOVED = auto()
    """Follow the redirection, from now on."""
    ASK = auto()
    """Follow the redirection, for this call only."""


class Fault(msgspec.Struct, frozen=True):
    remedy: Remedy
    error: QueasyError
    """The error to raise when the remedy does not help in time."""
    uncertain: bool = False
    """Whether the call may have been carried out."""


# The first words of errors from a server that cannot serve for now, and the advice for each. A
# full disk is not waited for, because it stays full for a while.
TEMPORARY = {
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


# What a server appends to an error that a function returned. It does not help the reader.
SCRIPT_SUFFIX = re.compile(r" script:( \S+,)? on @user_function:\d+\.?$")


def diagnose(problem: Exception, where: str, doing: str) -> Fault:
    """The fault of an exception from the transport or the server; `doing` says what was tried."""
    text = SCRIPT_SUFFIX.sub("", str(problem))
    at = f"{doing} {where}"
    match problem:
        case Lost():
            silence = text if text.startswith("no answer") else f"no answer ({text})"
            return Fault(Remedy.WAIT, Unreachable(f"{at}: {silence}"), uncertain=True)
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
                NotReady(f"{at}: this replica has lost its primary. Point the URL at the primary"),
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
    """Whether the host answered that no server listens at this address."""
    while problem is not None:
        if isinstance(problem, (ConnectionRefusedError, FileNotFoundError)):
            return True
        problem = problem.__cause__ or problem.__context__
    return False


def _credentials(text: str) -> str:
    if text.startswith("sentinel "):  # the text is from `SentinelRoute`
        return "redis+sentinel://host/service?sentinel_username=…&sentinel_password=…"
    return "redis://user:password@host (unix://user:password@/path)"


def _advice(text: str, where: str) -> str:
    """What to check when a connection cannot be opened."""
    if "max number of clients" in text:
        return "The server takes no more connections: raise its maxclients"
    if "certificate verify failed" in text:
        return (
            "Name the authority that signed the server's certificate in the URL "
            "(?ssl_ca_certs=/path/to/ca.pem), and the host as the certificate names it"
        )
    right = "is the URL (the url argument, or QUEASY_URL) right"
    if NOT_FOUND.search(text):
        return f"I{right[1:]}?"
    if TLS_MISMATCH.search(text) and not where.startswith("unix://"):
        return (
            f"Is the server running, and {right}: rediss:// if the server speaks TLS there (with "
            "ssl_certfile and ssl_keyfile if it requires a certificate), redis:// if not?"
        )
    return f"Is the server running, and {right}?"


# A file, a host name or a service of the URL does not exist; the text names it.
NOT_FOUND = re.compile(r"there is no file|Error -\d+ connecting|knows no service")
# One side may speak TLS and the other not: then it closes the connection, or waits for more.
TLS_MISMATCH = re.compile(
    r"SSL|over TLS|Error connecting|Error \d+ while|Protocol error|"
    r"[Cc]onnection (closed|reset|lost)"
)


def _no_permission(at: str, where: str, text: str) -> AccessDenied:
    command = re.search(r"run the '([\w|-]+)' command", text) or re.search(r"not run (\w+),", text)
    if command is not None and command[1] == "function|load":
        return AccessDenied(
            f"{where} has no library yet, or an older one, and this user may not load it ({text}). "
            "Connect a worker first, or any client with a user that may; or grant +function|load "
            "(ACL SETUSER) to a user that is trusted"
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
        return Fault(Remedy.LOAD, ProtocolError(f"{at}: the library disappears after each load"))
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
    if "non local key" in text:  # a function that does not declare all keys: see interop
        return Fault(Remedy.WAIT, NotReady(f"{at}: the cluster is moving keys of it ({text})"))
    if word == "QUEASYBAD":
        return Fault(Remedy.NONE, InvalidInput(text.removeprefix("QUEASYBAD ")))
    if word in ("QUEASYOLD", "QUEASYNEW"):
        return Fault(Remedy.NONE, Unsupported(f"{at}: {text.partition(' ')[2]}"))
    if "DB index" in text or "SELECT is not allowed" in text:
        return Fault(
            Remedy.NONE,
            ServerError(
                f"{at}: the server does not have the database that the URL names ({text}). Name "
                "another one, as in redis://host:6379/0, or raise `databases` in its configuration"
            ),
        )
    if word in TEMPORARY:
        remedy, what_to_do = TEMPORARY[word]
        return Fault(remedy, NotReady(f"{at}: {what_to_do} ({text})"))
    if "WRONGTYPE" in text:
        return Fault(
            Remedy.NONE,
            ProtocolError(
                f"{at}: {text.removeprefix('WRONGTYPE ')}. Another program wrote to this key: "
                "rename or delete it, and the queue works again"
            ),
        )
    return Fault(Remedy.NONE, ServerError(f"{at}: {text}"))
