"""What happened, as it happened: every process of a run appends lines to a file of its own.

The files are outside the server, so that nothing it forgets is forgotten here. Times are those of
the monotonic clock, which all processes of a machine share and nobody sets.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

__all__ = [
    "Alive", "Cancelled", "Cancelling", "Dispatched", "Dispatching", "Ended", "Event", "Fault",
    "GaveUp", "Pen", "Requeued", "Settled", "Started", "read_folder",
]  # fmt: skip


class Line(msgspec.Struct, tag_field="event", omit_defaults=True):
    pass


class Dispatching(Line, tag="dispatching"):
    """A producer is about to dispatch; `n` is in the payload, and nobody uses it again."""

    at: float
    n: int
    queue: str
    id: str
    does: str
    due: float = 0.0
    """Before which it may not start; 0 where several dispatches decide that together."""
    updates: bool = True
    """Whether this payload replaces one that waits."""


class Dispatched(Line, tag="dispatched"):
    """The answer: created, updated, blocked or unchanged; refused, or unclear."""

    at: float
    n: int
    word: str


class Cancelling(Line, tag="cancelling"):
    at: float
    c: str
    queue: str
    id: str
    running: bool


class Cancelled(Line, tag="cancelled"):
    """The answer: yes, no, refused or unclear."""

    at: float
    c: str
    word: str


class Started(Line, tag="started"):
    at: float
    queue: str
    id: str
    n: int
    token: int
    pid: int
    until: float = 0.0
    """Of a pull lease: after which its holder knows that it holds nothing."""


class Alive(Line, tag="alive"):
    """A run that takes its time, now and then."""

    at: float
    queue: str
    id: str
    token: int


class Ended(Line, tag="ended"):
    at: float
    queue: str
    id: str
    token: int
    how: str
    """done, raised, retry, failure, cancelled; what the handler came to, not yet what counts."""
    after: float = 0.0
    """Of a retry: seconds that have to pass."""


class Settled(Line, tag="settled"):
    """The server accepted an ending: finished, retried, failed, released, timed_out ..."""

    queue: str
    id: str
    token: int
    word: str
    at: float = 0.0


class GaveUp(Line, tag="gave up"):
    """A fail handler runs."""

    at: float
    queue: str
    id: str
    n: int
    token: int
    kind: str


class Requeued(Line, tag="requeued"):
    """A job of the failed record was asked to run again, and the answer: yes, no or unclear."""

    at: float
    queue: str
    id: str
    n: int
    word: str


class Fault(Line, tag="fault"):
    """Something was done to somebody, until a time if it was undone."""

    at: float
    kind: str
    pids: tuple[int, ...] = ()
    until: float = 0.0


Event = (
    Dispatching | Dispatched | Cancelling | Cancelled | Started | Alive | Ended | Settled | GaveUp
    | Requeued | Fault
)  # fmt: skip

_decoder = msgspec.json.Decoder(Event)
_log_decoder = msgspec.json.Decoder(dict[str, object])


class Pen:
    """Appends events, each with one write: a process that is killed leaves whole lines."""

    def __init__(self, folder: Path, role: str) -> None:
        path = folder / f"{role}-{os.getpid()}.history"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._encoder = msgspec.json.Encoder()

    def __call__(self, event: Event) -> None:
        os.write(self._file, self._encoder.encode(event) + b"\n")


def now() -> float:
    return time.monotonic()


def read_folder(folder: Path) -> Iterator[Event]:
    """All that was written, file by file; a last line that is cut short is left out."""
    for path in sorted(folder.glob("*.history")):
        with path.open("rb") as lines:
            for line in lines:
                if line.endswith(b"\n"):
                    yield _decoder.decode(line)
    for path in sorted(folder.glob("*.log")):
        yield from _read_log(path)


# What workers log about endings that the server accepted, in its words.
WORDS = {
    "job_finished": "finished",
    "job_retried": "retried",
    "job_timed_out": "timed_out",
    "job_failed": "failed",
    "job_released": "released",
    "job_cancelled": "cancelled",
    "outcome_refused": "lost",
}


def _read_log(path: Path) -> Iterator[Event]:
    """A worker's own log, which says what became of its runs."""
    with path.open("rb") as lines:
        for line in lines:
            if not line.startswith(b"{") or not line.endswith(b"}\n"):
                continue
            said = _log_decoder.decode(line)
            word = WORDS.get(str(said.get("event")))
            if word is not None:
                yield Settled(str(said["queue"]), str(said["job"]), int(str(said["token"])), word)
