"""Kills what handlers have started when the supervisor dies: a small process of its own.

The kernel kills the children of a supervisor that dies, but not the processes that they started.
The group killer knows the process group of each child, and reads a pipe from the supervisor. When
the pipe ends, it kills the groups that are left.

It runs with `python -I -S`, so this module imports nothing of Queasy.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

__all__ = ["GroupKiller"]


class GroupKiller:
    """The group killer of one supervisor, as the supervisor sees it."""

    def __init__(self) -> None:
        # The kernel kills all processes of a container whose PID 1 has ended.
        self._wanted = os.getpid() != 1
        self._pipe: int | None = None

    def add(self, group: int) -> None:
        """A child was started, which leads this process group."""
        if self._wanted and self._pipe is None:
            with contextlib.suppress(OSError, subprocess.CalledProcessError):  # no more files
                self._start()
        self._send(f"+{group}\n")

    def _start(self) -> None:
        theirs, ours = os.pipe()
        try:
            # This takes some milliseconds: the process that is started forks, and ends.
            subprocess.run(
                [sys.executable, "-I", "-S", __file__], stdin=theirs, check=True,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        os.set_blocking(ours, False)
        self._pipe = ours

    def remove(self, group: int) -> None:
        """The group was killed."""
        self._send(f"-{group}\n")

    def _send(self, line: str) -> None:
        if self._pipe is not None:
            with contextlib.suppress(OSError):  # it was killed
                os.write(self._pipe, line.encode())

    def close(self) -> None:
        """Ends it, once all groups were killed."""
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


def main() -> None:
    """Waits for the end of the supervisor, in a process that is not a child of it."""
    if os.fork():
        os._exit(0)
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # sent to the whole service
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    with os.fdopen(0, "rb") as lines:
        for line in lines:
            change = groups.add if line[:1] == b"+" else groups.discard
            change(int(line[1:]))
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
