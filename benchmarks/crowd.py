"""The calls that a crowd of idle workers makes: while nothing happens, and for each event.

Starts workers on two hosts, each with a client and connections of its own, and prints how many
server functions they call: in a minute without an event; for an immediate and for a scheduled
dispatch; for a pull lease; for a dispatch into a paused queue; for the resume of that queue; and
after all connections are cut. The server counts the calls (`INFO commandstats`), and its log of
commands has their names (`SLOWLOG` of everything).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import redis

from queasy import Client, SyncClient
from queasy.outcomes import Finish
from queasy.store.command import Command
from queasy.store.commands import QueueCommands
from queasy.store.embedded.server import ensure
from queasy.store.keys import QueueKeys
from queasy.store.library import PREFIX as LIBRARY_PREFIX
from queasy.store.records import Ending

PREFIX = "bench-crowd"
HOSTS = 2
# A dispatch, the call that takes the job, and the one that reports its outcome.
CALLS_OF_A_JOB = 3
# What is left to do after an event is done in this many seconds: a check follows after two.
SETTLE_TIME = 3.0
RESUMED_JOBS = 20
BUSY_QUEUE = b"{q0}"


async def handle(data: object) -> None:
    pass


async def run_workers(url: str, workers: int, queues: int, ready: Connection) -> None:
    running: list[asyncio.Task[None]] = []
    clients: list[Client] = []
    for _ in range(workers):
        client = Client(url, prefix=PREFIX)
        for number in range(queues):
            client.queue(f"q{number}").handler(handle)
        clients.append(client)
        running.append(asyncio.create_task(client.worker(signals=False).run()))
        await asyncio.sleep(0.02)
    await asyncio.to_thread(ready.recv)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    for client in clients:
        await client.close()


def worker_process(url: str, host: str, workers: int, queues: int, ready: Connection) -> None:
    os.environ["QUEASY_HOST"] = host
    logging.disable(logging.INFO)
    asyncio.run(run_workers(url, workers, queues, ready))


class Crowd:
    """Workers in several processes, and the server that counts their calls."""

    def __init__(self, url: str, workers: int, queues: int, processes: int) -> None:
        self.server = redis.Redis.from_url(url)
        self.server.config_set("slowlog-max-len", 1_000_000)
        self.server.config_set("slowlog-log-slower-than", 0)
        self._queues = queues
        self._workers: list[tuple[multiprocessing.Process, Connection]] = []
        for number in range(processes):
            share = len(range(number, workers, processes))
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.Process(
                target=worker_process,
                args=(url, f"host-{number % HOSTS}", share, queues, theirs),
            )
            process.start()
            self._workers.append((process, ours))
        self._wait_for_waiters(workers)

    def _wait_for_waiters(self, workers: int) -> None:
        keys = [QueueKeys(PREFIX, f"q{number}").base + "waiters" for number in range(self._queues)]
        while any(self.server.zcard(key) < workers for key in keys):
            time.sleep(0.2)

    def calls(self, *commands: str) -> int:
        """How often clients sent these commands since the server started; by default, how many
        server functions they called.
        """
        stats = self.server.info("commandstats")
        found = (stats.get(f"cmdstat_{name}", {}) for name in commands or ("fcall", "fcall_ro"))
        return sum(command.get("calls", 0) for command in found)

    def count(self, event: Callable[[], object], seconds: float = SETTLE_TIME) -> Calls:
        """The calls from the start of an event until some seconds after it."""
        self.server.slowlog_reset()
        before, since = self.calls(), time.monotonic()
        event()
        time.sleep(seconds)
        return self.since(before, time.monotonic() - since)

    def since(self, before: int, seconds: float) -> Calls:
        """The calls since the log was reset, when there had been `before`."""
        total = self.calls() - before
        entries = self.server.execute_command("SLOWLOG", "GET", -1)
        sent = [arguments for _, _, _, arguments, *_ in entries if _is_call(arguments)]
        names = Counter(arguments[1].decode().removeprefix("queasy_v1_") for arguments in sent)
        busy = sum(BUSY_QUEUE in arguments[3] for arguments in sent)
        return Calls(total, busy, seconds, names)

    def cut_connections(self) -> None:
        for kind in ("pubsub", "normal"):
            self.server.client_kill_filter(_type=kind, skipme=True)

    def stop(self) -> None:
        for process, tell in self._workers:
            tell.send(None)
            process.join(30)
            process.kill()


@dataclass(frozen=True)
class Calls:
    """The calls of some seconds."""

    total: int
    busy: int
    """The calls about the queue that has the events."""
    seconds: float
    names: Counter[str]

    @property
    def rate(self) -> float:
        return self.total / self.seconds


def _is_call(arguments: list[bytes]) -> bool:
    """Whether a command calls a function with keys. Valkey also logs what functions do."""
    return arguments[0].upper().startswith(b"FCALL") and len(arguments) > 3


def show(what: str, figure: str, calls: Calls | None = None) -> None:
    names = ", ".join(f"{name} {n}" for name, n in calls.names.most_common(6)) if calls else ""
    print(f"  {what:<44} {figure:<34} {names}", flush=True)


def pull_leases(crowd: Crowd, times: int) -> None:
    """Lease a job for a second, `times` times, and finish it after half of that.

    The workers do not compete for it: the job and its lease are written in one transaction.
    """
    commands = QueueCommands(QueueKeys(PREFIX, "q0"))
    for number in range(times):
        pipeline = crowd.server.pipeline(transaction=True)
        pipeline.hset(commands.keys.base + "data", f"pull-{number}", b"null")
        pipeline.zadd(commands.keys.base + "waiting", {f"pull-{number}": 1})
        take = commands.dequeue(f"~pull{number}", lease=1, limit=1)
        pipeline.execute_command(*_words(take))
        (job,) = take.read(pipeline.execute()[-1]).jobs
        time.sleep(0.5)
        finish = commands.settle([Ending(job.id, job.token, Finish())])
        crowd.server.execute_command(*_words(finish))
        time.sleep(0.5)


def _words(command: Command[Any]) -> tuple[Any, ...]:
    function = LIBRARY_PREFIX + command.function
    return "FCALL", function, len(command.keys), *command.keys, *command.args


def measure(crowd: Crowd, url: str, idle_seconds: float, times: int) -> None:
    time.sleep(SETTLE_TIME)
    checks = crowd.calls("ssubscribe")
    idle = crowd.count(lambda: None, idle_seconds)
    checks = crowd.calls("ssubscribe") - checks
    show("idle", f"{idle.rate:.1f} a second", idle)
    show("idle: checks of subscriptions", f"{checks / idle.seconds:.1f} a second")

    def beyond(calls: Calls, events: int, work: int) -> str:
        """Calls about the queue for each event, without the work itself and idle polls."""
        others = idle.busy / idle.seconds * calls.seconds
        return f"{(calls.busy - others) / events - work:.1f} beyond the work"

    with SyncClient(url, prefix=PREFIX) as client:
        queue = client.queue("q0")

        def dispatch(delay: float | None) -> None:
            for _ in range(times):
                queue.dispatch(None, delay=delay)
                time.sleep(1)

        calls = crowd.count(lambda: dispatch(None))
        show("a dispatch each second", beyond(calls, times, CALLS_OF_A_JOB), calls)
        calls = crowd.count(lambda: dispatch(1))
        show("a scheduled dispatch each second", beyond(calls, times, CALLS_OF_A_JOB), calls)
        calls = crowd.count(lambda: pull_leases(crowd, times))
        show("a pull lease each second", beyond(calls, times, 2), calls)
        queue.pause()
        time.sleep(SETTLE_TIME)
        calls = crowd.count(lambda: [queue.dispatch(None) for _ in range(RESUMED_JOBS)])
        show("a dispatch into a paused queue", beyond(calls, RESUMED_JOBS, 1), calls)
        calls = crowd.count(queue.resume)
        show(f"resume with {RESUMED_JOBS} jobs", f"{calls.busy - 1} calls", calls)
    crowd.server.slowlog_reset()
    before, since = crowd.calls(), time.monotonic()
    crowd.cut_connections()
    time.sleep(0.2)
    show("the first 0.2 s after all connections are cut", f"{crowd.calls() - before} calls")
    last = before
    while (made := crowd.calls()) - last > 2 * idle.rate + 5 or last == before:
        last = made
        time.sleep(1)
    calls = crowd.since(before, time.monotonic() - since)
    show("until it is quiet again", f"{calls.total} calls in {calls.seconds:.1f} s", calls)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a server to measure (default: an embedded one)")
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--queues", type=int, default=20)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60, help="length of the idle phase")
    parser.add_argument("--times", type=int, default=10, help="events of each kind")
    options = parser.parse_args()
    multiprocessing.set_start_method("spawn")
    with tempfile.TemporaryDirectory(prefix="queasy-bench-") as folder:
        url = options.url or ensure(Path(folder))
        crowd = Crowd(url, options.workers, options.queues, options.processes)
        print(f"{options.workers} workers of {options.queues} queues on {HOSTS} hosts")
        try:
            measure(crowd, url, options.seconds, options.times)
        finally:
            crowd.stop()
            crowd.server.flushall()
            crowd.server.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
