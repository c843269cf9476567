"""The Lua library of the dialects: one for all, beside the native one."""

from __future__ import annotations

from pathlib import Path

from queasy.store.library import Library

__all__ = ["LIBRARY"]

# A dialect adds its module before `api`.
MODULES = ("arguments", "workqueue", "node_counts", "api")

LIBRARY = Library("queasy_interop_v1", Path(__file__).parent / "lua", MODULES, least=1)
