"""The history of a whole run in one file, to be kept, published and checked again."""

import lzma
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from tests.chaos.history import Event, Fault
from tests.chaos.verdict import FinalState

__all__ = ["read_archive", "write_archive"]

# Faults in histories published before 2026-11-16, and their names since.
RENAMED_FAULTS = {
    "kill child": "kill worker process",
    "freeze child": "freeze worker process",
    "freeze worker": "freeze supervisor and workers",
    "stop worker": "stop supervisor",
    "cut power": "power failure",
    "busy": "server busy",
    "read only": "server read-only",
    "memory full": "server memory full",
    "cut connections": "kill connections",
    "cut network": "reset network",
    "deaf network": "unresponsive network",
    "harass": "cut commands",
    "requeue failed": "requeue failed jobs",
    "failover by failover": "failover: requested",
    "failover by kill": "failover: primary killed",
    "failover by pause": "failover: primary frozen",
}


class _LastLine(msgspec.Struct, tag="aftermath", tag_field="event", rename={"final": "aftermath"}):
    """The last line of an archive: the state after the run."""

    final: FinalState


_decoder = msgspec.json.Decoder(Event | _LastLine)


def write_archive(path: Path, events: Iterable[Event], final: FinalState) -> None:
    """Write a line for each event, process by process, and the final state as the last line."""
    encode = msgspec.json.encode
    with lzma.open(path, "wb") as file:
        file.writelines(encode(line) + b"\n" for line in (*events, _LastLine(final)))


def read_archive(path: Path) -> tuple[list[Event], FinalState]:
    events: list[Event] = []
    for line in _lines(path):
        if isinstance(line, _LastLine):
            return events, line.final
        if isinstance(line, Fault):
            line.kind = RENAMED_FAULTS.get(line.kind, line.kind)
        events.append(line)
    raise ValueError(f"{path}: expected the history of a whole run, but its end is missing")


def _lines(path: Path) -> Iterator[Event | _LastLine]:
    with lzma.open(path, "rb") as file:
        yield from map(_decoder.decode, file)
