"""Lua libraries, assembled from their modules in a fixed order."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

__all__ = [
    "LEAST", "LIBRARY", "NATIVE", "PREFIX", "Library", "fences", "revision", "source",
]  # fmt: skip

LIBRARY = "queasy_v1"
PREFIX = f"{LIBRARY}_"
FIRST_MARKED = 3
"""The first revision that registers a function named after itself."""
LEAST = 9
"""The first published revision. Every later one understands what clients of it send."""

# Each file is a module. It ends with a table of its exports, and binds the exports that it needs of
# earlier modules to locals at its head: a table lookup at each use would cost 0.7 percent of the
# instructions of a job life. `prelude` is not a module: all modules see the names it declares.
MODULES = (
    "clock", "keys", "stats", "batch", "job", "arguments", "waiters", "client", "idempotency",
    "waking", "cancel", "dispatch", "records", "settings", "endings", "lease", "settle", "take",
    "handoff", "sweep", "dequeue", "inspect", "audit", "failure", "api",
)  # fmt: skip


class Library:
    """A Lua library: its name on the server, and the files that it is made of.

    The last of its modules is `api`. The folder may have a `prelude.lua`.
    """

    version_is_read_only: ClassVar[bool] = True
    """Whether FCALL_RO may ask for the version."""

    def __init__(
        self,
        name: str,
        folder: Path,
        modules: tuple[str, ...],
        *,
        least: int,
        first_marked: int = 1,
    ) -> None:
        self.name = name
        self.prefix = f"{name}_"
        """How the names of its functions begin."""
        self.least = least
        """The first published revision. Every later one understands what clients of it send."""
        self.folder = folder
        self.modules = modules
        self._first_marked = first_marked
        self._source: str | None = None

    def source(self, clock: Path | None = None) -> str:
        """The text of the library, for FUNCTION LOAD.

        A build for tests has the file `clock` in the place of clock.lua, and a logical time.
        """
        if clock is not None:
            return self._assemble(clock)
        if self._source is None:
            self._source = self._assemble(None)
        return self._source

    def _assemble(self, clock: Path | None) -> str:
        files = {name: self.folder / f"{name}.lua" for name in self.modules}
        if clock is not None:
            files["clock"] = clock
        prelude = self.folder / "prelude.lua"
        head = prelude.read_text("utf-8") if prelude.exists() else ""
        modules = [
            f"local {name} = (function()\n{file.read_text('utf-8')}end)()\n"
            for name, file in files.items()
        ]
        return "\n".join([f"#!lua name={self.name}", head, *modules])

    def revision(self) -> int:
        """The revision that api.lua declares: it is raised in that one place."""
        return _declared_revision(self.source(), int(self.name.rpartition("_v")[2]))

    def read_version(self, reply: Any) -> tuple[int, int]:
        """The protocol and the revision of the library on a server, as its function says."""
        return reply[0], reply[1]

    def fences(self) -> list[str]:
        """Libraries that make the server refuse older revisions of this library.

        A client reads which revision the server has, then loads a newer one. Between the two,
        another client may load one that is newer still, and the first would replace it with an
        older one. But a server refuses a library if another library has a function of the same
        name, and each revision registers `revision_<number>`. A fence registers the name of an
        older revision: it can be loaded once that revision is gone, and from then on that revision
        cannot be loaded again.
        """
        return [
            f"#!lua name={self.prefix}fence_{older}\n"
            f"redis.register_function('{self.prefix}revision_{older}', "
            f"function() return {older} end)"
            for older in range(self._first_marked, self.revision())
        ]


@cache
def _declared_revision(source: str, protocol: int) -> int:
    found = re.search(r"local VERSION = \{ (\d+), (\d+) \}", source)
    if found is None or int(found[1]) != protocol:
        raise AssertionError("expected the same protocol in api.lua and in the library's name")
    return int(found[2])


NATIVE = Library(
    LIBRARY, Path(__file__).parent / "lua", MODULES, least=LEAST, first_marked=FIRST_MARKED
)
"""The library of Queasy's own queues."""


def source(clock: Path | None = None) -> str:
    """The text of the native library."""
    return NATIVE.source(clock)


def revision() -> int:
    """The revision of the native library."""
    return NATIVE.revision()


def fences() -> list[str]:
    """The fences of the native library."""
    return NATIVE.fences()
