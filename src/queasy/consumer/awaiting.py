"""A consumer, for code that awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from queasy.consumer.engine import Engine
from queasy.consumer.leases import ConsumerLease
from queasy.errors import ClientClosed, QueasyError
from queasy.store.commands import QueueCommands
from queasy.store.store import AsyncStore

__all__ = ["Consumer"]


class _Program:
    """The side of the program that the engine sees: it is in the same event loop."""

    def __init__(self) -> None:
        self.notified = asyncio.Event()

    def flag(self) -> asyncio.Event:
        return asyncio.Event()

    def notify(self) -> None:
        self.notified.set()

    def post(self, call: Callable[..., None], *args: Any) -> None:
        call(*args)


class Consumer:
    """Leases of several jobs at a time, for a loop of your own. One heartbeat for each queue keeps
    them alive.

        async with queue.consumer(concurrency=10) as consumer:
            async with asyncio.TaskGroup() as group:
                async for lease in consumer:
                    group.create_task(work(lease))

    Iterating waits without polling until a job comes and there is room: at most `concurrency`
    leases are held at a time, begun and not begun together. A lease that ends makes room.
    Leaving the `async with` block releases every lease that has not ended: not counted as an
    attempt.
    """

    def __init__(
        self,
        store: AsyncStore,
        queues: Sequence[QueueCommands],
        concurrency: int,
        lease: float,
    ) -> None:
        self._store = store
        self._program = _Program()
        self._engine = Engine(store, queues, concurrency, lease, self._program)
        self._names = [commands.keys.name for commands in queues]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._left = False
        self._iterating = False

    @property
    def id(self) -> str:
        """Its group in `Client.workers`, which `Client.evict` accepts. `Queue.clients` shows this
        id, with a number after each time that the consumer lost its jobs of that queue.
        """
        return self._engine.id

    def stop(self) -> None:
        """Take no more jobs: the loop over them ends. Call it from a signal handler of the loop.

        Leases that the program has not begun are released. The others stay alive until they end,
        or the `async with` block is left.
        """
        self._engine.stop()

    async def __aenter__(self) -> Self:
        if self._loop is not None:
            raise QueasyError(f"{self!r} was entered before: make another one")
        self._loop = asyncio.get_running_loop()
        self._store.on_close.add(self._client_closed)
        await self._engine.start()
        return self

    def _client_closed(self) -> None:
        self._engine.abandon(ClientClosed(f"the client of {self!r} was closed"))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerLease:
        if self._loop is None or self._left:
            raise QueasyError(
                f"{self!r}: iterate inside its block: "
                "`async with queue.consumer() as consumer: async for lease in consumer: ...`"
            )
        if self._iterating:
            raise QueasyError(
                f"{self!r}: another task iterates over it. One loop takes the leases; give each to "
                "a task of its own"
            )
        if self._loop is not asyncio.get_running_loop():
            raise QueasyError(f"{self!r} belongs to another event loop: make one for each loop")
        self._iterating = True
        try:
            return await self._next()
        finally:
            self._iterating = False

    async def _next(self) -> ConsumerLease:
        engine = self._engine
        while True:
            if ready := engine.next_job():
                record, commands = ready
                return ConsumerLease(record.job, commands, self._store, record)
            if engine.problem is not None:
                raise engine.problem
            if engine.stopped:
                raise StopAsyncIteration
            self._program.notified.clear()
            engine.want(True)
            try:
                await self._program.notified.wait()
            finally:
                engine.want(False)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._left = True
        self._store.on_close.discard(self._client_closed)
        await self._engine.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {', '.join(self._names)}>"
