"""The messages between a supervisor and a child: one line of JSON each, over a socket.

A supervisor sends instructions, a child sends reports. No message is sent for a single job, except
to cancel its run: the supervisor reads the runs of a child in its table.
"""

from __future__ import annotations

import msgspec

from queasy.worker.plan import Place

__all__ = ["ChildConfig", "Instruction", "Report", "decode_instruction", "decode_report", "encode"]


MAX_LINE = 2**24  # a thousand queues with long names


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
    lease: float
    queues: list[str] | None
    """Those it may serve; None for all that have handlers."""
    registered: tuple[str, ...]
    """Those that have handlers in the process of the supervisor."""
    handlers: tuple[tuple[str, str], ...]
    """Queues, and references of functions to register besides those of the application."""
    unserved: list[str]
    """Those of them it does not serve for now."""
    max_jobs: int | None
    max_queues: int
    control: int
    """Descriptor of the socket for messages."""
    parent_pipe: int
    """Descriptor of a pipe that ends when the supervisor does."""
    table: int
    """Descriptor of the memory of the in-flight table."""
    log_level: str
    log_format: str
    log_errors: str


# Instructions


class Stop(msgspec.Struct, tag="stop"):
    """Take no more jobs; exit when the runs have ended, at the latest after `grace` seconds."""

    grace: float


class Drain(msgspec.Struct, tag="drain"):
    """Take no more jobs; exit when the runs have ended."""


class CancelRun(msgspec.Struct, tag="cancel"):
    """Cancel this run: a client requested it."""

    queue: int
    id: str
    token: int


class Rejoin(msgspec.Struct, tag="rejoin"):
    """Drop what you hold of this queue, and register with it again: it was destroyed."""

    queue: int


class Serve(msgspec.Struct, tag="serve"):
    """Take jobs of this queue again."""

    queue: str


class Unserve(msgspec.Struct, tag="unserve"):
    """Take no more jobs of this queue; let its runs end, or release them."""

    queue: str
    release: bool


Instruction = Stop | Drain | CancelRun | Rejoin | Serve | Unserve


# Reports


class Planned(msgspec.Struct, tag="planned"):
    """The handlers are imported; these are the server and the queues, in the order of the table."""

    url: str | None
    prefix: str
    timeout: float
    folder: str | None
    queues: list[tuple[str, bool]]
    """Names, and whether each is the fail queue of that name."""

    @property
    def place(self) -> Place:
        return Place(self.url, self.prefix, self.timeout, self.folder)

    def __repr__(self) -> str:
        return f"Planned({self.place})"  # which shows no password


class Serving(msgspec.Struct, tag="serving"):
    """The child is registered with its queues and takes jobs."""


class JobLimitReached(msgspec.Struct, tag="job_limit_reached"):
    """The child has started almost `max_jobs` jobs."""


class CannotStart(msgspec.Struct, tag="cannot_start"):
    """The application cannot be imported, or the server cannot be used."""

    error: str
    traceback: str = ""


class Exiting(msgspec.Struct, tag="exiting"):
    """The child exits by itself, so no job is to blame.

    An exit code could not say this: a handler may call `sys.exit` with any code.
    """


Report = Planned | Serving | JobLimitReached | CannotStart | Exiting

_encoder = msgspec.json.Encoder()
_instruction = msgspec.json.Decoder(Instruction)
_report = msgspec.json.Decoder(Report)


def encode(message: msgspec.Struct) -> bytes:
    """One line."""
    return _encoder.encode(message) + b"\n"


def decode_instruction(line: bytes) -> Instruction:
    """Raises a msgspec error for anything else."""
    return _instruction.decode(line)


def decode_report(line: bytes) -> Report:
    """Raises a msgspec error for anything else."""
    return _report.decode(line)
