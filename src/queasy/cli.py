"""Run the workers of an application, list them, and control them.

Name an application by its client: `queasy worker app:client`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import re
import select
import signal
import sys
from collections.abc import Coroutine, Iterable, Sequence
from datetime import UTC, datetime
from typing import IO, Any, cast

import msgspec

from queasy.client import Client
from queasy.errors import InvalidInput, InvalidOption, QueasyError
from queasy.options import check_whole
from queasy.store.library import source
from queasy.version import VERSION
from queasy.worker.app import check_exists, load, plan_of
from queasy.worker.inline import InlineWorker
from queasy.worker.lease_times import (
    DEFAULT_LEASE,
    LONGEST_LEASE,
    SHORTEST_LEASE,
    LeaseTimes,
)
from queasy.worker.logs import FORMATS, set_up
from queasy.worker.plan import CAPACITY, MOST_PROCESSES
from queasy.worker.roster import WorkerInfo
from queasy.worker.supervision.options import SupervisorOptions
from queasy.worker.supervision.supervisor import Supervisor

__all__ = ["main"]

GRACE = 30.0
# `docker stop` kills a container after 10 seconds. In the rest of them the worker interrupts its
# runs, and reports them.
GRACE_IN_CONTAINER = 7.0
UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command, and exits with its exit code."""
    options = _parser().parse_args(arguments)
    if options.require_url:
        os.environ["QUEASY_EMBEDDED"] = "0"  # worker processes inherit it
    with contextlib.suppress(AttributeError):  # prints every name in every locale
        sys.stdout.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    if "" not in sys.path:
        sys.path.insert(0, "")  # import from the current folder, as `python -m` does
    # Before and after a worker handles signals itself there is nothing to stop: exit at once.
    signal.signal(signal.SIGTERM, _exit)
    try:
        _run(options.command(options))
    except QueasyError as problem:
        logging.shutdown()  # so that the error is the last line
        if not _is_writable(sys.stderr):  # a pipe that is not read must not delay the end
            os._exit(1)
        sys.exit(f"queasy: {problem}")
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _exit(number: int, frame: object) -> None:
    os._exit(0)


def _is_writable(stream: IO[str]) -> bool:
    """Whether a line can be written without waiting. True for a stream without a descriptor."""
    try:
        return bool(select.select([], [stream], [], 0)[1])
    except (OSError, ValueError):
        return True


def _run(work: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="queasy", description=__doc__)
    parser.add_argument("--version", action="version", version=f"queasy {VERSION}")
    commands = parser.add_subparsers(title="commands", required=True)
    _add_worker(commands)
    _add_workers(commands)
    _add_health(commands)
    _add_orders(commands)
    _add_library(commands)
    return parser


def _add_worker(commands: Any) -> None:
    worker = commands.add_parser("worker", help="run the handlers of an application")
    _app(worker)
    worker.add_argument(
        "--processes",
        type=int,
        default=_cpus(),
        metavar="N",
        help="child processes (default: one for each CPU, here %(default)s); "
        "0 runs handlers in this process",
    )
    worker.add_argument(
        "--queue",
        action="append",
        type=_name,
        dest="queues",
        metavar="NAME",
        help="serve this queue; may be repeated (default: all with handlers)",
    )
    worker.add_argument(
        "--grace",
        type=float,
        default=GRACE_IN_CONTAINER if os.getpid() == 1 else GRACE,
        metavar="SECONDS",
        help="seconds that running jobs have to end after SIGTERM "
        f"(default: {GRACE:g}; {GRACE_IN_CONTAINER:g} as PID 1, in a container)",
    )
    worker.add_argument(
        "--lease",
        type=float,
        default=DEFAULT_LEASE,
        metavar="SECONDS",
        help="seconds after which a silent worker counts as dead, and other workers get its jobs: "
        f"{SHORTEST_LEASE:g} to {LONGEST_LEASE:g} (default: %(default)g)",
    )
    worker.add_argument(
        "--capacity",
        type=int,
        default=CAPACITY,
        metavar="N",
        help="total size of the jobs that one process runs at a time (default: %(default)s)",
    )
    worker.add_argument(
        "--max-jobs",
        type=int,
        metavar="N",
        help="a process starts at most N jobs (default: no limit)",
    )
    worker.add_argument(
        "--max-memory",
        type=_bytes,
        metavar="BYTES",
        help="replace a process that uses more memory, such as 512M or 2G (default: no limit)",
    )
    worker.add_argument(
        "--reload",
        action="store_true",
        help="start new processes when a Python file changes (for development)",
    )
    worker.add_argument(
        "--log-errors",
        choices=("traceback", "type"),
        default="traceback",
        help="log the traceback of a handler's exception, or only its type: traceback and message "
        "may quote the data (default: %(default)s)",
    )
    worker.add_argument(
        "--log-format",
        choices=FORMATS,
        default="text",
        help="how to write a line of the log (default: %(default)s)",
    )
    worker.add_argument(
        "--log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="the least level to log; debug logs every job that finished (default: %(default)s)",
    )
    worker.set_defaults(command=_worker)


