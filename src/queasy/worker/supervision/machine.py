"""What a supervisor needs of the machine: limits that it names, and orphans that it reaps."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import sys
from collections.abc import Collection

__all__ = ["explain", "is_reaper", "reap_orphans"]

PR_GET_CHILD_SUBREAPER = 37


def explain(problem: OSError) -> str:
    """Why a process could not be started, with the limit that was reached."""
    match problem.errno:
        case errno.EMFILE:
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            return f"{problem}: this process may open {limit} files; raise the limit (ulimit -n)"
        case errno.EAGAIN:
            limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
            shown = "no limit" if limit == resource.RLIM_INFINITY else str(limit)
            return (
                f"{problem}: no more processes; raise the limit of the user (ulimit -u: {shown}), "
                "or that of the container"
            )
        case _:
            return str(problem)


def is_reaper() -> bool:
    """Whether the kernel makes this process the parent of orphans: PID 1, or a subreaper."""
    if os.getpid() == 1:
        return True
    if sys.platform != "linux":
        return False
    flag = ctypes.c_int(0)
    failed = ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(flag), 0, 0, 0)
    return not failed and flag.value != 0


def reap_orphans(own: Collection[int]) -> None:
    """Reaps children that have ended, except its `own`, whose exit code another part reads.

    The kernel shows one child that has ended at a time. If it is an own child, the orphans are
    reaped in a later round.
    """
    look = os.WEXITED | os.WNOHANG | os.WNOWAIT
    try:
        while (ended := os.waitid(os.P_ALL, 0, look)) is not None and ended.si_pid not in own:
            os.waitpid(ended.si_pid, os.WNOHANG)
    except ChildProcessError:  # there are no children
        return
