"""A worker as the child of a supervisor.

1. It dies with its parent: by the kernel's word (Linux), by a pipe that ends, and by itself
   when the parent is there but has not been seeing to the leases.
2. It imports the application, tells the supervisor which queues there are, and works.
3. It does what the supervisor says: stop, drain, cancel a run, serve or unserve a queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Coroutine
from typing import Any, NoReturn

import msgspec

from queasy.errors import QueasyError
from queasy.worker.app import importing, load
from queasy.worker.events import event
from queasy.worker.liveness.inflight_table import InflightTable
from queasy.worker.logs import set_up
from queasy.worker.plan import BUMP_EVERY, DEADLY, LEASE, Plan, Record, safety_interval, sizes
from queasy.worker.supervision.messages import (
    LONGEST_LINE,
    CancelRun,
    CannotStart,
    ChildConfig,
    Drain,
    Leaving,
    Planned,
    Serve,
    Serving,
    Stop,
    ToChild,
    Unserve,
    WornOut,
    decode,
    encode,
)
from queasy.worker.worker import Worker

__all__ = ["main"]

PR_SET_PDEATHSIG = 1
# When the supervisor was not there for this long nobody has kept the leases, and they are about
# to run out: twice LOOK later this process is gone, before its jobs are anybody else's.
LOOK = 0.5
FENCE = LEASE - BUMP_EVERY - 4 * LOOK
CLOSING = 1.0
SWITCH = 0.0005


def main() -> None:
    config = msgspec.json.decode(sys.argv[1], type=ChildConfig)
    die_with_parent()
    faulthandler.enable()
    sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    sys.path[:] = config.path
    table = InflightTable(config.most_queues, config.capacity, config.table)
    threading.Thread(target=watch_or_die, args=(config.life, table), daemon=True).start()
    try:
        with importing(config.app):
            plan = load(config.app).plan(config.queues)
        if len(plan.services) > config.most_queues:
            raise QueasyError(f"{len(plan.services)} queues are more than {config.most_queues}")  # noqa: TRY301
    except (Exception, SystemExit) as problem:
        os.write(config.control, encode(_why(problem)))
        return
    # Now: the application may have done it.
    set_up(config.log_level, config.log_format, config.log_errors)
    # A thread that computes holds the interpreter for so long each time the event loop, which has
    # little to do but has to do it often, wants it back; Python's 5 ms would all but stop it.
    sys.setswitchinterval(SWITCH)
    ended = _run(live(config, plan, table))
    logging.shutdown()
    sys.stdout.flush()
    if not ended:
        os._exit(0)  # threads are still running: there is no waiting for them


def _why(problem: BaseException) -> CannotStart:
    if isinstance(problem, QueasyError):  # it says all there is to say
        return CannotStart(str(problem))
    trace = "".join(traceback.format_exception(problem))
    return CannotStart(f"{type(problem).__name__}: {problem}", trace)


async def live(config: ChildConfig, plan: Plan, table: InflightTable) -> bool:
    return await Child(config, plan, table).run()


def _run(work: Coroutine[Any, Any, bool]) -> bool:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


def die_with_parent() -> None:
    """Asks the kernel to end this process when the one that started it is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def die() -> NoReturn:
    """With whatever the handlers started: this process leads a group of its own."""
    os.killpg(0, signal.SIGKILL)
    os._exit(1)


def watch_or_die(life: int, table: InflightTable) -> None:
    try:
        watch(life, table)
    finally:  # whatever happened: nobody without a watch may hold a lease
        die()


def watch(life: int, table: InflightTable) -> None:
    """In a thread: ends this process when the supervisor is gone, or has been away too long."""
    suspicious = False
    poll = select.poll()
    poll.register(life, select.POLLIN)
    while True:
        if poll.poll(LOOK * 1000):  # nobody writes: the other end is closed
            die()
        now, seen = time.monotonic(), table.supervised
        silent = bool(seen) and now - seen > FENCE
        if table.runs and (silent or _unkept(table, now) > DEADLY):
            # Both may have been frozen: it has a moment to show itself.
            if suspicious:
                who = "the supervisor" if silent else "the server"
                last_words(f"{who} is silent, and nobody keeps the leases: ending with all runs")
                die()
            suspicious = True
        else:
            suspicious = False