def _add_workers(commands: Any) -> None:
    workers = commands.add_parser("workers", help="list the running workers and their load")
    _app(workers)
    workers.add_argument("--json", action="store_true", help="print a JSON object for each worker")
    workers.set_defaults(command=_workers)


def _add_health(commands: Any) -> None:
    health = commands.add_parser(
        "health",
        help="check the server, the queues and their workers; exit code 0 if all are ready, else 1",
    )
    _app(health)
    health.add_argument(
        "--queue",
        action="append",
        type=_name,
        dest="queues",
        metavar="NAME",
        help="check this queue; may be repeated (default: all with handlers)",
    )
    health.add_argument("--json", action="store_true", help="print one JSON object")
    health.set_defaults(command=_health)


def _add_orders(commands: Any) -> None:
    for do, what in (
        ("serve", "make running workers take jobs of a queue again"),
        ("unserve", "make running workers take no more jobs of a queue"),
    ):
        order = commands.add_parser(do, help=what)
        _app(order)
        order.add_argument("queue", type=_name, help="the name of the queue")
        order.add_argument(
            "--worker",
            action="append",
            dest="workers",
            metavar="GROUP",
            help="only this group, as `queasy workers` shows it; may be repeated (default: all)",
        )
        if do == "unserve":
            order.add_argument(
                "--release",
                action="store_true",
                help="release the running jobs of the queue, instead of letting them end",
            )
        order.set_defaults(command=_order, do=do, release=False)


def _add_library(commands: Any) -> None:
    library = commands.add_parser(
        "library", help="print the server functions, for FUNCTION LOAD by another program"
    )
    library.set_defaults(command=_library, require_url=False)


def _app(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("app", help="where the client is: module:client, or file.py:client")
    parser.add_argument(
        "--require-url",
        action="store_true",
        help="fail if the client has no URL, instead of starting an embedded server",
    )


def _cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _name(text: str) -> str:
    """The name of a queue, which is UTF-8 in every locale."""
    return os.fsencode(text).decode("utf-8", "surrogateescape")


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+)([KMG]?)(i?B)?", text, re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected bytes, such as 512M or 2G, got {text!r}")
    return int(match[1]) * UNITS[match[2].upper()]


async def _worker(options: argparse.Namespace) -> None:
    check_whole(options.processes, "processes", 0, MOST_PROCESSES)
    LeaseTimes.checked(options.lease)
    if options.processes == 0:
        plan = plan_of(options.app, options.queues)
        set_up(options.log_level, options.log_format, options.log_errors)
        inline = InlineWorker(
            plan,
            capacity=options.capacity,
            grace=options.grace,
            lease=options.lease,
            signals=True,
        )
        await inline.run()
        return
    check_exists(options.app)
    set_up(options.log_level, options.log_format)
    chosen = SupervisorOptions(
        app=options.app,
        processes=options.processes,
        queues=None if options.queues is None else tuple(options.queues),
        capacity=options.capacity,
        grace=options.grace,
        lease=options.lease,
        max_jobs=options.max_jobs,
        max_memory=options.max_memory,
        reload=options.reload,
        log_level=options.log_level,
        log_format=options.log_format,
        log_errors=options.log_errors,
    )
    await Supervisor(chosen).run()


def _client(reference: str) -> Client:
    logging.basicConfig(level=logging.WARNING)
    found = load(reference)
    if not isinstance(found, Client):
        kind = type(found).__name__
        raise InvalidInput(f"app: expected {reference!r} to be a queasy.Client, got {kind}")
    return found


