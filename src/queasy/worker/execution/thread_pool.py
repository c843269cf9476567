"""Plain functions in threads.

To pass each function to a thread, and its result back, would cost more than everything else that a
worker does for a job. So a thread performs one function after another, and the event loop receives
all results of the meantime in one pass. The pool wakes another thread if most of the recent
functions took more than a millisecond, or if functions wait and none has begun for a while.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import Generic, Protocol, TypeVar

from queasy.worker.execution.interruptible import Interruptible

__all__ = ["REFUSE_AFTER", "ThreadPool"]

# While items wait, the pool checks this often, in seconds, whether any has begun.
LOOK_EVERY = 0.001
# An item is long if it takes more than this, in seconds.
LONG = 0.001
# How much each item that ends changes the share of long ones.
WEIGHT = 0.2
# If a look is later than this, in seconds, some function computes: it does not release the
# interpreter. Other threads would make it slower.
COMPUTES_IF_LATER = 0.001
# But a long computation must not hold up the others. If no item has begun for this many seconds,
# another thread is woken.
WAKE_ANYWAY_AFTER = 0.01
# If the first item that waits has waited this long without room, in seconds, all that wait are
# refused. Async handlers are checked at each tick only, each for itself.
REFUSE_AFTER = 0.05


class Pooled(Protocol):
    """An item that a pool performs."""

    @property
    def units(self) -> int:
        """The capacity that it occupies while it is performed."""
        ...

    @property
    def ready_at(self) -> float:
        """When it was added, on the monotonic clock."""
        ...


T = TypeVar("T", bound=Pooled)
R = TypeVar("R")


class _Thread(threading.Thread):
    """One thread of a pool. It waits at its gate while there is nothing to do."""

    def __init__(self, work: Callable[[_Thread], None]) -> None:
        # A program that ends does not wait for functions: others may soon have their jobs.
        super().__init__(name="queasy-function", daemon=True)
        self.gate = threading.Lock()
        self.gate.acquire()
        self.calls = Interruptible()
        self.began = 0.0
        """When the item that it performs began, on the monotonic clock."""
        self._work = work

    def run(self) -> None:
        self._work(self)

    def begin(self, now: float) -> None:
        """An item begins now."""
        self.began = now


class ThreadPool(Generic[T, R]):
    """Performs each item in a thread, and calls `ended` with its result in the event loop.

    Items begin in the order in which they were added, while they fit into `capacity()`. One that
    does not fit begins if nothing else is performed. `perform` must not raise. `refused` receives
    items that will not begin, and why no thread could be started. None: they waited too long.
    """

    def __init__(
        self,
        perform: Callable[[T, Interruptible], R],
        ended: Callable[[R], None],
        refused: Callable[[list[T], Exception | None], None],
        capacity: Callable[[], int],
    ) -> None:
        self.performing = 0
        """How many items are being performed. Changed under the lock."""
        self._perform = perform
        self._ended = ended
        self._refused = refused
        self._capacity = capacity
        self._context = copy_context()
        self._loop: asyncio.AbstractEventLoop | None = None
        # Threads append results without the lock, and the event loop removes them.
        self._results: deque[R] = deque()
        self._will_collect = False
        # Changed by all threads, under the lock. The event loop also reads some without it: a stale
        # value only delays a look.
        self._lock = threading.Lock()
        self._waiting: deque[T] = deque()
        self._parked: list[_Thread] = []
        self._active = 0
        """How many threads are not parked."""
        self._units = 0
        """The capacity that is occupied."""
        self._begun = 0
        """How many items have begun."""
        self._share_of_long = 0.0
        """The share of long items among those that ended last: a moving average."""
        self._closed = False
        # What follows is used by the event loop only.
        self._timer: asyncio.TimerHandle | None = None
        self._looked_at = self._progress_at = 0.0
        self._begun_before = 0

    # In the event loop

    def add(self, items: Sequence[T]) -> None:
        """Perform these items, after those that wait already."""
        self._loop = asyncio.get_running_loop()
        with self._lock:
            self._waiting.extend(items)
            wake = len(items) if self._share_of_long > 0.5 else int(not self._active)
        self._wake(wake)
        if self._timer is None:
            self._progress_at = time.monotonic()
            self._look_soon(self._progress_at)

    def discard(self, item: T) -> bool:
        """Remove an item that has not begun. Returns False if it has."""
        with self._lock, suppress(ValueError):
            self._waiting.remove(item)
            return True
        return False

    def close(self) -> None:
        """Drop items that have not begun. Threads end as soon as they have nothing to perform."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
            parked, self._parked = self._parked, []
        for thread in parked:
            thread.gate.release()
        if self._timer is not None:
            self._timer.cancel()

    def _wake(self, threads: int) -> Exception | None:
        """Wake or start this many threads. Returns the error if one could not be started."""
        for _ in range(threads):
            with self._lock:
                thread = self._parked.pop() if self._parked else None
                self._active += 1
            if thread is not None:
                thread.gate.release()
                continue
            try:
                _Thread(self._work).start()
            except RuntimeError as problem:  # the machine's limit on threads
                with self._lock:
                    self._active -= 1
                return problem
        return None

    def _look_soon(self, now: float) -> None:
        assert self._loop is not None
        self._looked_at, self._begun_before = now, self._begun
        self._timer = self._loop.call_later(LOOK_EVERY, self._look, context=self._context)

    def _look(self) -> None:
        """Wake another thread if items wait and none has begun since the last look."""
        self._timer = None
        now = time.monotonic()
        if self._begun != self._begun_before:
            self._progress_at = now
        computes = now - self._looked_at > LOOK_EVERY + COMPUTES_IF_LATER
        if self._waiting and now - self._progress_at > (WAKE_ANYWAY_AFTER if computes else 0):
            self._help(now)
        if self._waiting:
            self._look_soon(now)

    def _help(self, now: float) -> None:
        """Items wait and none begins: wake as many threads as are blocked, or refuse the items."""
        with self._lock:
            wake = min(len(self._waiting), max(1, self._active)) if self._fits() else 0
        problem = self._wake(wake)
        with self._lock:
            if not self._waiting or (wake and not problem):
                return
            no_thread_left = problem and not self._active
            if not no_thread_left and now - self._waiting[0].ready_at <= REFUSE_AFTER:
                return
            refused = list(self._waiting)
            self._waiting.clear()
        self._refused(refused, problem)

    def _collect(self) -> None:
        """Receive the results of all items that have ended."""
        self._will_collect = False  # first: a result that comes from now on needs another call
        results, ended = self._results, self._ended
        for _ in range(len(results)):
            ended(results.popleft())

    # In the threads

    def _work(self, thread: _Thread) -> None:
        """Perform items until the pool is closed."""
        ended_units = 0
        while (item := self._next(thread, ended_units)) is not None:
            ended_units = item.units
            self._results.append(self._context.copy().run(self._perform, item, thread.calls))
            del item  # a thread that waits must not keep it alive
            if not self._will_collect and self._loop is not None:
                self._will_collect = True
                with suppress(RuntimeError):  # the loop is closed: nobody waits for the result
                    self._loop.call_soon_threadsafe(self._collect, context=self._context)

    def _next(self, thread: _Thread, ended_units: int) -> T | None:
        """Wait for the next item, after the one that ended, if any. None if the pool is closed."""
        now = time.monotonic()
        if ended_units:
            with self._lock:
                self.performing -= 1
                self._units -= ended_units
                is_long = now - thread.began > LONG
                self._share_of_long += WEIGHT * (is_long - self._share_of_long)
        while True:
            with self._lock:
                if self._closed:
                    return None
                if self._fits():
                    item = self._waiting.popleft()
                    self.performing += 1
                    self._units += item.units
                    self._begun += 1
                    thread.begin(now)
                    return item
                self._active -= 1
                self._parked.append(thread)
            thread.gate.acquire()
            now = time.monotonic()

    def _fits(self) -> bool:
        """Whether an item waits, and may begin now."""
        if not self._waiting:
            return False
        return not self._units or self._units + self._waiting[0].units <= self._capacity()
