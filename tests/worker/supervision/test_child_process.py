"""What a supervisor keeps of a child process: open files and cancel requests."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from queasy.worker.supervision.child_process import ChildProcess
from queasy.worker.supervision.options import SupervisorOptions, child_config

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
    """Bug: a start needs five files. Each failed start leaked one, and starts are retried."""
    with files_left(left):
        before = open_files()
        with pytest.raises(OSError, match="Too many open files"):
            ChildProcess(CONFIG)
        assert open_files() == before
