"""What a worker tells its operator: one line for each thing that happens.

The line is an event and fields; `--log-format json` prints the same as an object. Payloads and
secrets are never among the fields.
"""

from __future__ import annotations

import logging
import time
from typing import Any

__all__ = ["Flood", "event", "log"]

log = logging.getLogger("queasy.worker")

# More lines of one kind in a second nobody reads; to write them would be most of the work.
MOST_LINES = 100


class Flood:
    """Lets so many lines a second through, and says later how many it did not."""

    def __init__(self, logger: logging.Logger, what: str) -> None:
        self._logger = logger
        self._what = what
        self._ends = 0.0
        self._lines = 0

    def lets(self) -> bool:
        """Whether to write one more."""
        now = time.monotonic()
        if now >= self._ends:
            if self._lines > MOST_LINES:
                untold = self._lines - MOST_LINES
                self._logger.warning("%s: %d more, in a second", self._what, untold)
            self._ends, self._lines = now + 1.0, 0
        self._lines += 1
        return self._lines <= MOST_LINES


def event(what: str, level: int = logging.INFO, /, **fields: Any) -> None:
    """Logs that something happened."""
    if log.isEnabledFor(level):
        shown = {name: value for name, value in fields.items() if value not in (None, "", [])}
        text = " ".join([what, *(f"{name}={_text(value)}" for name, value in shown.items())])
        log.log(level, "%s", text, extra={"event": what, "fields": shown})


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, (list, tuple)):
        return ",".join(map(_text, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    text = str(value)
    plain = text.isprintable() and not any(c.isspace() or c in "\"'=" for c in text)
    return text if text and plain else repr(text)
