"""The Lua library `queasy` of Queasy for Node, in a version of ours.

Queasy for Node loads a library of the same name, with the same functions, whenever one of its
clients starts. So this one is loaded only where there is none, and never replaces another. Either
has the functions that `node_protocol.py` calls.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from queasy.store.library import Library

__all__ = ["NODE"]

MODULES = ("records", "waiting", "holding", "api")
VERSION = 1


class NodeLibrary(Library):
    """A library that is left alone wherever there is one of its name."""

    version_is_read_only: ClassVar[bool] = False
    """The other library may not have declared that its function only reads."""

    def revision(self) -> int:
        return VERSION

    def read_version(self, reply: Any) -> tuple[int, int]:
        found = reply if isinstance(reply, int) else 0
        return VERSION, max(VERSION, found)  # never less than ours, which would replace it

    def fences(self) -> list[str]:
        return []  # they would keep the other library out


NODE = NodeLibrary("queasy", Path(__file__).parent / "lua" / "node", MODULES, least=VERSION)
