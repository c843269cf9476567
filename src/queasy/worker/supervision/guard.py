"""Kills a child process that may not run on: its jobs could run a second time elsewhere.

1. The supervisor has ended: the kernel says so (Linux), or the pipe to it ends.
2. The supervisor is alive, but has not run for almost a lease, so that nothing kept the leases.
3. The server has not confirmed the lease of a run for almost a lease's time.

Its thread also looks at the event loop when that does not turn (`loop_watch`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
import time
from typing import NoReturn

from queasy.worker.liveness.inflight_table import InflightTable
from queasy.worker.logs import UnblockedFile
from queasy.worker.supervision.loop_watch import LoopWatch

__all__ = ["die", "start_guard"]

PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """Asks the kernel to kill this process when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def die() -> NoReturn:
    """Kills this process and all that the handlers started: it leads a group of its own."""
    os.killpg(0, signal.SIGKILL)
    os._exit(1)


def start_guard(parent_pipe: int, table: InflightTable, loop_watch: LoopWatch) -> None:
    """Starts the thread that kills this process when it may not run on."""
    _die_with_parent()
    arguments = (parent_pipe, table, loop_watch)
    threading.Thread(target=_guard_or_die, args=arguments, daemon=True).start()


def _guard_or_die(parent_pipe: int, table: InflightTable, loop_watch: LoopWatch) -> None:
    try:
        _guard(parent_pipe, table, loop_watch)
    finally:  # a process without a guard must not hold a lease
        die()


def _guard(parent_pipe: int, table: InflightTable, loop_watch: LoopWatch) -> None:
    """Never returns: kills this process when the supervisor is gone, or leases are not kept."""
    seen_before, times = False, table.times
    poll = select.poll()
    poll.register(parent_pipe, select.POLLIN)
    while True:
        if poll.poll(times.guard_every * 1000):  # never written to: the other end was closed
            die()
        now, supervised = time.monotonic(), table.supervisor_ran_at
        silent = bool(supervised) and now - supervised > times.supervisor_silent
        if table.run_count and (silent or _longest_unconfirmed(table, now) > times.self_kill):
            # Both processes may have been frozen: the supervisor has one round to run again.
            if seen_before:
                cause = "the supervisor" if silent else "the server"
                _write_last_line(f"{cause} is silent, leases are not kept: killing all runs")
                die()
            seen_before = True
        else:
            seen_before = False
        loop_watch.look(now)


def _longest_unconfirmed(table: InflightTable, now: float) -> float:
    """For how long the server has not confirmed the lease of a run; the longest of them."""
    return max((table.unconfirmed_for(queue, now) for queue in table.running_queues()), default=0.0)


def _write_last_line(text: str) -> None:
    """Writes to stderr, unless that would block: a full pipe must not delay the end."""
    with contextlib.suppress(OSError):
        line = f"queasy: worker process {os.getpid()}: {text}\n"
        UnblockedFile(2).write(line.encode())
