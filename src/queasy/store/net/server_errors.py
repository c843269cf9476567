"""The error replies of a server, as exceptions.

The names are those of redis-py, which many know. That package is not used, because it takes longer
to import than Queasy.
"""

from __future__ import annotations

from hiredis import ProtocolError

__all__ = [
    "AskError", "AuthenticationError", "BusyLoadingError", "ClusterDownError", "MasterDownError",
    "MovedError", "NoPermissionError", "NoRoom", "OutOfMemoryError", "ProtocolError",
    "ReadOnlyError", "ResponseError", "TryAgainError", "parse_error",
]  # fmt: skip


class ResponseError(Exception):
    """An error reply. If it has no class of its own, its text says what it is."""


class AuthenticationError(ResponseError):
    """The user or password is wrong, or missing."""


class NoPermissionError(ResponseError):
    """The user may not do this."""


class BusyLoadingError(ResponseError):
    """The server is still reading its data."""


class OutOfMemoryError(ResponseError):
    """Memory is full: nothing was written."""


class ReadOnlyError(ResponseError):
    """It is a replica."""


class ClusterDownError(ResponseError):
    """The cluster cannot serve now."""


class MasterDownError(ResponseError):
    """It is a replica that has lost its primary."""


class TryAgainError(ResponseError):
    """The keys of the call are being moved to another server, and not all are there yet."""


class AskError(ResponseError):
    """The key is at another server, for this call only."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        slot, _, node = text.partition(" ")
        self.host, _, port = node.rpartition(":")
        self.slot_id, self.port = int(slot), int(port)


class MovedError(AskError):
    """The slot is at another server, from now on."""


class NoRoom(Exception):
    """The server takes no more connections. It is not the reply to any call."""


_BY_WORD: dict[str, type[Exception]] = {
    "ASK": AskError,
    "CLUSTERDOWN": ClusterDownError,
    "ERR": ResponseError,
    "LOADING": BusyLoadingError,
    "MASTERDOWN": MasterDownError,
    "MOVED": MovedError,
    "NOAUTH": AuthenticationError,
    "NOPERM": NoPermissionError,
    "OOM": OutOfMemoryError,
    "READONLY": ReadOnlyError,
    "TRYAGAIN": TryAgainError,
    "WRONGPASS": AuthenticationError,
}
# Errors that begin with ERR, as many do, and are known by their text.
_BY_TEXT: dict[str, type[Exception]] = {
    "AUTH <password> called without any password configured": AuthenticationError,
    "invalid password": AuthenticationError,
    "wrong number of arguments for 'auth' command": AuthenticationError,
    "max number of clients reached": NoRoom,
}


def parse_error(text: str) -> Exception:
    """The exception for an error reply. The first word is left out if the class says the same."""
    word, _, rest = text.partition(" ")
    kind = _BY_WORD.get(word)
    if kind is None:
        return ResponseError(text)
    if word == "ERR":
        found = (kind for start, kind in _BY_TEXT.items() if rest.startswith(start))
        kind = next(found, ResponseError)
    try:
        return kind(rest)
    except ValueError:  # a redirection without an address
        return ResponseError(text)
