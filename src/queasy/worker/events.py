"""The log of a worker: one line for each event.

A line is the name of the event and its fields; `--log-format json` writes the same as an object.
Fields never contain payloads or secrets. docs/reference/log-events.md lists all events.
"""

from __future__ import annotations

import logging
import math
import time
import weakref
from collections.abc import Mapping
from typing import Any

__all__ = [
    "MAX_JOBS_LOGGED",
    "Flood",
    "event",
    "log",
    "log_error",
    "log_event",
    "report_suppressed",
]

log = logging.getLogger("queasy.worker")

# More lines of one kind in a second cannot be read, and writing them would be most of the work.
MAX_LINES_PER_SECOND = 100
# An event about many jobs names this many of them.
MAX_JOBS_LOGGED = 5


class Flood:
    """Limits lines of one kind to `MAX_LINES_PER_SECOND`, and logs how many were suppressed."""

    def __init__(self, logger: logging.Logger, what: str) -> None:
        self._logger = logger
        self._what = what
        self._second_ends = 0.0
        self._lines = 0
        _floods.add(self)

    def admit(self) -> bool:
        """Counts one more line; returns whether to write it."""
        self.report_suppressed(time.monotonic())
        self._lines += 1
        return self._lines <= MAX_LINES_PER_SECOND

    def report_suppressed(self, now: float) -> None:
        """When the second is over, logs how many lines were suppressed in it."""
        if now >= self._second_ends:
            suppressed, self._lines = self._lines - MAX_LINES_PER_SECOND, 0
            self._second_ends = time.monotonic() + 1.0
            if suppressed > 0:
                fields = {"what": self._what, "count": suppressed}
                log_event(self._logger, logging.WARNING, "log_lines_suppressed", fields)


_floods: weakref.WeakSet[Flood] = weakref.WeakSet()


def report_suppressed(now: float = math.inf) -> None:
    """Logs how many lines were suppressed, even if no further line comes.

    With `now`, only those of seconds that are over; without it, all.
    """
    for flood in list(_floods):
        flood.report_suppressed(now)


def event(what: str, level: int = logging.INFO, /, **fields: Any) -> None:
    """Logs an event. Fields that are None, "" or [] are left out."""
    log_event(log, level, what, fields)


def log_error(what: str, error: BaseException, /, **fields: Any) -> None:
    """Logs an event with the traceback of an error."""
    log_event(log, logging.ERROR, what, fields, error)


def log_event(
    logger: logging.Logger,
    level: int,
    what: str,
    fields: Mapping[str, Any],
    error: BaseException | None = None,
) -> None:
    """Logs an event with any logger, and with the traceback of the error if there is one."""
    if logger.isEnabledFor(level):
        shown = {name: value for name, value in fields.items() if value not in (None, "", [])}
        text = " ".join([what, *(f"{name}={_text(value)}" for name, value in shown.items())])
        logger.log(level, "%s", text, exc_info=error, extra={"event": what, "fields": shown})


def _text(value: object) -> str:
    """A field's value as one word, quoted if it is not one."""
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, (list, tuple)):
        return ",".join(map(_text, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    text = str(value)
    plain = text.isprintable() and not any(c.isspace() or c in "\"'=" for c in text)
    return text if text and plain else repr(text)
