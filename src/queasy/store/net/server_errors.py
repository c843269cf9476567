"""What a server answers when it does not do as it is told: its words, as exceptions.

The names are redis-py's, for whoever knows those; that package itself takes longer to import
than all of this one.
"""

from __future__ import annotations

from hiredis import ProtocolError

__all__ = [
    "AskError", "AuthenticationError", "BusyLoadingError", "ClusterDownError", "MasterDownError",
    "MovedError", "NoPermissionError", "NoRoom", "OutOfMemoryError", "ProtocolError",
    "ReadOnlyError", "ResponseError", "TryAgainError", "parse_error",
]  # fmt: skip


class ResponseError(Exception):
    """An error in the place of an answer; of one without a class of its own, the text tells."""


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
    """The keys of the call are on their way to another server, and not all there yet."""


class AskError(ResponseError):
    """The key is elsewhere, for this once: ask there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        slot, _, node = text.partition(" ")
        self.host, _, port = node.rpartition(":")
        self.slot_id, self.port = int(slot), int(port)


class MovedError(AskError):
    """The slot is elsewhere, and stays there."""


class NoRoom(Exception):
    """It takes no more connections: no answer to any call, whatever call it came behind."""


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
# Said with the word ERR, which is said of everything.
_BY_TEXT: dict[str, type[Exception]] = {
    "AUTH <password> called without any password configured": AuthenticationError,
    "invalid password": AuthenticationError,
    "wrong number of arguments for 'auth' command": AuthenticationError,
    "max number of clients reached": NoRoom,
}


def parse_error(text: str) -> Exception:
    """The exception for an error as the server writes it. Its first word is left out when the
    class says the same.
    """
    word, _, rest = text.partition(" ")
    kind = _BY_WORD.get(word)
    if kind is None:
        return ResponseError(text)
    if word == "ERR":
        found = (kind for start, kind in _BY_TEXT.items() if rest.startswith(start))
        kind = next(found, ResponseError)
    try:
        return kind(rest)
    except ValueError:  # a redirection to nowhere
        return ResponseError(text)
