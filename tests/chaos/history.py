"""The history of a run: every process appends events to a file of its own.

The files are outside the server, so that events survive whatever the server loses. Times are those
of the monotonic clock, which all processes of a machine share and which cannot be set.

Some fields have another name in the files (`rename`), so that published histories stay readable.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

__all__ = [
    "Cancelled", "Cancelling", "Dispatched", "Dispatching", "Ended", "Event", "FailHandlerRan",
    "Fault", "Frozen", "HistoryWriter", "Requeued", "Settled", "Started", "StillRunning",
    "read_folder",
]  # fmt: skip


class _Event(msgspec.Struct, tag_field="event", omit_defaults=True):
    pass


class Dispatching(_Event, tag="dispatching", rename={"behaviour": "does"}):
    """A producer is about to dispatch. `n` is in the payload, and unique in a run."""

    at: float
    n: int
    queue: str
    id: str
    behaviour: str
    due: float = 0.0
    """The earliest start; 0 where several dispatches decide that together."""
    updates: bool = True
    """Whether this payload replaces that of a waiting job."""


class Dispatched(_Event, tag="dispatched", rename={"answer": "word"}):
    """The answer: created, updated, blocked or unchanged; refused, or unclear."""

    at: float
    n: int
    answer: str


class Cancelling(_Event, tag="cancelling", rename={"call": "c"}):
    """A producer is about to cancel. `call` is unique in a run."""

    at: float
    call: str
    queue: str
    id: str
    running: bool


class Cancelled(_Event, tag="cancelled", rename={"call": "c", "answer": "word"}):
    """The answer: yes, no, refused or unclear."""

    at: float
    call: str
    answer: str


class Started(_Event, tag="started"):
    """A handler, or a pull consumer, starts to work on a job."""

    at: float
    queue: str
    id: str
    n: int
    token: int
    pid: int
    until: float = 0.0
    """For a pull lease: from then on its holder knows that the lease has expired."""


class StillRunning(_Event, tag="alive"):
    """Written several times during a run that takes long."""

    at: float
    queue: str
    id: str
    token: int


class Ended(_Event, tag="ended"):
    at: float
    queue: str
    id: str
    token: int
    how: str
    """done, raised, retry, failure or cancelled: the handler's result, before it is reported."""
    after: float = 0.0
    """For a retry: the delay in seconds."""


class Settled(_Event, tag="settled", rename={"outcome": "word"}):
    """The server accepted an outcome: finished, retried, failed, released, timed_out ..."""

    queue: str
    id: str
    token: int
    outcome: str
    at: float = 0.0


class FailHandlerRan(_Event, tag="gave up"):
    at: float
    queue: str
    id: str
    n: int
    token: int
    kind: str


class Requeued(_Event, tag="requeued", rename={"answer": "word"}):
    """A requeue of a failed job, and its answer: yes, no or unclear."""

    at: float
    queue: str
    id: str
    n: int
    answer: str


class Fault(_Event, tag="fault"):
    """An injected fault. `until` is the time at which it was undone, if it was."""

    at: float
    kind: str
    pids: tuple[int, ...] = ()
    until: float = 0.0


class Frozen(_Event, tag="frozen"):
    """A supervisor froze or thawed a process with that many runs, or killed it for a lost lease."""

    how: str
    """process_frozen, process_thawed or process_died."""
    runs: int


Event = (
    Dispatching | Dispatched | Cancelling | Cancelled | Started | StillRunning | Ended | Settled
    | FailHandlerRan | Requeued | Fault | Frozen
)  # fmt: skip

_decoder = msgspec.json.Decoder(Event)
_log_decoder = msgspec.json.Decoder(dict[str, object])


class HistoryWriter:
    """Appends events, each with one write, so that a killed process leaves complete lines."""

    def __init__(self, folder: Path, role: str) -> None:
        path = folder / f"{role}-{os.getpid()}.history"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._encoder = msgspec.json.Encoder()

    def __call__(self, event: Event) -> None:
        os.write(self._file, self._encoder.encode(event) + b"\n")


def now() -> float:
    return time.monotonic()


def read_folder(folder: Path) -> Iterator[Event]:
    """All events of a run, file by file, without incomplete last lines."""
    for path in sorted(folder.glob("*.history")):
        with path.open("rb") as lines:
            for line in lines:
                if line.endswith(b"\n"):
                    yield _decoder.decode(line)
    for path in sorted(folder.glob("*.log")):
        yield from _read_log(path)


# Log events of a worker about outcomes that the server accepted.
OUTCOMES = {
    "job_finished": "finished",
    "job_retried": "retried",
    "job_timed_out": "timed_out",
    "job_failed": "failed",
    "job_released": "released",
    "job_cancelled": "cancelled",
    "outcome_refused": "lost",
}


def _read_log(path: Path) -> Iterator[Event]:
    """The accepted outcomes in a worker's log, and what its supervisor did about lost leases."""
    with path.open("rb") as lines:
        for line in lines:
            if not line.startswith(b"{") or not line.endswith(b"}\n"):
                continue
            logged = _log_decoder.decode(line)
            what = str(logged.get("event"))
            lost = what == "process_died" and logged.get("why") == "lost"
            if what in ("process_frozen", "process_thawed") or lost:
                yield Frozen(what, int(str(logged.get("runs", 0))))
            outcome = OUTCOMES.get(what)
            if outcome is not None:
                yield Settled(
                    str(logged["queue"]), str(logged["job"]), int(str(logged["token"])), outcome
                )
