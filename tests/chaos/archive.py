"""The history of a whole run in one file, to be kept, published and checked again."""

import lzma
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from tests.chaos.history import Event
from tests.chaos.verdict import FinalState

__all__ = ["read_archive", "write_archive"]


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
        events.append(line)
    raise ValueError(f"{path}: expected the history of a whole run, but its end is missing")


def _lines(path: Path) -> Iterator[Event | _LastLine]:
    with lzma.open(path, "rb") as file:
        yield from map(_decoder.decode, file)
