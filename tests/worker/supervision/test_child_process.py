"""What a supervisor keeps of a child process: open files and cancel requests."""

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from queasy.worker.plan import LEASE
from queasy.worker.supervision.child_process import ChildProcess
from queasy.worker.supervision.options import SupervisorOptions, child_config
from queasy.worker.supervision.watchdog import look_at_runs

CONFIG = child_config(SupervisorOptions(app="absent:client", processes=1), "group", ())
FILES = 300


def open_files() -> set[int]:
    return {number for number in range(FILES) if is_open(number)}


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


@contextmanager
def files_left(count: int) -> Iterator[None]:
    """Leaves this process only `count` free file descriptors."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, before[1]))
    filling: list[int] = []
    try:
        with suppress(OSError):
            while True:
                filling.append(os.dup(1))
        for _ in range(count):
            os.close(filling.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for file in filling:
            os.close(file)


@pytest.mark.parametrize("left", range(5))
def test_child_process_that_cannot_start_leaves_no_file_open(left: int) -> None:
    """Bug: starting needs five files; each failed attempt leaked one, and it retries for ever."""
    with files_left(left):
        before = open_files()
        with pytest.raises(OSError, match="Too many open files"):
            ChildProcess(CONFIG)
        assert open_files() == before


async def test_cancel_request_is_forgotten_when_its_run_has_ended() -> None:
    """Bug: it was kept until nothing ran at all, which in a busy worker is never."""
    child = ChildProcess(CONFIG)
    now = time.monotonic()
    child.table.start(0, "busy", 1, now, now + 1000)
    slot = child.table.start(0, "asked", 2, now, now + 1000)
    child.cancels = {(0, "asked", 2): now, (0, "not begun", 3): now}
    look_at_runs(child, now + 0.5, 60)
    assert len(child.cancels) == 2
    child.table.end(slot)
    look_at_runs(child, now + LEASE / 2, 60)
    assert len(child.cancels) == 2
    look_at_runs(child, now + LEASE + 1, 60)
    assert child.cancels == {}
    await child.start()  # closes the files of the child
    await child.live(lambda _: None)
    await child.close()
