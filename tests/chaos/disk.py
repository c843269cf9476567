"""The disk of a server: how much of its file there was lately, to cut it back to that."""

import os
from collections import deque
from contextlib import suppress
from pathlib import Path

from tests.chaos.history import now
from tests.servers import Server

EVERY = 0.1


class Disk:
    """Looked at all the time: what a power cut leaves is what was there a while before."""

    def __init__(self, server: Server) -> None:
        self._folder = server.directory / "appendonlydir"
        self._looks: deque[tuple[float, dict[str, int]]] = deque(maxlen=50)

    def look(self) -> None:
        if not self._looks or now() - self._looks[-1][0] >= EVERY:
            at = now()  # before: what was answered until then is in there
            with suppress(FileNotFoundError):  # it was rewritten just now
                self._looks.append((at, {file.name: file.stat().st_size for file in self._files()}))

    def cut_back(self, to: float, more: int) -> float | None:
        """Takes away what was written since a time, but for some bytes, which need not be whole
        commands; since when things are missing.
        """
        looks = [look for look in self._looks if look[0] <= to]
        self._looks.clear()
        if not looks:
            return None
        at, sizes = looks[-1]
        # A rewrite goes on in another file, and what was before is on the disk for good by then.
        last = self._files()[-1]
        size = sizes.get(last.name, 0) + more
        if size >= last.stat().st_size:
            return None
        os.truncate(last, size)
        return at

    def _files(self) -> list[Path]:
        """In the order they are read in; between two of them there may be none."""
        files = self._folder.glob("*.incr.aof")
        return sorted(files, key=lambda file: int(file.name.split(".")[-3]))
