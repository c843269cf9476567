"""The append-only file of a server: its recent sizes, and truncation to one of them."""

import os
from collections import deque
from contextlib import suppress
from pathlib import Path

from tests.chaos.history import now
from tests.servers import Server

SAMPLE_EVERY = 0.1


class Disk:
    """Samples the size of the file, because a power failure leaves what was there a while ago."""

    def __init__(self, server: Server) -> None:
        self._folder = server.directory / "appendonlydir"
        self._samples: deque[tuple[float, dict[str, int]]] = deque(maxlen=50)

    def sample(self) -> None:
        if self._samples and now() - self._samples[-1][0] < SAMPLE_EVERY:
            return
        at = now()  # taken first: everything answered until then is in the file
        with suppress(FileNotFoundError):  # the server is replacing the file by a rewritten one
            sizes = {file.name: file.stat().st_size for file in self._files()}
            self._samples.append((at, sizes))

    def truncate(self, to: float, more: int) -> float | None:
        """Remove what was written after a time, except for `more` bytes, which may end inside a
        command. Returns the time from which writes are missing; None if nothing was removed.
        """
        samples = [sample for sample in self._samples if sample[0] <= to]
        self._samples.clear()
        if not samples:
            return None
        at, sizes = samples[-1]
        # A rewrite continues in a new file; the previous one has been synced by then.
        last = self._files()[-1]
        size = sizes.get(last.name, 0) + more
        if size >= last.stat().st_size:
            return None
        os.truncate(last, size)
        return at

    def _files(self) -> list[Path]:
        """In the order in which the server loads them; while one replaces another, maybe none."""
        files = self._folder.glob("*.incr.aof")
        return sorted(files, key=lambda file: int(file.name.split(".")[-3]))