def _unkept(table: InflightTable, now: float) -> float:
    """For how long the server was not heard about the lease of something that runs."""
    return max((table.unkept(queue, now) for queue in table.running()), default=0.0)


def last_words(text: str) -> None:
    """If somebody reads them: a full pipe must not keep alive who has to die."""
    if select.select([], [2], [], 0)[1]:
        with contextlib.suppress(OSError):
            os.write(2, f"queasy: worker process {os.getpid()}: {text}\n".encode())


class Child:
    """The event loop of a child."""

    def __init__(self, config: ChildConfig, plan: Plan, table: InflightTable) -> None:
        self._config = config
        self._plan = plan
        self._store = plan.place.store()
        self._socket = socket.socket(fileno=config.control)
        self._exit: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writer: asyncio.StreamWriter | None = None
        self._stopping = False
        self._worker = Worker(
            plan, self._store, config.client, table,
            capacity=config.capacity,
            safety=safety_interval(len(plan.services), config.processes),
            lost=self._lost,
            max_jobs=config.most_jobs,
            worn_out=lambda: self._tell(WornOut()),
        )  # fmt: skip

    async def run(self) -> bool:
        """When it is over: whether all runs have ended."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop, self._config.grace)
        loop.add_signal_handler(signal.SIGINT, lambda: None)  # the supervisor's business
        reader, self._writer = await asyncio.open_unix_connection(
            sock=self._socket, limit=LONGEST_LINE
        )
        listening = asyncio.create_task(self._listen(reader))
        try:
            return await self._work()
        finally:
            listening.cancel()
            self._writer.close()
            with contextlib.suppress(QueasyError, TimeoutError, OSError):
                async with asyncio.timeout(CLOSING):
                    await self._store.close()
                    await self._writer.wait_closed()

    async def _work(self) -> bool:
        place = self._plan.place
        queues = [(service.queue, service.handler.fail) for service in self._plan.services]
        self._tell(Planned(place.url, place.prefix, place.timeout, place.folder, queues))
        try:
            await self._start()
        except QueasyError as problem:
            self._tell(_why(problem))
            return True
        self._tell(Serving())
        ended = await self._exit
        self._tell(Leaving())
        return ended

    async def _start(self) -> None:
        config = self._config
        record = Record.here(config.group, os.getppid(), config.capacity, sizes(self._plan))
        served = {service.queue for service in self._plan.services} - set(config.unserved)
        await self._worker.start(record, served)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                self._obey(decode(line))
        except asyncio.CancelledError:
            raise
        except BaseException as problem:
            event("orders not understood", logging.ERROR, error=repr(problem))
        die()

    def _obey(self, order: ToChild) -> None:
        match order:
            case Stop(grace=grace):
                self._stop(grace)
            case Drain():
                self._begin(self._drain())
            case CancelRun(queue=queue, id=id_, token=token):
                self._worker.cancel(queue, id_, token)
            case Serve(queue=queue):
                self._begin(self._worker.serve(queue))
            case Unserve(queue=queue, release=release):
                self._begin(self._worker.unserve(queue, release=release))

    def _stop(self, grace: float) -> None:
        if self._stopping:
            self._worker.hasten(grace)
        else:
            self._stopping = True
            self._begin(self._stop_within(grace))

    async def _stop_within(self, grace: float) -> None:
        ended = await self._worker.stop(grace)
        self._over(ended)

    async def _drain(self) -> None:
        self._worker.close()
        await self._worker.drained()
        self._over(True)

    def _lost(self) -> None:
        event("worker lost", logging.WARNING, client=self._config.client,
              why="the server took it for dead; its jobs run elsewhere")  # fmt: skip
        os.write(self._config.control, encode(Leaving(lost=True)))
        os._exit(0)  # at once: whatever runs here runs for nobody

    def _over(self, ended: bool) -> None:
        if not self._exit.done():
            self._exit.set_result(ended)

    def _tell(self, report: msgspec.Struct) -> None:
        if self._writer is not None:
            self._writer.write(encode(report))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            event("order failed", logging.ERROR, error=problem)


if __name__ == "__main__":
    main()
