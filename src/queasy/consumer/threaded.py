"""A consumer, for code that does not await.

An event loop in a thread of its own takes the jobs and keeps the leases alive. The program works on
them, and ends them, in its own threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Self

from queasy.consumer.engine import Engine
from queasy.consumer.leases import SyncConsumerLease
from queasy.errors import ClientClosed, QueasyError
from queasy.store.commands import QueueCommands
from queasy.store.store import SyncStore

__all__ = ["SyncConsumer"]


class _Program:
    """The side of the program that the engine sees: it is in other threads."""

    def __init__(self) -> None:
        # A SimpleQueue, because a signal handler may interrupt its methods and call `stop`: with a
        # `threading.Event` it might wait for a lock that its own thread has.
        self.notifications: SimpleQueue[None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """The engine runs in this loop."""
        self._loop = loop

    def flag(self) -> threading.Event:
        return threading.Event()

    def notify(self) -> None:
        self.notifications.put(None)

    def forget_notifications(self) -> None:
        """Drops notifications of what the program is about to look at."""
        with contextlib.suppress(Empty):
            while True:
                self.notifications.get_nowait()

    def post(self, call: Callable[..., None], *args: Any) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the consumer was left
                self._loop.call_soon_threadsafe(call, *args)


class SyncConsumer:
    """Leases of several jobs at a time, for a loop of your own. One heartbeat for each queue keeps
    them alive.

        with queue.consumer(concurrency=10) as consumer, ThreadPoolExecutor(10) as pool:
            for lease in consumer:
                pool.submit(work, lease)

    Iterating waits without polling until a job comes and there is room: at most `concurrency`
    leases are held at a time, begun and not begun together. A lease that ends makes room. A
    thread of its own sends the heartbeats. Leaving the `with` block releases every lease that
    has not ended: not counted as an attempt.
    """

    def __init__(
        self,
        store: SyncStore,
        queues: Sequence[QueueCommands],
        concurrency: int,
        lease: float,
    ) -> None:
        self._store = store
        self._program = _Program()
        self._loop_store = store.for_event_loop()
        self._engine = Engine(self._loop_store, queues, concurrency, lease, self._program)
        self._names = [commands.keys.name for commands in queues]
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._leaving: Future[None] = Future()
        self._iterating = threading.Lock()

    @property
    def id(self) -> str:
        """Its group in `Client.workers`, which `Client.evict` accepts. `Queue.clients` shows this
        id, with a number after each time that the consumer lost its jobs of that queue.
        """
        return self._engine.id

    def stop(self) -> None:
        """Take no more jobs: the loop over them ends. Any thread or signal handler may call it.

        Leases that the program has not begun are released. The others stay alive until they end,
        or the `with` block is left.
        """
        self._engine.refuse_new_jobs()
        self._program.post(self._engine.stop)

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise QueasyError(f"{self!r} was entered before: make another one")
        started: Future[None] = Future()
        self._pid = os.getpid()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(started)), name="queasy-consumer", daemon=True
        )
        self._thread.start()
        try:
            started.result()
        except BaseException:
            self._end()
            raise
        self._store.on_close.add(self._client_closed)
        return self

    async def _run(self, started: Future[None]) -> None:
        self._program.bind(asyncio.get_running_loop())
        try:
            await self._engine.start()
        except BaseException as problem:
            started.set_exception(problem)
        else:
            started.set_result(None)
            await asyncio.wrap_future(self._leaving)
            await self._engine.close()
        finally:
            await self._loop_store.close()

    def _client_closed(self) -> None:
        problem = ClientClosed(f"the client of {self!r} was closed")
        self._program.post(self._engine.end_with, problem)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> SyncConsumerLease:
        if self._pid != os.getpid() or self._leaving.done():
            raise QueasyError(
                f"{self!r}: iterate inside its block, in the process that entered it: "
                "`with queue.consumer() as consumer: for lease in consumer: ...`"
            )
        if not self._iterating.acquire(blocking=False):
            raise QueasyError(
                f"{self!r}: another thread iterates over it. One loop takes the leases; give each "
                "to a thread of its own"
            )
        try:
            return self._next()
        finally:
            self._iterating.release()

    def _next(self) -> SyncConsumerLease:
        engine, program = self._engine, self._program
        while True:
            program.forget_notifications()
            if ready := engine.next_job():
                record, commands = ready
                return SyncConsumerLease(record.job, commands, self._store, record)
            if engine.problem is not None:
                raise engine.problem
            if engine.stopped:
                raise StopIteration
            program.post(engine.want, True)
            try:
                program.notifications.get()
            finally:
                program.post(engine.want, False)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._store.on_close.discard(self._client_closed)
        self._end()

    def _end(self) -> None:
        if not self._leaving.done():
            self._leaving.set_result(None)
        if self._thread is not None and self._pid == os.getpid():
            self._thread.join()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {', '.join(self._names)}>"
