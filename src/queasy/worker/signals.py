"""SIGTERM, SIGINT and SIGHUP stop a worker; each further one says: at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Generator

__all__ = ["stop_on_signals"]


@contextlib.contextmanager
def stop_on_signals(stop: Callable[[], None], *, wanted: bool = True) -> Generator[None]:
    """While inside; only the main thread can, elsewhere whoever runs the loop must see to it."""
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
            with contextlib.suppress(TypeError):  # one that was not set from Python
                signal.signal(number, before[number])
