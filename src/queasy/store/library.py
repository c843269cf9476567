"""The Lua library: assembled from its files, in a fixed order."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

__all__ = ["LIBRARY", "PREFIX", "revision", "source"]

PROTOCOL = 1
LIBRARY = f"queasy_v{PROTOCOL}"
PREFIX = f"{LIBRARY}_"

ORDER = (
    "keys", "stats", "batch", "job", "client", "call", "queue", "failed", "run", "take", "sweep",
    "inspect", "audit", "api",
)  # fmt: skip


@cache
def source() -> str:
    """The whole library, as FUNCTION LOAD wants it."""
    folder = files("queasy.store") / "lua"
    parts = [f"-- {name}.lua\n{(folder / f'{name}.lua').read_text()}" for name in ORDER]
    return f"#!lua name={LIBRARY}\n" + "\n".join(parts)


@cache
def revision() -> int:
    """The revision in the library's own words, so that there is one place to raise it."""
    found = re.search(r"local VERSION = \{ (\d+), (\d+) \}", source())
    if found is None or int(found[1]) != PROTOCOL:
        raise AssertionError("api.lua and library.py disagree on the protocol")
    return int(found[2])
