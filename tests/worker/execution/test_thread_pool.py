"""Plain functions in threads: which thread performs what, and when another one is woken."""

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import pytest

from queasy import Interrupted
from queasy.worker.execution.interruptible import Interruptible
from queasy.worker.execution.thread_pool import ThreadPool

PATIENCE = 20.0
word = ContextVar("word", default="outside")


@dataclass(eq=False)
class Item:
    function: Callable[[], object]
    units: int = 10
    ready_at: float = field(default_factory=time.monotonic)
    thread: int = 0


class Pool:
    """A pool with room for ten items of ten units, and what became of the items."""

    def __init__(self) -> None:
        self.ended: list[object] = []
        self.refused: list[Item] = []
        self.problems: list[Exception | None] = []
        self.capacity = 100
        self.pool = ThreadPool(
            self._perform, self.ended.append, self._refuse, lambda: self.capacity
        )

    def _perform(self, item: Item, calls: Interruptible) -> object:
        item.thread = threading.get_ident()
        return item.function()

    def _refuse(self, items: list[Item], problem: Exception | None) -> None:
        self.refused += items
        self.problems.append(problem)

    def add(self, *functions: Callable[[], object], units: int = 10) -> list[Item]:
        items = [Item(function, units) for function in functions]
        self.pool.add(items)
        return items

    async def all_of(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(self.ended) + len(self.refused) < count:
                await asyncio.sleep(0.001)


@asynccontextmanager
async def open_pool() -> AsyncIterator[Pool]:
    pool, before = Pool(), set(threading.enumerate())
    try:
        yield pool
    finally:
        pool.pool.close()
        for thread in set(threading.enumerate()) - before:
            await asyncio.to_thread(thread.join, PATIENCE)


async def test_short_functions_share_a_thread_and_end_in_order() -> None:
    async with open_pool() as pool:
        items = pool.add(*(lambda n=n: n for n in range(500)), units=1)
        await pool.all_of(500)
        assert pool.ended == list(range(500))
        most = max(sum(item.thread == thread for item in items) for thread in ids(items))
        assert most > 250, "a thread that was woken by mistake takes some of them"


async def test_loop_is_woken_once_for_results_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, woken = asyncio.get_running_loop(), list[Any]()
    wake = loop.call_soon_threadsafe

    def count(callback: Any, *arguments: Any, **more: Any) -> asyncio.Handle:
        woken.append(callback)
        return wake(callback, *arguments, **more)

    monkeypatch.setattr(loop, "call_soon_threadsafe", count)
    async with open_pool() as pool:
        done = threading.Event()
        pool.add(*(lambda: None for _ in range(500)), done.set, units=1)
        done.wait(PATIENCE)  # the loop is busy, and the thread goes on
        assert len(woken) == 1
        await pool.all_of(501)


async def test_functions_that_block_run_at_once_as_far_as_they_fit() -> None:
    async with open_pool() as pool:
        together = threading.Barrier(10)
        items = pool.add(*[together.wait] * 10)
        await pool.all_of(10)
        assert len(ids(items)) == 10
        assert not pool.refused


async def test_function_behind_one_that_blocks_begins_soon() -> None:
    async with open_pool() as pool:
        may_end = threading.Event()
        pool.add(may_end.wait)
        pool.add(lambda: "short")
        await pool.all_of(1)
        assert pool.ended == ["short"]
        may_end.set()
        await pool.all_of(2)


async def test_function_that_does_not_fit_waits_for_room() -> None:
    async with open_pool() as pool:
        may_end = threading.Event()
        pool.add(may_end.wait, units=70)
        await until(lambda: pool.pool.performing == 1)
        (large,) = pool.add(lambda: "large", units=40)
        await asyncio.sleep(0.02)
        assert not large.thread
        may_end.set()
        await pool.all_of(2)
        assert pool.ended == [True, "large"]


async def test_function_larger_than_the_capacity_runs_alone() -> None:
    async with open_pool() as pool:
        pool.add(lambda: "huge", units=500)
        await pool.all_of(1)
        assert pool.ended == ["huge"]


async def test_functions_that_find_no_thread_for_long_are_refused() -> None:
    async with open_pool() as pool:
        may_end = threading.Event()
        pool.add(*[may_end.wait] * 10)
        await until(lambda: pool.pool.performing == 10)
        late = pool.add(*[lambda: None] * 3)
        await pool.all_of(3)
        assert (pool.refused, pool.problems) == (late, [None])
        may_end.set()
        await pool.all_of(13)
        assert not any(item.thread for item in late)


async def test_discarded_item_does_not_begin_unless_it_has() -> None:
    async with open_pool() as pool:
        may_end = threading.Event()
        (begun,) = pool.add(may_end.wait, units=100)
        await until(lambda: bool(begun.thread))
        (waiting,) = pool.add(lambda: "never", units=100)
        assert pool.pool.discard(waiting)
        assert not pool.pool.discard(waiting)
        assert not pool.pool.discard(begun)
        may_end.set()
        await pool.all_of(1)
        assert not waiting.thread


async def test_context_of_one_function_does_not_reach_another() -> None:
    async with open_pool() as pool:
        word.set("where the pool is used")
        pool.add(lambda: word.set("inside"), word.get)
        await pool.all_of(2)
        assert pool.ended[1] == "outside", "the pool was made before"


async def test_nothing_is_kept_of_an_item_that_ended() -> None:
    async with open_pool() as pool:
        pool.add(lambda: None)
        await pool.all_of(1)
        gc.collect()
        assert not [one for one in gc.get_objects() if isinstance(one, Item)]


@pytest.mark.parametrize("threads", [0, 2])
async def test_without_another_thread_items_are_refused_with_the_reason_or_wait(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Items wait a moment if another thread may soon be free."""
    async with open_pool() as pool:
        may_end = threading.Event()
        if threads:
            pool.add(*[may_end.wait] * threads)
            await until(lambda: pool.pool.performing == threads)

        def fail(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail)
            late = pool.add(lambda: "late")
            await pool.all_of(1)
        assert pool.refused == late
        assert [str(problem) for problem in pool.problems] == ["can't start new thread"]
        may_end.set()
        await pool.all_of(1 + threads)
        pool.add(lambda: "later")
        await pool.all_of(2 + threads)
        assert pool.ended[-1] == "later"


async def test_threads_end_when_the_pool_is_closed() -> None:
    before = set(threading.enumerate())
    async with open_pool() as pool:
        pool.add(*[threading.Barrier(10).wait] * 10)
        await pool.all_of(10)
        threads = {one for one in threading.enumerate() if one.name == "queasy-function"} - before
        assert len(threads) >= 10
    assert not any(thread.is_alive() for thread in threads)


def ids(items: list[Item]) -> set[int]:
    return {item.thread for item in items}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.001)


PROGRAM = """
import sys, threading, time
from queasy.outcomes import Interrupted
from queasy import Interrupted
from queasy.worker.execution.interruptible import Interruptible

def function(argument):
    started.set()
    try:
        while True:
            time.sleep(0.001)
    finally:
        ended.append("interrupted")

def call():
    try:
        return calls.call(function, job)
    except Interrupted:
        return None

started, ended, job = threading.Event(), [], object()
calls = Interruptible()
results = []
thread = threading.Thread(target=lambda: results.append((call(), traced())))

def traced():
    # As a debugger or a coverage tool does, in the thread that was interrupted.
    sys.setprofile(lambda *_: None)
    try:
        return sum(range(10))
    finally:
        sys.setprofile(None)

thread.start()
started.wait()
calls.interrupt(object())
calls.interrupt(job)
thread.join()
sys.setprofile(lambda *_: None)
after = (lambda: "called")()
sys.setprofile(None)
print(results, ended, after)
"""


def test_interrupted_call_leaves_no_pending_interruption_in_the_interpreter() -> None:
    """Bug: clearing an interruption left CPython 3.11 with one that never went away. Every function
    call of the process checked for it, and a traced one, as under a debugger, never returned.
    """
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=30, check=True
    )
    assert run.stdout == "[(None, 45)] ['interrupted'] called\n"


def test_interruption_hits_only_the_call_with_that_argument() -> None:
    """A thread performs many functions: one that was to be interrupted may have returned."""
    calls, hit = Interruptible(), list[int]()
    current = [0]
    stop = threading.Event()

    def spin(number: int) -> None:
        current[0] = number
        for _ in range(1000):
            pass

    def work() -> None:
        for number in range(1, 3000):
            try:
                calls.call(spin, number)
            except Interrupted:
                hit.append(number)
        stop.set()

    asked = set[int]()
    thread = threading.Thread(target=work)
    thread.start()
    while not stop.is_set():
        asked.add(number := current[0])
        calls.interrupt(number)
    thread.join()
    assert hit, "expected some interruptions in time"
    assert set(hit) <= asked
    assert len(hit) == len(set(hit))
