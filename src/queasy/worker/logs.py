"""The log of a worker process: text for people, JSON for machines."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Literal, cast

__all__ = ["FORMATS", "LogFormat", "set_up"]

LogFormat = Literal["text", "json"]
FORMATS: tuple[LogFormat, ...] = ("text", "json")


# What every record has; the rest is what the application said with `extra`.
KNOWN = {*vars(logging.makeLogRecord({})), "event", "fields", "message", "taskName", "asctime"}


class JsonFormatter(logging.Formatter):
    """One object for each line: time, level, logger, event, and the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        shown: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": getattr(record, "event", None) or record.getMessage(),
            "process": record.process,
        }
        fields = cast("dict[str, Any]", getattr(record, "fields", {}))
        more = {name: value for name, value in vars(record).items() if name not in KNOWN}
        shown = {**more, **fields, **shown}
        if record.exc_info:
            shown["traceback"] = self.formatException(record.exc_info)
        return json.dumps(shown, default=str, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """Time, process, level, and what happened, as name=value."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return _time(record)


def _time(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{record.msecs:03.0f}Z"


def set_up(level: str, style: str, errors: str = "traceback") -> None:
    """For the whole process, unless the application has seen to that itself."""
    if errors == "type":  # what a handler raised is in its job's error, not here
        logging.getLogger("queasy.handler").setLevel(logging.CRITICAL)
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    root.addHandler(handler)
    root.setLevel(level.upper())
