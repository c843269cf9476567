"""Watching the code, for development: a change of any Python file replaces the workers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from queasy.errors import InvalidOption
from queasy.worker.events import event

__all__ = ["check_reload", "watch_code"]


def check_reload() -> None:
    """Raises when there is nothing to watch with."""
    try:
        import watchfiles  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError:
        raise InvalidOption("reload: needs watchfiles; pip install 'queasy[reload]'") from None


async def watch_code(changed: Callable[[], None]) -> None:
    """Calls `changed` after every change below the folder one is in."""
    import watchfiles

    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # we say it ourselves
    only_python = watchfiles.PythonFilter()
    async for changes in watchfiles.awatch(Path.cwd(), watch_filter=only_python):  # pyright: ignore[reportUnknownMemberType]
        files = sorted({Path(path).name for _, path in changes})
        event("code changed", files=files)
        changed()
