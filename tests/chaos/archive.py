"""The history of a whole run in one file, to be kept, published, and checked again by anybody."""

import lzma
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from tests.chaos.checker import Aftermath
from tests.chaos.history import Event

__all__ = ["read_archive", "write_archive"]


class _Last(msgspec.Struct, tag="aftermath", tag_field="event"):
    """The last line: what was found when all was over."""

    aftermath: Aftermath


_decoder = msgspec.json.Decoder(Event | _Last)


def write_archive(path: Path, events: Iterable[Event], aftermath: Aftermath) -> None:
    """A line for each event, as it was written, process by process."""
    encode = msgspec.json.encode
    with lzma.open(path, "wb") as file:
        file.writelines(encode(line) + b"\n" for line in (*events, _Last(aftermath)))


def read_archive(path: Path) -> tuple[list[Event], Aftermath]:
    events: list[Event] = []
    for line in _lines(path):
        if isinstance(line, _Last):
            return events, line.aftermath
        events.append(line)
    raise ValueError(f"{path}: expected the history of a whole run, but its end is missing")


def _lines(path: Path) -> Iterator[Event | _Last]:
    with lzma.open(path, "rb") as file:
        yield from map(_decoder.decode, file)
