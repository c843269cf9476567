"""Plain functions in threads, and the means to interrupt one.

An interruption is an exception raised inside the function at its next step in Python. A function
inside native code does not notice it until that code returns. Its supervisor kills such a worker.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from queasy.outcomes import Interrupted
from queasy.trace import trace_of

__all__ = ["InterruptibleCall", "ThreadPool"]


class InterruptibleCall:
    """One call of a plain function. It can be interrupted only while it runs."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._interrupted = False
        self.traceback = ""
        """Where the interruption hit the function."""

    def __call__(self) -> Any:
        """What the function returned, or None when it was interrupted."""
        try:
            with self._lock:
                if self._interrupted:
                    return None
                self._thread = threading.get_ident()
            result = self._function()
        except Interrupted as interruption:
            result, self.traceback = None, trace_of(interruption)
        while True:
            try:
                self._leave()
            except Interrupted:
                continue
            return result

    def _leave(self) -> None:
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None and self._interrupted:
            _consume_interruption(thread)

    def interrupt(self) -> None:
        with self._lock:
            if not self._interrupted:
                self._interrupted = True
                if self._thread is not None:
                    _raise_in(self._thread, Interrupted)


def _consume_interruption(this_thread: int) -> None:
    """Receive an interruption that came too late here, where it must not hit the next call.

    It is not cleared, which would be simpler: CPython 3.11 then believes for ever that one is
    pending, checks for it at every function call, and never returns from one that is traced.
    """
    try:
        _raise_in(this_thread, Interrupted)
        while True:  # until it is raised, at the next check of the interpreter
            pass
    except Interrupted:
        pass


def _raise_in(thread: int, exception: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(exception))


class ThreadPool:
    """As many threads as plain functions may run at once, each started when it is needed."""

    def __init__(self, max_threads: int) -> None:
        self._pool = ThreadPoolExecutor(max_threads, thread_name_prefix="queasy")

    def start(self, call: InterruptibleCall) -> asyncio.Future[Any]:
        context = contextvars.copy_context()
        return asyncio.get_running_loop().run_in_executor(self._pool, context.run, call)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
