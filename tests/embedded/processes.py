"""Find, await and stop the processes of embedded servers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from queasy.store.embedded import keeper

DEADLINE = 30.0
AS_ROOT = os.geteuid() == 0
SERVE_ONCE = """
import sys
from pathlib import Path
from queasy.store.embedded.server import ensure
print(ensure(Path(sys.argv[1])), flush=True)
"""


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.01)
    pytest.fail(f"waited {DEADLINE:.0f} s for {what}")


def processes(folder: Path) -> dict[str, set[int]]:
    """The running keepers of a folder, and their servers."""
    listed = subprocess.run(
        ["ps", "-axww", "-o", "pid=,ppid=,stat=,command="],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [row.split(None, 3) for row in listed.stdout.splitlines()]
    living = [row for row in rows if len(row) == 4 and not row[2].startswith("Z")]
    keepers = {int(row[0]) for row in living if f"keeper.py {folder.resolve()} " in row[3]}
    servers = {
        int(row[0]) for row in living if int(row[1]) in keepers and int(row[0]) not in keepers
    }
    return {"keepers": keepers, "servers": servers}


def alive(pid: int) -> bool:
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(shown.stdout.strip()) and not shown.stdout.startswith("Z")


def the_keeper(folder: Path) -> int:
    (pid,) = processes(folder)["keepers"]
    return pid


def the_server(folder: Path) -> int:
    """The pid in the lock file. A call to the server would restart its idle timer."""
    return int((folder / keeper.SERVER_LOCK).read_text())


def nothing_runs(folder: Path) -> bool:
    return not any(processes(folder).values())


def stop(folder: Path) -> None:
    os.kill(the_server(folder), signal.SIGTERM)
    wait_for(lambda: nothing_runs(folder), "the server and its keeper to end")


def data_file(folder: Path) -> Path:
    """The append-only file that the server writes to."""
    return max((folder / "data").glob("*.incr.aof"))


def wait_written(folder: Path, text: str) -> None:
    """Wait until the file contains a text: the server answers before it writes."""
    wait_for(lambda: text.encode() in data_file(folder).read_bytes(), f"{text} to be written")


def is_free(lock: Path) -> bool:
    if (held := keeper.try_lock(str(lock))) is None:
        return False
    keeper.unlock(held)
    return True


def client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, decode_responses=True, socket_timeout=DEADLINE)


def starter(folder: Path, script: str = SERVE_ONCE) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def kill_processes_left(folder: Path) -> None:
    left = processes(folder)
    pids = left["keepers"] | left["servers"]
    lock = folder / keeper.SERVER_LOCK
    if lock.exists() and not is_free(lock):  # its holder runs, and has this pid
        pids.add(the_server(folder))
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def fake_server(path: Path, version: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "{version}" && exit 0\n')
    path.chmod(0o755)
    return path
