"""Watches the code during development: a change of any Python file replaces the workers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from queasy.errors import InvalidOption
from queasy.worker.events import event

__all__ = ["check_reload", "watch_code"]


def check_reload() -> None:
    """Raises InvalidOption if the package that watches files is not installed."""
    try:
        import watchfiles  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError:
        raise InvalidOption("reload: needs watchfiles; pip install 'queasy[reload]'") from None


async def watch_code(changed: Callable[[], None]) -> None:
    """Calls `changed` after every change of a Python file below the current folder."""
    import watchfiles

    # Its own lines would repeat our event.
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    only_python = watchfiles.PythonFilter()
    async for changes in watchfiles.awatch(Path.cwd(), watch_filter=only_python):  # pyright: ignore[reportUnknownMemberType]
        files = sorted({Path(path).name for _, path in changes})
        event("code_changed", files=files)
        changed()
