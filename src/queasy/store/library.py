"""The Lua library: assembled from its files, in a fixed order."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

__all__ = ["LEAST", "LIBRARY", "PREFIX", "fences", "revision", "source"]

PROTOCOL = 1
LIBRARY = f"queasy_v{PROTOCOL}"
PREFIX = f"{LIBRARY}_"
FIRST_MARKED = 3
"""The first revision that registers a function of its own name."""
LEAST = 4
"""The first revision that was published: what clients say is understood by every one since."""

# Each file is a module: it ends with a table of what it exports, and binds what it needs of earlier
# modules at its head. `prelude` is not one: what it declares is visible everywhere.
MODULES = (
    "keys", "stats", "batch", "job", "arguments", "client", "idempotency", "waking", "cancel",
    "dispatch", "records", "settings", "endings", "settle", "lease", "take", "handoff", "sweep",
    "dequeue", "inspect", "audit", "failure", "api",
)  # fmt: skip


@cache
def source() -> str:
    """The whole library, as FUNCTION LOAD wants it."""
    folder = Path(__file__).parent / "lua"
    text = {name: (folder / f"{name}.lua").read_text() for name in ("prelude", *MODULES)}
    modules = [f"local {name} = (function()\n{text[name]}end)()\n" for name in MODULES]
    return "\n".join([f"#!lua name={LIBRARY}", text["prelude"], *modules])


@cache
def revision() -> int:
    """The revision in the library's own words, so that there is one place to raise it."""
    found = re.search(r"local VERSION = \{ (\d+), (\d+) \}", source())
    if found is None or int(found[1]) != PROTOCOL:
        raise AssertionError("api.lua and library.py disagree on the protocol")
    return int(found[2])


def fences() -> list[str]:
    """Libraries that keep older revisions of ours from being loaded, on the server's word.

    Whoever looks which revision there is, and loads a newer one, may be overtaken between the
    two and put an older one back. But a server refuses a library with a function that another
    library has, and each revision registers `revision_<number>`: a fence has that of an older
    one, which until it is gone cannot be fenced out, and from then on cannot come back.
    """
    return [
        f"#!lua name={PREFIX}fence_{older}\n"
        f"redis.register_function('{PREFIX}revision_{older}', function() return {older} end)"
        for older in range(FIRST_MARKED, revision())
    ]
