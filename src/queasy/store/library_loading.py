"""Loads a Lua library on servers that do not have it, or have an older revision."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from queasy.errors import OutOfMemory, ProtocolError
from queasy.store.library import NATIVE, Library
from queasy.store.net.server_errors import OutOfMemoryError
from queasy.store.net.topology import Effect, Exchange, Route
from queasy.store.net.url import Address

__all__ = ["load_library", "load_library_on"]

# Two clients of different versions may load at the same time; each attempt checks the result.
MAX_LOAD_ATTEMPTS = 5


def load_library(route: Route, library: Library = NATIVE) -> Generator[Effect, Any, None]:
    """Loads the library on every primary that has none, or an older one."""
    for address in (yield from route.primaries()):
        yield from load_library_on(address, library)


def load_library_on(address: Address, library: Library = NATIVE) -> Generator[Effect, Any, None]:
    """Loads the library on one server; never replaces a newer one."""
    fcall = "FCALL_RO" if library.version_is_read_only else "FCALL"
    question = (fcall, f"{library.prefix}version", "0")
    for _ in range(MAX_LOAD_ATTEMPTS):
        (reply,) = yield Exchange(address, (question,))
        if isinstance(reply, Exception):
            if "Function not found" not in str(reply):
                raise reply
            replace = ()
        elif library.read_version(reply)[1] >= library.revision():
            return
        else:
            replace = ("REPLACE",)
        sources = [(*replace, library.source()), *((fence,) for fence in library.fences())]
        for loaded in (
            yield Exchange(address, tuple(("FUNCTION", "LOAD", *words) for words in sources))
        ):
            if isinstance(loaded, OutOfMemoryError):
                raise OutOfMemory(
                    f"{address}: the server has no memory left to load the library, and without it "
                    "no queue can drain. Raise maxmemory, if only for a moment"
                )
            # "already exists": another client loaded it first. The next attempt checks which one.
            if isinstance(loaded, Exception) and "already exists" not in str(loaded):
                raise loaded
    raise ProtocolError(
        f"{address}: the library cannot be loaded, or is replaced as soon as it is loaded. A newer "
        "version of Queasy was used here and keeps older ones out (connect one of its clients), or "
        "a client of an older version runs in a loop"
    )
