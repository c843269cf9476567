"""A worker as the child of a supervisor.

1. It dies with its parent, and when its leases are not kept (`guard`).
2. It imports the application, reports which queues there are, and works.
3. It follows instructions: stop, drain, cancel a run, serve or unserve a queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Coroutine
from functools import partial
from typing import Any

import msgspec

from queasy.errors import InvalidOption, QueasyError
from queasy.worker.app import importing, load, plan_of
from queasy.worker.events import event
from queasy.worker.lease_times import LeaseTimes
from queasy.worker.liveness.inflight_table import InflightTable
from queasy.worker.logs import set_up
from queasy.worker.plan import Plan, job_sizes, safety_interval
from queasy.worker.supervision.guard import die, start_guard
from queasy.worker.supervision.loop_watch import LoopWatch
from queasy.worker.supervision.messages import (
    MAX_LINE,
    CancelRun,
    CannotStart,
    ChildConfig,
    Drain,
    Exiting,
    Instruction,
    JobLimitReached,
    Planned,
    Rejoin,
    Report,
    Serve,
    Serving,
    Stop,
    Unserve,
    decode_instruction,
    encode,
)
from queasy.worker.worker import Worker
from queasy.worker_record import WorkerRecord

__all__ = ["main"]

CLIENT_CLOSE_SECONDS = 1.0
SWITCH_INTERVAL = 0.0005


def main() -> None:
    """Runs a child process; its configuration is the first argument."""
    # The argument is UTF-8, but Python decoded it with the encoding of the locale.
    config = msgspec.json.decode(os.fsencode(sys.argv[1]), type=ChildConfig)
    faulthandler.enable()
    sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    sys.path[:] = config.path
    table = InflightTable(
        config.max_queues, config.capacity, config.table, LeaseTimes.of(config.lease)
    )
    loop_watch = LoopWatch(table)
    start_guard(config.parent_pipe, table, loop_watch)
    try:
        with importing(config.app):
            plan = _plan(config)
        if len(plan.services) > config.max_queues:
            raise QueasyError(  # noqa: TRY301
                f"expected at most {config.max_queues} queues, got {len(plan.services)}: serve "
                "them with several supervisors (--queue)"
            )
        runner = _new_runner()
        runner.get_loop()  # raises if there are no more files
    except (Exception, SystemExit) as problem:
        os.write(config.control, encode(_cannot_start(problem)))
        return
    # After the import: the application may have configured logging itself.
    set_up(config.log_level, config.log_format, config.log_errors)
    # A thread that computes holds the interpreter for this long each time the event loop wants it
    # back. The loop has little to do but has to do it often: Python's 5 ms would all but stop it.
    sys.setswitchinterval(SWITCH_INTERVAL)
    with runner:
        all_ended = runner.run(work(config, plan, table, loop_watch))
    logging.shutdown()
    sys.stdout.flush()
    if not all_ended:
        os._exit(0)  # threads that still run cannot be waited for


def _plan(config: ChildConfig) -> Plan:
    """What the application wants its workers to do; from now on it cannot want more."""
    app = load(config.app)
    for queue, reference in config.handlers:
        app.queue(queue).handler(reference)
    plan = plan_of(config.app, config.queues)
    planned = {service.queue for service in plan.services}
    if missing := [queue for queue in config.registered if queue not in planned]:
        raise InvalidOption(
            f"queue {', '.join(map(repr, missing))}: the handler is registered in the process that "
            f"starts the workers, and not in the worker processes, which import {config.app}. "
            "Register it where they import it: outside of functions, and above "
            '`if __name__ == "__main__":`'
        )
    plan.registry.seal(
        "this worker process has started, and the others do not have it. Register handlers while "
        f"{config.app} is imported",
        config.queues,
    )
    return plan


def _cannot_start(problem: BaseException) -> CannotStart:
    if isinstance(problem, QueasyError):  # its message is enough
        return CannotStart(str(problem))
    trace = "".join(traceback.format_exception(problem))
    return CannotStart(f"{type(problem).__name__}: {problem}", trace)


async def work(
    config: ChildConfig, plan: Plan, table: InflightTable, loop_watch: LoopWatch
) -> bool:
    """Works until it is stopped; whether all runs have ended."""
    child = Child(config, plan, table)
    loop_watch.begin(partial(child.run_on_loop, asyncio.get_running_loop()))
    return await child.run()


def _new_runner() -> asyncio.Runner:
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


class Child:
    """Runs a worker in the event loop, and follows the supervisor's instructions."""

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
            safety_poll_seconds=safety_interval(len(plan.services), config.processes),
            on_declared_dead=self._on_declared_dead,
            max_jobs=config.max_jobs,
            job_limit_reached=lambda: self._report(JobLimitReached()),
        )  # fmt: skip

    async def run(self) -> bool:
        """Works until it is stopped or drained; whether all runs have ended."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop, self._config.grace)
        loop.add_signal_handler(signal.SIGINT, lambda: None)  # the supervisor handles it
        reader, self._writer = await asyncio.open_unix_connection(sock=self._socket, limit=MAX_LINE)
        reading = asyncio.create_task(self._read_instructions(reader))
        try:
            return await self._work()
        finally:
            reading.cancel()
            self._writer.close()
            with contextlib.suppress(QueasyError, TimeoutError, OSError):
                async with asyncio.timeout(CLIENT_CLOSE_SECONDS):
                    await self._store.close()
                    await self._writer.wait_closed()

    def run_on_loop(self, loop: asyncio.AbstractEventLoop) -> tuple[int, int] | None:
        """The queue and the token of the run whose handler is on the event loop now."""
        return self._worker.run_on_loop(loop)

    async def _work(self) -> bool:
        place = self._plan.place
        queues = [(service.queue, service.handler.fail) for service in self._plan.services]
        self._report(Planned(place.url, place.prefix, place.timeout, place.folder, queues))
        try:
            await self._start()
        except Exception as problem:  # a child that only died would be started again and again
            self._report(_cannot_start(problem))
            return True
        self._report(Serving())
        all_ended = await self._exit
        self._report(Exiting())
        return all_ended

    async def _start(self) -> None:
        config = self._config
        sizes = job_sizes(self._plan)
        record = WorkerRecord.here(config.group, os.getppid(), config.capacity, sizes, config.lease)
        served = {service.queue for service in self._plan.services} - set(config.unserved)
        await self._worker.start(record, served)

    async def _read_instructions(self, reader: asyncio.StreamReader) -> None:
        """Follows instructions until the supervisor is gone, or sends one that is invalid."""
        try:
            while line := await reader.readline():
                self._follow(decode_instruction(line))
        except asyncio.CancelledError:
            raise
        except BaseException as problem:
            event("order_invalid", logging.ERROR, error=repr(problem))
        die()

    def _follow(self, instruction: Instruction) -> None:
        match instruction:
            case Stop(grace=grace):
                self._stop(grace)
            case Drain():
                self._run_task(self._drain())
            case CancelRun(queue=queue, id=id_, token=token):
                self._worker.cancel(queue, id_, token)
            case Rejoin(queue=queue):
                self._worker.rejoin(queue)
            case Serve(queue=queue):
                self._run_task(self._worker.serve(queue))
            case Unserve(queue=queue, release=release):
                self._run_task(self._worker.unserve(queue, release=release))

    def _stop(self, grace: float) -> None:
        if self._stopping:
            self._worker.hasten(grace)
        else:
            self._stopping = True
            self._run_task(self._stop_within(grace))

    async def _stop_within(self, grace: float) -> None:
        self._end(await self._worker.stop(grace))

    async def _drain(self) -> None:
        self._worker.close()
        await self._worker.wait_until_drained()
        self._end(True)

    def _end(self, all_ended: bool) -> None:
        if not self._exit.done():
            self._exit.set_result(all_ended)

    def _on_declared_dead(self) -> None:
        """The server has declared this worker dead: its jobs run elsewhere, so it exits at once."""
        event("worker_declared_dead", logging.WARNING, client=self._config.client,
              why="the server declared it dead; its jobs run elsewhere")  # fmt: skip
        os.write(self._config.control, encode(Exiting()))
        os._exit(0)

    def _report(self, report: Report) -> None:
        if self._writer is not None:
            self._writer.write(encode(report))

    def _run_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            event("order_failed", logging.ERROR, error=problem)


if __name__ == "__main__":
    main()
