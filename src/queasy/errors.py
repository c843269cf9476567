"""Every error that Queasy raises, in one tree.

QueasyError
├── InvalidInput            an argument was refused before anything was written
│   ├── InvalidQueue
│   ├── InvalidId
│   ├── InvalidOption
│   ├── InvalidTime
│   ├── InvalidPayload      not encodable, or over the limit
│   └── InvalidUrl
├── ServerError             the server failed or refused
│   ├── Unreachable         the server did not answer; the message has its address
│   │   ├── NotRunning      no server listens at that address
│   │   └── Unanswered      the answer was lost: the call may have been carried out
│   ├── AccessDenied        wrong password, or a permission is missing
│   ├── NotReady            the server cannot serve now: loading, busy, disk full, failover
│   ├── ReadOnly            the server is a replica
│   ├── OutOfMemory         the server's memory limit is reached
│   ├── NotDurable          accepted, but not as durable as requested
│   ├── Unsupported         the server is too old, or its protocol is newer than ours
│   └── ProtocolError       an answer that Queasy does not understand
├── QueueInUse              jobs of the queue are active, so it is not deleted
├── EmbeddedServerError     the embedded server could not be started
├── ClientClosed            another thread closed the client while `lease()` waited
├── CannotWork              no worker process could start
├── HandlerNotFound         a handler, or the client of a worker, cannot be imported
├── UndecodablePayload      the codec refuses the bytes of a job
├── EvictionFailed          a worker still has jobs after `evict`
├── PredicateFailed         the function given to `cancel_where` raised
└── LeaseLost               the lease was over before the call

`queasy.Interrupted` is not in this tree. It is a BaseException that a worker raises inside a plain
handler to end its run: see `queasy.outcomes`.
"""

from __future__ import annotations

__all__ = [
    "AccessDenied",
    "CannotWork",
    "ClientClosed",
    "EmbeddedServerError",
    "EvictionFailed",
    "HandlerNotFound",
    "InvalidId",
    "InvalidInput",
    "InvalidOption",
    "InvalidPayload",
    "InvalidQueue",
    "InvalidTime",
    "InvalidUrl",
    "LeaseLost",
    "NotDurable",
    "NotReady",
    "NotRunning",
    "OutOfMemory",
    "PredicateFailed",
    "ProtocolError",
    "QueasyError",
    "QueueInUse",
    "ReadOnly",
    "ServerError",
    "Unanswered",
    "UndecodablePayload",
    "Unreachable",
    "Unsupported",
]


class QueasyError(Exception):
    """The root: catch it to catch all errors of Queasy."""


class InvalidInput(QueasyError, ValueError):
    """An argument was refused before anything was written."""


class InvalidQueue(InvalidInput):
    """A queue name that cannot be used."""


class InvalidId(InvalidInput):
    """A job id that cannot be used."""


class InvalidOption(InvalidInput):
    """An option or flag with a value outside its range."""


class InvalidTime(InvalidInput):
    """A time or duration that is not a finite, sensible number."""


class InvalidPayload(InvalidInput):
    """A payload that cannot be encoded, or is over the limit."""


class InvalidUrl(InvalidInput):
    """A server URL that cannot be understood."""


class ServerError(QueasyError):
    """The server failed, or refused a call."""


class Unreachable(ServerError, ConnectionError):
    """The server did not answer."""


class NotRunning(Unreachable):
    """No server listens at the address."""


class Unanswered(Unreachable):
    """The call was sent, but its answer was lost: it may have been carried out."""


class AccessDenied(ServerError):
    """Wrong password, or the user lacks a permission."""


class NotReady(ServerError):
    """The server answers, but cannot serve for now. Nothing was changed; try again."""


class ReadOnly(ServerError):
    """The server is a replica and refuses writes."""


SERVER_AWAY = (Unreachable, NotReady, ReadOnly)
"""Conditions that end by themselves: a loop that waits for jobs goes on waiting."""


class OutOfMemory(ServerError):
    """The server's memory limit is reached; dispatches are refused until it drains."""


class NotDurable(ServerError):
    """The write was accepted, but the requested durability was not reached in time."""


class Unsupported(ServerError):
    """The server is too old, or its protocol is newer than that of this client."""


class ProtocolError(ServerError):
    """The server answered something that Queasy does not understand."""


class QueueInUse(QueasyError):
    """Jobs of the queue are active or workers serve it, so `destroy` deleted nothing."""


class EmbeddedServerError(QueasyError):
    """The embedded server could not be found or started."""


class ClientClosed(QueasyError):
    """Another thread closed the client while `lease()` waited. No job was taken."""


class CannotWork(QueasyError):
    """No worker process could start; the message says why."""


class HandlerNotFound(QueasyError):
    """A handler, or the client of a worker, cannot be imported; the message says which, and why."""


class UndecodablePayload(QueasyError):
    """The queue's codec refuses the bytes of a job."""


class EvictionFailed(QueasyError):
    """A worker neither ended nor lost its lease, so `evict` could not take its jobs."""


class PredicateFailed(QueasyError):
    """The function given to `cancel_where` raised, or did not return True or False."""

    def __init__(self, message: str, cancelled: int) -> None:
        super().__init__(message, cancelled)
        self.cancelled = cancelled
        """How many jobs were cancelled before it. No job was cancelled after it."""

    def __str__(self) -> str:
        return str(self.args[0])


class LeaseLost(QueasyError):
    """The lease was over before this call: expired, evicted, or ended by an earlier call."""
