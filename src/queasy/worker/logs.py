"""The log of a worker process: text for people, JSON for machines."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import socket
import stat
import sys
import threading
import time
from typing import Any, Literal, cast

__all__ = ["FORMATS", "LogFormat", "UnblockedFile", "set_up"]

LogFormat = Literal["text", "json"]
FORMATS: tuple[LogFormat, ...] = ("text", "json")
MAX_WAITING_BYTES = 2**20
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


class UnblockedHandler(logging.Handler):
    """Writes lines to a file descriptor, and never blocks the code that logs.

    It writes a line at once if there is room for it: a line must not be lost when the process dies
    right after it. A pipe, a socket or a terminal that is not read becomes full. Then a thread
    writes, lines wait for the thread up to `MAX_WAITING_BYTES`, and further lines are dropped and
    counted.
    """

    def __init__(self, fd: int, encoding: str = "utf-8") -> None:
        super().__init__()
        self._fd = fd
        self._encoding = encoding
        self._unblocked: UnblockedFile | None = None
        with contextlib.suppress(OSError):  # of another user, or no /proc: the thread writes all
            self._unblocked = UnblockedFile(fd)
        self._dropped = 0
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._queued_bytes = self._written_bytes = 0  # each has one writer: emit, and the thread
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self._process != os.getpid():  # forked: the thread is in the parent
            self._begin()
        if self._queued_bytes - self._written_bytes > MAX_WAITING_BYTES:
            self._dropped += 1
            return
        try:
            if self._dropped:
                self._send(_dropped_lines(self._dropped))
                self._dropped = 0
            self._send(record)
        except Exception as problem:  # of the code that logs; `handleError` could block
            self._send(_invalid_line(record, problem))

    def _send(self, record: logging.LogRecord) -> None:
        line = f"{self.format(record)}\n".encode(self._encoding, "backslashreplace")
        if self._unblocked is not None and self._queued_bytes == self._written_bytes:
            line = line[self._unblocked.write(line) :]
        if line:
            self._queued_bytes += len(line)
            self._waiting.put(line)
            if self._thread is None:
                thread = threading.Thread(target=self._write, name="queasy-log", daemon=True)
                with contextlib.suppress(RuntimeError):  # no more threads: the next line tries
                    thread.start()
                    self._thread = thread

    def _write(self) -> None:
        while (line := self._waiting.get()) is not None:
            self._written_bytes += _write_all(self._fd, line)

    def close(self) -> None:
        """Waits at most `LAST_LINES_SECONDS` for the last lines, at the end of the process."""
        if self._process == os.getpid():
            if self._dropped:
                self._send(_dropped_lines(self._dropped))
                self._dropped = 0
            if self._thread is not None:
                self._waiting.put(None)
                self._thread.join(LAST_LINES_SECONDS)
                self._thread = None
            if self._unblocked is not None:
                self._unblocked.close()
                self._unblocked = None
        super().close()


def _dropped_lines(count: int) -> logging.LogRecord:
    fields = {"what": "log not read", "count": count}
    return logging.makeLogRecord({
        "name": "queasy.worker", "levelno": logging.WARNING, "levelname": "WARNING",
        "msg": f"log_lines_suppressed what='log not read' count={count}",
        "event": "log_lines_suppressed", "fields": fields,
    })  # fmt: skip


def _invalid_line(record: logging.LogRecord, problem: Exception) -> logging.LogRecord:
    where = f"{record.pathname}:{record.lineno}"
    return logging.makeLogRecord({
        "name": record.name, "levelno": logging.ERROR, "levelname": "ERROR",
        "msg": f"{where} logged a line that cannot be formatted: {type(problem).__name__}",
    })  # fmt: skip


def _write_all(fd: int, line: bytes) -> int:
    """Writes a line, however long that takes; returns its length. If the file is closed, the line
    is lost.
    """
    done = 0
    with contextlib.suppress(OSError):
        while done < len(line):
            done += os.write(fd, line[done:])
    return len(line)


class UnblockedFile:
    """A file that is written to without waiting.

    The descriptor itself stays as it is: other processes share it, and expect it to block.
    """

    def __init__(self, fd: int) -> None:
        mode = os.fstat(fd).st_mode
        self._is_socket = stat.S_ISSOCK(mode)
        self._fd, self._opened = fd, False
        if not self._is_socket and not stat.S_ISREG(mode):
            self._fd = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
            self._opened = True

    def write(self, line: bytes) -> int:
        """Writes as many bytes as the file takes now; returns their number."""
        try:
            return self._send(line) if self._is_socket else os.write(self._fd, line)
        except BlockingIOError:
            return 0
        except OSError:  # closed: the line is lost
            return len(line)

    def _send(self, line: bytes) -> int:
        with socket.fromfd(self._fd, socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            return connection.send(line, socket.MSG_DONTWAIT)

    def close(self) -> None:
        if self._opened:
            os.close(self._fd)


def set_up(level: str, style: str, errors: str = "traceback") -> None:
    """Configures logging for the whole process, unless the application has done so."""
    for name in ("queasy", "queasy.worker", "queasy.handler"):
        # By default dictConfig and fileConfig disable every logger that exists already.
        logging.getLogger(name).disabled = False
    if errors == "type":  # errors of handlers are in the record of their job only
        logging.getLogger("queasy.handler").setLevel(logging.CRITICAL)
    root = logging.getLogger()
    if root.handlers:
        return
    handler = _new_handler()
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    root.addHandler(handler)
    root.setLevel(level.upper())


def _new_handler() -> logging.Handler:
    """A handler that writes to stderr. If the application has replaced `sys.stderr`, its object is
    used as it is.
    """
    stream = sys.stderr
    if stream is not None and stream is sys.__stderr__:  # pyright: ignore[reportUnnecessaryComparison]
        with contextlib.suppress(OSError):
            return UnblockedHandler(stream.fileno(), stream.encoding)
    return logging.StreamHandler(stream)
