"""One child process, as its supervisor sees it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from queasy.dispatch import new_id
from queasy.worker.liveness.inflight_table import InflightTable
from queasy.worker.supervision.messages import (
    LONGEST_LINE,
    ChildConfig,
    Drain,
    Planned,
    Report,
    Stop,
    ToChild,
    decode_report,
    encode,
)

__all__ = ["ChildProcess"]

Killed = Literal["stop", "overdue", "memory", "frozen", "dumb", "lost"]
SETTLED = 5.0
EXITING = 5.0
LISTENING = 0.1
PAGE = os.sysconf("SC_PAGE_SIZE")


class ChildProcess:
    """Started, told, watched, killed."""

    def __init__(self, config: ChildConfig) -> None:
        self.client = new_id()
        self.born = time.monotonic()
        self.serving = False
        self.retiring = False
        """It is to be drained when another has taken its place."""
        self.ending = False
        """It was asked to end, and takes no more jobs."""
        self.leaving = False
        """It said that it ends, and why."""
        self.killed: Killed | None = None
        self.killed_at = 0.0
        self.drain_by = 0.0
        self.stopped_since: float | None = None
        self.dumb_since: float | None = None
        self.planned: Planned | None = None
        self.cancels: dict[tuple[int, str, int], float] = {}
        """Runs it was told to cancel, and when."""
        with contextlib.ExitStack() as opened:  # closed, should there be no more files
            table = InflightTable.create_file(config.most_queues, config.capacity)
            opened.callback(os.close, table)
            self.table = InflightTable(config.most_queues, config.capacity, table)
            opened.callback(self.table.close)
            self._socket, theirs = map(opened.enter_context, socket.socketpair())
            life, self._life = os.pipe()
            opened.pop_all()
        self.table.supervise(self.born)
        self.table.passes = True  # until it is chosen
        self._theirs = (theirs, life, table)
        self._config = msgspec.structs.replace(
            config, client=self.client, control=theirs.fileno(), life=life, table=table
        )
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reader: asyncio.StreamReader | None = None

    async def start(self) -> None:
        theirs, life, table = self._theirs
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "queasy.worker.supervision.child",
                msgspec.json.encode(self._config),
                pass_fds=(theirs.fileno(), life, table),
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # a group of its own: what it starts ends with it
            )  # fmt: skip
        finally:
            theirs.close()
            os.close(life)
            os.close(table)
        self._reader, self._writer = await asyncio.open_unix_connection(
            sock=self._socket, limit=LONGEST_LINE
        )

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    async def live(self, hear: Callable[[Report], None]) -> int:
        """Hears what it tells until it is gone; its exit code, negative for a signal."""
        assert self._process is not None
        listening = asyncio.create_task(self._listen(hear))
        exiting = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait([listening, exiting], return_when=asyncio.FIRST_COMPLETED)
            # It has said its last word; threads of the application may hold it up.
            await asyncio.wait([exiting], timeout=EXITING)
            if not exiting.done():
                self.kill_group()
            code = await exiting
            # What it said last may be unread, but there need not be an end: a process that it
            # forked has the other end of the line, too.
            await asyncio.wait([listening], timeout=LISTENING)
        finally:
            listening.cancel()
            exiting.cancel()
        return code

    async def _listen(self, hear: Callable[[Report], None]) -> None:
        assert self._reader is not None
        with contextlib.suppress(ConnectionError):
            while line := await self._reader.readline():
                hear(decode_report(line))

    def tell(self, order: ToChild) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encode(order))

    def end(self, order: Stop | Drain) -> None:
        """Asks it to. One that has not even begun is not asked."""
        self.ending = True
        if self.planned is None:
            self.kill("stop")
        else:
            self.tell(order)

    def kill(self, why: Killed) -> None:
        """At once, with all that it started."""
        self.ending = True
        if self.killed is None:
            self.killed, self.killed_at = why, time.monotonic()
        self.kill_group()

    def kill_group(self) -> None:
        if self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def settled(self, now: float) -> bool:
        """It did not just start: what becomes of it says nothing about the next."""
        return self.serving and now - self.born > SETTLED

    def memory(self) -> int:
        """Bytes of its resident memory; 0 where nobody tells."""
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_bytes().split()[1]) * PAGE
        except (OSError, IndexError):
            return 0

    def is_stopped(self) -> bool:
        """By SIGSTOP: it neither works nor ends."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_bytes()  # its name need not be text
        except OSError:
            return False
        return stat.rpartition(b")")[2].split()[0] == b"T"

    async def close(self) -> None:
        """After its death."""
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
        else:
            self._socket.close()
        with contextlib.suppress(OSError):
            os.close(self._life)
        self.table.close()
