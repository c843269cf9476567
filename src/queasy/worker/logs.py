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
MAX_QUEUED_RECORDS = 10_000
LAST_LINES_SECONDS = 2.0


# The attributes of every record; the application added all others with `extra`.
STANDARD = {*vars(logging.makeLogRecord({})), "event", "fields", "message", "taskName", "asctime"}


class JsonFormatter(logging.Formatter):
    """One JSON object for each line: time, level, logger, event, and the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        shown: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": getattr(record, "event", None) or record.getMessage(),
            "process": record.process,
        }
        fields = cast("dict[str, Any]", getattr(record, "fields", {}))
        more = {name: value for name, value in vars(record).items() if name not in STANDARD}
        shown = {**more, **fields, **shown}
        if record.exc_info:
            shown["traceback"] = self.formatException(record.exc_info)
        return json.dumps(shown, default=str, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """Time, process, level, logger, event, and the event's fields as name=value."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return _time(record)


def _time(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{record.msecs:03.0f}Z"


class BackgroundHandler(logging.Handler):
    """Writes in a thread, so that a full pipe does not block the code that logs.

    When too many records wait, further ones are dropped.
    """

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__()
        self._handler = handler
        self._records: queue.Queue[logging.LogRecord | None] = queue.Queue(MAX_QUEUED_RECORDS)
        self._thread = threading.Thread(target=self._write, name="queasy-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(queue.Full):
            self._records.put_nowait(record)

    def _write(self) -> None:
        while (record := self._records.get()) is not None:
            self._handler.handle(record)

    def close(self) -> None:
        """Waits a moment for the last records, at the end of the process."""
        with contextlib.suppress(queue.Full):
            self._records.put_nowait(None)
        self._thread.join(LAST_LINES_SECONDS)
        super().close()


def set_up(level: str, style: str, errors: str = "traceback", *, unblocked: bool = False) -> None:
    """Configures logging for the whole process, unless the application has done so."""
    for name in ("queasy", "queasy.worker", "queasy.handler"):
        # By default dictConfig and fileConfig disable every logger that exists already.
        logging.getLogger(name).disabled = False
    if errors == "type":  # errors of handlers are in the record of their job only
        logging.getLogger("queasy.handler").setLevel(logging.CRITICAL)
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    root.addHandler(BackgroundHandler(handler) if unblocked else handler)
    root.setLevel(level.upper())
