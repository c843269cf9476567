"""What a supervisor and its child tell each other: one line of JSON each, over a socket.

Nothing about single jobs is said here; for those there is the table.
"""

from __future__ import annotations

import msgspec

from queasy.worker.plan import Place

__all__ = ["ChildConfig", "Report", "ToChild", "decode", "encode"]


LONGEST_LINE = 2**24  # a thousand queues with long names


class ChildConfig(msgspec.Struct, kw_only=True):
    """What a child is started with."""

    app: str
    path: list[str]
    """Where Python looks for modules."""
    client: str
    group: str
    capacity: int
    processes: int
    grace: float
    queues: list[str] | None
    """Those it may serve; None for all that have handlers."""
    unserved: list[str]
    """Those of them it does not serve for now."""
    most_jobs: int | None
    most_queues: int
    control: int
    life: int
    table: int
    log_level: str
    log_format: str
    log_errors: str


class Stop(msgspec.Struct, tag="stop"):
    """Take nothing more; what runs has so many seconds."""

    grace: float


class Drain(msgspec.Struct, tag="drain"):
    """Take nothing more; what runs may end."""


class CancelRun(msgspec.Struct, tag="cancel"):
    """Somebody asked to cancel this run."""

    queue: int
    id: str
    token: int


class Serve(msgspec.Struct, tag="serve"):
    queue: str


class Unserve(msgspec.Struct, tag="unserve"):
    queue: str
    release: bool


ToChild = Stop | Drain | CancelRun | Serve | Unserve


class Planned(msgspec.Struct, tag="planned"):
    """The handlers are imported; these are the queues, in the order of the table."""

    url: str | None
    prefix: str
    timeout: float
    folder: str | None
    queues: list[tuple[str, bool]]

    @property
    def place(self) -> Place:
        return Place(self.url, self.prefix, self.timeout, self.folder)

    def __repr__(self) -> str:
        return f"Planned({self.place})"  # which shows no password


class Serving(msgspec.Struct, tag="serving"):
    """It is registered, and takes jobs."""


class WornOut(msgspec.Struct, tag="worn_out"):
    """It has run as many jobs as it may."""


class CannotStart(msgspec.Struct, tag="cannot_start"):
    """The application cannot be imported, or the server not be used."""

    error: str
    traceback: str = ""


class Leaving(msgspec.Struct, tag="leaving"):
    """It ends by itself, and no job is to blame. An exit code would not do: a handler may call
    `sys.exit` with any.
    """

    lost: bool = False
    """The server took it for dead."""


Report = Planned | Serving | WornOut | CannotStart | Leaving

_encoder = msgspec.json.Encoder()
_to_child = msgspec.json.Decoder(ToChild)
_report = msgspec.json.Decoder(Report)


def encode(message: msgspec.Struct) -> bytes:
    return _encoder.encode(message) + b"\n"


def decode(line: bytes) -> ToChild:
    return _to_child.decode(line)


def decode_report(line: bytes) -> Report:
    return _report.decode(line)
