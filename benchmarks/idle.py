"""The cost of an idle worker, and the latency of a job that arrives at it.

Prints the commands that a worker of 20 empty queues (2 processes) sends in a minute, its CPU, and
the time from the start of a dispatch in another process to the start of the handler. The lower
bound is printed next to it: one message to a subscriber and one call of a function. Absolute times
depend on the machine: the ratio of the two is the result.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

import redis

from queasy import Client, Job, SyncClient
from queasy.store.embedded.server import ensure

QUEUES = 20
SETTLE_TIME = 5.0
POLL_INTERVAL = 60.0  # seconds between two polls of an empty queue
TICKS = os.sysconf("SC_CLK_TCK")
PAUSE = 0.05  # seconds between two dispatches: long enough for all processes to be idle again
LIBRARY = """#!lua name=queasy_bench
redis.register_function{function_name='queasy_bench', callback=function() return 1 end,
                        flags={'no-writes'}}
"""

# This file is also the application that the worker loads.
if "BENCH_URL" in os.environ:
    client = Client(os.environ["BENCH_URL"], prefix="bench-idle")
    STARTS = os.open(os.environ["BENCH_STARTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def started(data: float, job: Job) -> None:
        now = time.monotonic()
        os.write(STARTS, b"%.9f %.9f\n" % (data, now))

    for number in range(QUEUES):
        client.queue(f"empty-{number}").handler(started)


class Worker:
    """`queasy worker` with this file as its application."""

    def __init__(self, url: str, folder: Path) -> None:
        self.starts = folder / "starts"
        self.starts.touch()
        self._log = folder / "log"
        environment = {**os.environ, "BENCH_URL": url, "BENCH_STARTS": str(self.starts)}
        command = [sys.executable, "-m", "queasy", "worker", f"{Path(__file__)}:client"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--processes", "2"], env=environment, stderr=log
            )
        while len(re.findall("process_serving|child serving", self._log.read_text())) < 2:
            if self._process.poll() is not None:
                sys.exit(self._log.read_text())
            time.sleep(0.05)

    def cpu(self) -> float:
        """CPU seconds of the supervisor and its children."""
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        stats = [
            Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            for one in [str(pid), *children]
        ]
        return sum(int(stat[11]) + int(stat[12]) for stat in stats) / TICKS

    def runs(self) -> list[tuple[float, float]]:
        """Start of the dispatch and start of the handler, for each job."""
        lines = [line.split() for line in self.starts.read_text().splitlines()]
        return [(float(dispatched), float(start)) for dispatched, start in lines]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


def idle(worker: Worker, url: str, seconds: float) -> tuple[Counter[str], float]:
    """The commands that clients send during these seconds, and the CPU share of the worker."""
    with redis.Redis.from_url(url) as server, redis.Redis.from_url(url) as other:
        other.ping()  # connect before the count starts
        with server.monitor() as monitor:
            before, since = worker.cpu(), time.monotonic()
            time.sleep(seconds)
            cpu = (worker.cpu() - before) / (time.monotonic() - since)
            marker = f"ECHO {os.urandom(8).hex()}"
            other.execute_command(*marker.split())
            sent: Counter[str] = Counter()
            while (line := monitor.next_command())["command"] != marker:
                if line["client_type"] != "lua":  # called by functions, not sent by clients
                    sent[" ".join(line["command"].split()[:2])] += 1
    del sent["INFO clients"]  # sent by the keeper of the embedded server
    return sent, cpu


def dispatch(url: str, times: int, done: Connection) -> None:
    """Dispatch one job at a time to each queue in turn. Runs in a process of its own."""
    with SyncClient(url, prefix="bench-idle") as client:
        queues = [client.queue(f"empty-{number}") for number in range(QUEUES)]
        for number in range(times + QUEUES):  # the first job of each queue is not counted
            queues[number % QUEUES].dispatch(time.monotonic())
            time.sleep(PAUSE)
    done.send(None)


def wait_for_wakeups(url: str, ready: Connection, times: Connection) -> None:
    """Wait for messages and call a function for each. Runs in a process of its own."""
    with redis.Redis.from_url(url) as server, redis.Redis.from_url(url) as caller:
        subscription = server.pubsub()
        subscription.ssubscribe("bench-wake")
        subscription.get_message(timeout=5)
        caller.fcall_ro("queasy_bench", 0)
        ready.send(None)
        while True:
            message = subscription.get_sharded_message(timeout=5)
            if message is None or message["type"] != "smessage":
                continue
            if message["data"] == b"over":
                return
            caller.fcall_ro("queasy_bench", 0)
            times.send(time.monotonic() - float(message["data"]))


def bare_wakeups(url: str, times: int) -> list[float]:
    """Seconds from publishing a message to the reply of the function that the receiver calls."""
    with redis.Redis.from_url(url) as server:
        server.function_load(LIBRARY, replace=True)
        is_ready, ready = multiprocessing.Pipe(duplex=False)
        took, send = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.Process(target=wait_for_wakeups, args=(url, ready, send))
        process.start()
        is_ready.recv()
        found = []
        for _ in range(times + QUEUES):
            server.spublish("bench-wake", repr(time.monotonic()))
            found.append(took.recv())
            time.sleep(PAUSE)
        server.spublish("bench-wake", "over")
        process.join()
        server.function_delete("queasy_bench")
    return found[QUEUES:]


def pickup(worker: Worker, url: str, times: int) -> list[float]:
    done, send = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.Process(target=dispatch, args=(url, times, send))
    process.start()
    done.recv()
    process.join()
    while len(worker.runs()) < times + QUEUES:
        time.sleep(0.05)
    return [start - dispatched for dispatched, start in sorted(worker.runs())][QUEUES:]


def percentiles(seconds: list[float]) -> tuple[float, float]:
    """The 50th and the 99th percentile, in milliseconds."""
    cuts = statistics.quantiles(seconds, n=100)
    return cuts[49] * 1000, cuts[98] * 1000


def report(name: str, seconds: list[float], reference: list[float] | None = None) -> None:
    p50, p99 = percentiles(seconds)
    against = ""
    if reference is not None:
        b50, b99 = percentiles(reference)
        against = f"   {p50 / b50:.1f} and {p99 / b99:.1f} times the bare wake-up"
    print(f"  {name:<24} p50 {p50:6.2f} ms   p99 {p99:6.2f} ms{against}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a server to measure (default: an embedded one)")
    parser.add_argument("--seconds", type=float, default=120, help="length of the idle phase")
    parser.add_argument("--dispatches", type=int, default=400)
    options = parser.parse_args()
    multiprocessing.set_start_method("spawn")
    with tempfile.TemporaryDirectory(prefix="queasy-bench-") as folder:
        url = options.url or ensure(Path(folder))
        keep = redis.Redis.from_url(url)
        keep.ping()
        worker = Worker(url, Path(folder))
        try:
            time.sleep(SETTLE_TIME)
            sent, cpu = idle(worker, url, options.seconds)
            print(f"a worker of {QUEUES} empty queues, 2 processes, {options.seconds:g} s")
            print(f"  {sent.total()} commands, {cpu:.2%} of a CPU")
            print("  " + json.dumps({command: n for command, n in sent.most_common() if n}))
            if options.seconds < POLL_INTERVAL:
                print("  (workers poll once a minute: measure a rate with --seconds 120)")
            reference = bare_wakeups(url, options.dispatches)
            picked_up = pickup(worker, url, options.dispatches)
            print(f"{options.dispatches} jobs, one at a time")
            report("bare wake-up", reference)
            report("dispatch to handler", picked_up, reference)
        finally:
            worker.stop()
        keep.flushall()
        keep.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
