"""The log of a worker process: text for people, JSON for machines."""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import sys
import threading
import time
from typing import Any, Literal, cast

__all__ = ["FORMATS", "LogFormat", "set_up"]

LogFormat = Literal["text", "json"]
FORMATS: tuple[LogFormat, ...] = ("text", "json")
MOST_RECORDS = 10_000
CLOSING = 2.0


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


class Unblocked(logging.Handler):
    """Writes in a thread: whoever logs does not wait for a pipe that nobody reads. What is too
    much for it is dropped.
    """

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__()
        self._handler = handler
        self._records: queue.Queue[logging.LogRecord | None] = queue.Queue(MOST_RECORDS)
        self._thread = threading.Thread(target=self._write, name="queasy-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(queue.Full):
            self._records.put_nowait(record)

    def _write(self) -> None:
        while (record := self._records.get()) is not None:
            self._handler.handle(record)

    def close(self) -> None:
        """At the end of the process; what is not written in a moment never is."""
        with contextlib.suppress(queue.Full):
            self._records.put_nowait(None)
        self._thread.join(CLOSING)
        super().close()


def set_up(level: str, style: str, errors: str = "traceback", *, unblocked: bool = False) -> None:
    """For the whole process, unless the application has seen to that itself."""
    for name in ("queasy", "queasy.worker", "queasy.handler"):
        # dictConfig and fileConfig silence every logger that is there already, unless told not to.
        logging.getLogger(name).disabled = False
    if errors == "type":  # what a handler raised is in its job's error, not here
        logging.getLogger("queasy.handler").setLevel(logging.CRITICAL)
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    root.addHandler(Unblocked(handler) if unblocked else handler)
    root.setLevel(level.upper())
