"""One child process, as its supervisor sees it: the process, its socket, and its table."""

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

import msgspec

from queasy.dispatch import new_client_id
from queasy.worker.lease_times import LeaseTimes
from queasy.worker.liveness.inflight_table import InflightTable, OnLoop
from queasy.worker.supervision.child_state import ChildSnapshot, ChildState, KillReason, RunKey
from queasy.worker.supervision.messages import (
    MAX_LINE,
    CancelRun,
    ChildConfig,
    Drain,
    Instruction,
    Report,
    Stop,
    decode_report,
    encode,
)

__all__ = ["ChildProcess"]

# A child that has closed its socket has this long to exit.
EXIT_TIMEOUT = 5.0
# Reports that were written before the exit are read for this long after it.
LAST_REPORTS_TIMEOUT = 0.1
MEMORY_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ChildProcess:
    """Starts a child, sends it instructions, observes it, freezes it and kills it.

    `state` says which phase it is in; `table` is the memory in which it records its runs.
    """

    def __init__(self, config: ChildConfig) -> None:
        self.client = new_client_id(config.group)
        self.state = ChildState(time.monotonic())
        with contextlib.ExitStack() as opened:  # closed if the process runs out of files
            table = InflightTable.create_file(config.max_queues, config.capacity)
            opened.callback(os.close, table)
            self.table = InflightTable(
                config.max_queues, config.capacity, table, LeaseTimes.of(config.lease)
            )
            opened.callback(self.table.close)
            self._socket, theirs = map(opened.enter_context, socket.socketpair())
            parent_pipe, self._parent_pipe = os.pipe()
            opened.pop_all()
        self.table.supervisor_ran(self.state.born)
        self._theirs = (theirs, parent_pipe, table)
        self._config = msgspec.structs.replace(
            config,
            client=self.client,
            control=theirs.fileno(),
            parent_pipe=parent_pipe,
            table=table,
        )
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reader: asyncio.StreamReader | None = None

    # Its life

    async def start(self) -> None:
        """Starts the process; raises OSError if there are no more processes, memory or files."""
        theirs, parent_pipe, table = self._theirs
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "queasy.worker.supervision.child",
                msgspec.json.encode(self._config),
                pass_fds=(theirs.fileno(), parent_pipe, table),
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # a group of its own: processes that it starts end with it
            )  # fmt: skip
        finally:
            theirs.close()
            os.close(parent_pipe)
            os.close(table)
        self._reader, self._writer = await asyncio.open_unix_connection(
            sock=self._socket, limit=MAX_LINE
        )

    @property
    def pid(self) -> int:
        """0 until the process has started."""
        return self._process.pid if self._process is not None else 0

    async def run(self, receive: Callable[[Report], None]) -> int:
        """Passes its reports to `receive` until it has ended; returns its exit code.

        The exit code is negative for a signal.
        """
        assert self._process is not None
        reading = asyncio.create_task(self._read_reports(receive))
        exiting = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait([reading, exiting], return_when=asyncio.FIRST_COMPLETED)
            # It has sent its last report, but threads of the application may delay its exit.
            await asyncio.wait([exiting], timeout=EXIT_TIMEOUT)
            if not exiting.done():
                self.kill_group()
            code = await exiting
            # Its last reports may be unread. The socket need not reach its end: a process that the
            # child forked may have inherited it.
            await asyncio.wait([reading], timeout=LAST_REPORTS_TIMEOUT)
        finally:
            reading.cancel()
            exiting.cancel()
        self.state.exited()
        return code

    async def _read_reports(self, receive: Callable[[Report], None]) -> None:
        assert self._reader is not None
        with contextlib.suppress(ConnectionError):
            while line := await self._reader.readline():
                receive(decode_report(line))

    async def close(self) -> None:
        """Releases the files of a child that has ended."""
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
        else:
            self._socket.close()
        with contextlib.suppress(OSError):
            os.close(self._parent_pipe)
        self.table.close()

    # Instructions

    def send(self, instruction: Instruction) -> None:
        """Sends an instruction, if the child can still receive one."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encode(instruction))

    def cancel(self, run: RunKey) -> None:
        """Asks it to cancel a run; once, however often the server says so."""
        if run not in self.state.cancels:
            self.state.cancel_requested(run, self._run_clock(time.monotonic()))
            self.send(CancelRun(*run))

    def drain(self) -> None:
        """Asks it to take no more jobs and to exit when its runs have ended."""
        self.state.drain()
        self._send_or_kill(Drain())

    def stop(self, grace: float) -> None:
        """Asks it to take no more jobs and to exit within `grace` seconds."""
        self.state.stop()
        self._send_or_kill(Stop(grace))

    def _send_or_kill(self, instruction: Stop | Drain) -> None:
        """A child that has not imported the application holds no jobs, and need not be asked."""
        if self.state.planned is None:
            self.kill("stop")
        else:
            self.send(instruction)

    def condemn(self, kill_by: float) -> None:
        """A run does not end: lets the other jobs end until then, while another child starts."""
        self.state.condemn(kill_by)
        if not self.state.is_ending:
            self.drain()

    def kill(self, reason: KillReason, timed_out: frozenset[RunKey] = frozenset()) -> None:
        """Kills it at once, perhaps for these runs, with all processes that it started."""
        self.state.kill(reason, timed_out)
        self.kill_group()

    def kill_group(self) -> None:
        """Kills it and what its handlers have started; also after its own end."""
        self._signal_group(signal.SIGKILL)

    def freeze(self, now: float) -> None:
        """Stops it and what its handlers have started: no step of theirs runs until `thaw`.

        Repeated calls stop it again if another program continued it.
        """
        if self.state.frozen_at is None:
            self.state.freeze(now)
        self._signal_group(signal.SIGSTOP)

    def thaw(self, now: float) -> float:
        """Continues it; returns for how long it was frozen. That counts against no timeout."""
        frozen = 0.0 if self.state.frozen_at is None else now - self.state.frozen_at
        self.table.add_frozen(frozen)  # before it can read its clock
        self.state.thaw(now)
        self._signal_group(signal.SIGCONT)
        return frozen

    def _signal_group(self, number: signal.Signals) -> None:
        if self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def _run_clock(self, now: float) -> float:
        """The child's run clock: it stands still while the child is frozen."""
        frozen_at = self.state.frozen_at
        return self.table.run_clock_at(now if frozen_at is None else frozen_at)

    # Observations

    def observe(
        self, now: float, *, with_memory: bool = False, with_stopped: bool = False
    ) -> ChildSnapshot:
        """A snapshot for the watchdog.

        It reads from /proc only on request: `with_memory` its memory, `with_stopped` whether
        another program stopped it.
        """
        state, table, clock = self.state, self.table, self._run_clock(now)
        # A child that was just thawed has had no time to turn its event loop.
        last_beat = table.run_clock_at(max(table.loop_turned_at, state.thawed_at))
        runs = table.run_count
        entries = table.entries() if runs else ()
        held = table.held_total(len(state.planned.queues)) if state.planned is not None else 0
        state.observed_runs(runs, entries, held, last_beat, clock)
        with_stopped = with_stopped and state.frozen_at is None
        if with_stopped:
            state.observed_stopped(self._is_stopped(), clock)
        return ChildSnapshot(
            now=clock,
            runs=runs,
            entries=entries,
            held=held,
            last_beat=last_beat,
            checked_until=table.deadlines_checked_until,
            on_loop=self._on_loop(),
            cancels=dict(state.cancels),
            killed=state.kill_reason is not None,
            kill_by=state.kill_by,
            cannot_report_since=state.cannot_report_since,
            unconfirmed=max(
                (table.unconfirmed_for(queue, now) for queue in {entry.queue for entry in entries}),
                default=0.0,
            ),
            is_frozen=state.frozen_at is not None,
            stopped_since=state.stopped_since if with_stopped else None,
            memory=self._memory() if with_memory else 0,
            is_settled=state.is_settled(now),
        )

    def _on_loop(self) -> OnLoop | None:
        """What is on its event loop, in times of its run clock."""
        found, thawed_at, clock = self.table.on_loop, self.state.thawed_at, self.table.run_clock_at
        if found is None or found.seen <= thawed_at:
            return None
        return OnLoop(found.run, clock(max(found.since, thawed_at)), clock(found.seen))

    def _memory(self) -> int:
        """Bytes of its resident memory; 0 on systems without /proc."""
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_bytes().split()[1]) * MEMORY_PAGE_BYTES
        except (OSError, IndexError):
            return 0

    def _is_stopped(self) -> bool:
        """Whether it is stopped by SIGSTOP: it neither works nor ends."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_bytes()  # its name need not be text
        except OSError:
            return False
        return stat.rpartition(b")")[2].split()[0] == b"T"
