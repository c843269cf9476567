"""What a worker tells its operator: one line for each thing that happens.

The line is an event and fields; `--log-format json` prints the same as an object. Payloads and
secrets are never among the fields.
"""

from __future__ import annotations

import logging
import math
import time
import weakref
from collections.abc import Mapping
from typing import Any

__all__ = ["Flood", "event", "log", "tell", "tell_untold"]

log = logging.getLogger("queasy.worker")

# More lines of one kind in a second nobody reads; to write them would be most of the work.
MOST_LINES = 100


class Flood:
    """Lets so many lines a second through, and says then how many it did not."""

    def __init__(self, logger: logging.Logger, what: str) -> None:
        self._logger = logger
        self._what = what
        self._ends = 0.0
        self._lines = 0
        _floods.add(self)

    def lets(self) -> bool:
        """Whether to write one more."""
        self.tell(time.monotonic())
        self._lines += 1
        return self._lines <= MOST_LINES

    def tell(self, now: float) -> None:
        """When the second is over: what was not written in it."""
        if now >= self._ends:
            untold, self._lines = self._lines - MOST_LINES, 0
            self._ends = time.monotonic() + 1.0
            if untold > 0:
                self._logger.warning("%s: %d more, not shown", self._what, untold)


_floods: weakref.WeakSet[Flood] = weakref.WeakSet()


def tell_untold(now: float = math.inf) -> None:
    """Also when nothing more happens; without a time, at the end."""
    for flood in list(_floods):
        flood.tell(now)


def event(what: str, level: int = logging.INFO, /, **fields: Any) -> None:
    """Logs that something happened."""
    tell(log, level, what, fields)


def tell(
    logger: logging.Logger,
    level: int,
    what: str,
    fields: Mapping[str, Any],
    error: BaseException | None = None,
) -> None:
    """The same by another logger, or with the traceback of an error."""
    if logger.isEnabledFor(level):
        shown = {name: value for name, value in fields.items() if value not in (None, "", [])}
        text = " ".join([what, *(f"{name}={_text(value)}" for name, value in shown.items())])
        logger.log(level, "%s", text, exc_info=error, extra={"event": what, "fields": shown})


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, (list, tuple)):
        return ",".join(map(_text, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    text = str(value)
    plain = text.isprintable() and not any(c.isspace() or c in "\"'=" for c in text)
    return text if text and plain else repr(text)