async def _workers(options: argparse.Namespace) -> None:
    async with _client(options.app) as client:
        try:
            found = await client.workers()
        except InvalidOption as problem:
            raise InvalidOption(f"{options.app}: {problem}") from None
    if options.json:
        for worker in found:
            print(msgspec.json.encode(_shown(worker)).decode())
    elif not found:
        services = plan_of(options.app, None).services
        print(_unserved(dict.fromkeys(service.queue for service in services)))
    else:
        _print_table(found)


def _unserved(queues: Iterable[str]) -> str:
    # A worker that left its only queue runs, but no queue lists it.
    return (
        f"no worker serves {', '.join(queues)}: start one with `queasy worker`, or bring one back "
        "with `queasy serve`"
    )


async def _health(options: argparse.Namespace) -> None:
    logging.getLogger("queasy").setLevel(logging.ERROR)  # its warnings are printed below
    client = _client(options.app)
    try:
        needed: list[str] = []
        queues: list[str] = options.queues or []
        if not queues:  # each of those with handlers needs a worker
            services = plan_of(options.app, None).services
            needed = [service.name for service in services]
            queues = list(dict.fromkeys(service.queue for service in services))
        health = await client.health(queues=queues)
    finally:
        await client.close()
    served = {} if health.problem else dict.fromkeys(needed, 0)
    served |= {queue.name: queue.workers for queue in health.queues}
    ready = not health.problems and all(served[name] for name in needed)
    if options.json:
        found = {"ready": ready, **msgspec.to_builtins(health)}
        print(msgspec.json.encode({**found, "workers": served}).decode())
    else:
        what = f"{health.server} {health.version} {health.role}".strip()
        print(f"address  {health.address}")
        if health.reachable:
            print(f"server   {what or 'unknown'}, {health.round_trip * 1000:.1f} ms")
        for problem in health.problems:
            print(f"problem  {problem}")
        explained = {queue.name for queue in health.queues if queue.problem and not queue.paused}
        unserved = [name for name in needed if served.get(name) == 0 and name not in explained]
        if unserved:
            print(f"problem  {_unserved(unserved)}")
        for warning in health.warnings:
            print(f"warning  {warning}")
        for queue, workers in served.items():
            print(f"queue    {queue}: {workers or 'no'} worker{'s' * (workers != 1)}")
        print("ready" if ready else "not ready")
    sys.exit(0 if ready else 1)


def _shown(worker: WorkerInfo) -> dict[str, Any]:
    names = [name for name in cast("Any", WorkerInfo).__slots__ if name != "jobs"]
    shown: dict[str, Any] = {name: getattr(worker, name) for name in names}
    shown["jobs"] = [
        {"queue": job.queue, "id": _printable(job.id), "since": job.leased_at}
        for job in worker.jobs
    ]
    return shown


def _printable(id_: str) -> str:
    # Other programs may have dispatched ids that are not UTF-8.
    return id_.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _print_table(found: list[WorkerInfo]) -> None:
    now = datetime.now(UTC)
    rows = [("WORKER", "HOST", "PID", "UP", "LOAD", "RUNS", "LONGEST", "QUEUES")]
    for one in found:
        since = [job.leased_at for job in one.jobs if job.leased_at is not None]
        rows.append(
            (
                one.group,
                one.host,
                str(one.pid),
                _duration((now - one.started_at).total_seconds()),
                f"{one.load:.0%}",
                str(len(one.jobs)),
                _duration((now - min(since)).total_seconds()) if since else "-",
                ",".join(one.queues),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def _duration(seconds: float) -> str:
    seconds = max(0.0, seconds)
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.1f}s"


async def _order(options: argparse.Namespace) -> None:
    async with _client(options.app) as client:
        received = await client.tell_workers(
            options.do, options.queue, release=options.release, workers=options.workers
        )
    if not received:
        why = "these groups are not running"
        if not options.workers:
            why = f"no worker serves {options.queue!r}"
        raise QueasyError(f"no worker received it: {why}. `queasy workers` lists those that run")
    print(f"received by {received} worker{'s' * (received != 1)}")


async def _library(options: argparse.Namespace) -> None:
    sys.stdout.write(source())


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
