"""Calls of plain functions that another thread can interrupt.

An interruption is an exception raised inside the function at its next step in Python. A function
inside native code does not notice it until that code returns. Its supervisor kills such a worker.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

from queasy.outcomes import Interrupted

__all__ = ["Interruptible"]

T = TypeVar("T")
R = TypeVar("R")


class Interruptible:
    """Calls functions one after another in one thread. Each can be interrupted while it runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread = 0
        self._argument: object = None
        self._interrupted = False

    def call(self, function: Callable[[T], R], argument: T) -> R:
        """Call the function in this thread, and return what it returns.

        Raises what the function raises: `Interrupted` if it was interrupted.
        """
        with self._lock:
            self._thread, self._argument, self._interrupted = threading.get_ident(), argument, False
        try:
            return function(argument)
        finally:
            while True:
                try:
                    self._leave()
                except Interrupted:
                    continue
                break

    def _leave(self) -> None:
        with self._lock:
            left, self._argument = self._argument, None
        if left is not None and self._interrupted:
            _consume_interruption(self._thread)

    def interrupt(self, argument: object) -> None:
        """Interrupt the call with this argument, once, if it is the one that runs now."""
        with self._lock:
            if self._argument is argument and not self._interrupted:
                self._interrupted = True
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
