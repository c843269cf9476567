"""The Lua library, assembled from its modules in a fixed order."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

__all__ = ["LEAST", "LIBRARY", "PREFIX", "fences", "revision", "source"]

PROTOCOL = 1
LIBRARY = f"queasy_v{PROTOCOL}"
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


@cache
def source(clock: Path | None = None) -> str:
    """The text of the library, for FUNCTION LOAD.

    A build for tests has the file `clock` in the place of clock.lua, and a logical time.
    """
    folder = Path(__file__).parent / "lua"
    files = {name: folder / f"{name}.lua" for name in ("prelude", *MODULES)}
    files["clock"] = clock or files["clock"]
    text = {name: file.read_text("utf-8") for name, file in files.items()}
    modules = [f"local {name} = (function()\n{text[name]}end)()\n" for name in MODULES]
    return "\n".join([f"#!lua name={LIBRARY}", text["prelude"], *modules])


@cache
def revision() -> int:
    """The revision that api.lua declares: it is raised in that one place."""
    found = re.search(r"local VERSION = \{ (\d+), (\d+) \}", source())
    if found is None or int(found[1]) != PROTOCOL:
        raise AssertionError("expected the same protocol in api.lua and library.py")
    return int(found[2])


def fences() -> list[str]:
    """Libraries that make the server refuse older revisions of this library.

    A client reads which revision the server has, then loads a newer one. Between the two, another
    client may load one that is newer still, and the first would replace it with an older one. But a
    server refuses a library if another library has a function of the same name, and each revision
    registers `revision_<number>`. A fence registers the name of an older revision: it can be loaded
    once that revision is gone, and from then on that revision cannot be loaded again.
    """
    return [
        f"#!lua name={PREFIX}fence_{older}\n"
        f"redis.register_function('{PREFIX}revision_{older}', function() return {older} end)"
        for older in range(FIRST_MARKED, revision())
    ]
