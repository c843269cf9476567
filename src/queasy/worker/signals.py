"""SIGTERM, SIGINT and SIGHUP stop the workers of an event loop; a second one stops them at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Generator
from weakref import WeakKeyDictionary

__all__ = ["stop_on_signals"]

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# A loop has one handler for each signal, but may run several workers.
_stops: WeakKeyDictionary[asyncio.AbstractEventLoop, list[Callable[[], None]]] = WeakKeyDictionary()


@contextlib.contextmanager
def stop_on_signals(stop: Callable[[], None], *, wanted: bool = True) -> Generator[None]:
    """Calls `stop` on each of these signals, inside the `with` block.

    Only the main thread can receive signals. In another thread this does nothing, and the
    application has to call `stop`.
    """
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    stops = _stops.setdefault(loop, [])
    before = {number: signal.getsignal(number) for number in NUMBERS}
    if not stops:
        for number in NUMBERS:
            loop.add_signal_handler(number, _stop_all, stops)
    stops.append(stop)
    try:
        yield
    finally:
        stops.remove(stop)
        if not stops:
            for number in NUMBERS:
                loop.remove_signal_handler(number)
                with contextlib.suppress(TypeError):  # a handler that was not set from Python
                    signal.signal(number, before[number])


def _stop_all(stops: list[Callable[[], None]]) -> None:
    for stop in list(stops):
        stop()
