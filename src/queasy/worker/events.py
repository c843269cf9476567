"""What a worker tells its operator: one line for each thing that happens.

The line is an event and fields; `--log-format json` prints the same as an object. Payloads and
secrets are never among the fields.
"""

from __future__ import annotations

import logging
from typing import Any

__all__ = ["event", "log"]

log = logging.getLogger("queasy.worker")


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
