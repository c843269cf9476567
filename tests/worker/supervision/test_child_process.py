"""What a supervisor keeps of a child process: open files, and what it observes."""

import os
import resource
import time
from collections.abc import AsyncIterator, Iterator
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


@pytest.fixture
async def child() -> AsyncIterator[ChildProcess]:
    """A child whose process has ended. What the table says is up to the test."""
    child = ChildProcess(CONFIG)
    await child.start()
    await child.run(lambda report: None)
    yield child
    await child.close()


async def test_leases_are_as_doubtful_as_those_of_the_worst_queue_with_runs(
    child: ChildProcess,
) -> None:
    now = time.monotonic()
    child.table.start_run(0, "a", 1, now, now + 60)
    slot = child.table.start_run(1, "b", 2, now, now + 60)
    for queue, unconfirmed in ((0, 0.5), (1, 30.0), (2, 99.0)):  # nothing of the third one runs
        child.table.add_held(queue, 1)
        child.table.set_confirmed_at(queue, now - unconfirmed)
    assert child.observe(now).unconfirmed == pytest.approx(30)
    child.table.set_confirmed_at(1, now)
    assert child.observe(now).unconfirmed == pytest.approx(0.5)
    child.table.end_run(slot)
    child.table.set_confirmed_at(1, now - 30)
    assert child.observe(now).unconfirmed == pytest.approx(0.5)


async def test_the_clock_of_a_child_stands_still_while_it_is_frozen(child: ChildProcess) -> None:
    born = time.monotonic()
    child.table.start_run(0, "a", 1, born, born + 20)
    child.table.loop_turned(born + 10)
    child.freeze(born + 10)
    child.freeze(born + 50)  # again, in case that another program continued it
    frozen = child.observe(born + 60)
    assert (frozen.is_frozen, frozen.now - born) == (True, pytest.approx(10))
    assert child.thaw(born + 70) == pytest.approx(60)
    thawed = child.observe(born + 70.5)
    assert (thawed.is_frozen, thawed.now - born) == (False, pytest.approx(10.5))
    assert not thawed.is_blocked, "its event loop had no time to turn"
    assert thawed.entries[0].deadline - thawed.now == pytest.approx(9.5)
    assert child.observe(born + 72).is_blocked
