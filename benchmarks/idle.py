"""What a worker costs that has nothing to do, and how soon it is there when it has.

Prints the commands that a worker of 20 empty queues (2 processes) sends in a minute, its CPU,
and the time from the start of a dispatch in another process to the start of the handler. Next
to it the least that could take: a message to a subscriber, and one call of a function. The
ratio of the two is the figure that matters: absolute times are those of the machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
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
SETTLING = 5.0
A_MINUTE = 60.0
TICKS = os.sysconf("SC_CLK_TCK")
PAUSE = 0.05  # between two dispatches: long enough for everybody to sleep again
LIBRARY = """#!lua name=queasy_bench
redis.register_function{function_name='queasy_bench', callback=function() return 1 end,
                        flags={'no-writes'}}
"""

# The application, when a worker loads this file.
if "BENCH_URL" in os.environ:
    client = Client(os.environ["BENCH_URL"], prefix="bench-idle")
    JOURNAL = os.open(os.environ["BENCH_JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def started(data: float, job: Job) -> None:
        now = time.monotonic()
        os.write(JOURNAL, b"%.9f %.9f\n" % (data, now))

    for number in range(QUEUES):
        client.queue(f"empty-{number}").handler(started)


class Worker:
    """`queasy worker` of this file."""

    def __init__(self, url: str, folder: Path) -> None:
        self.journal = folder / "journal"
        self.journal.touch()
        self._log = folder / "log"
        environment = {**os.environ, "BENCH_URL": url, "BENCH_JOURNAL": str(self.journal)}
        command = [sys.executable, "-m", "queasy", "worker", f"{Path(__file__)}:client"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--processes", "2"], env=environment, stderr=log
            )
        while self._log.read_text().count("process_serving") < 2:
            if self._process.poll() is not None:
                sys.exit(self._log.read_text())
            time.sleep(0.05)

    def cpu(self) -> float:
        """Seconds, of the supervisor and its children."""
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        stats = [
            Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            for one in [str(pid), *children]
        ]
        return sum(int(stat[11]) + int(stat[12]) for stat in stats) / TICKS

    def runs(self) -> list[tuple[float, float]]:
        """Of each job: when its dispatch began, and when it started."""
        lines = [line.split() for line in self.journal.read_text().splitlines()]
        return [(float(dispatched), float(start)) for dispatched, start in lines]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


def idle(worker: Worker, url: str, seconds: float) -> tuple[Counter[str], float]:
    """What clients send in so many seconds, and the part of a CPU that the worker uses."""
    with redis.Redis.from_url(url) as server, redis.Redis.from_url(url) as other:
        other.ping()  # connected before the count begins
        with server.monitor() as monitor:
            before, since = worker.cpu(), time.monotonic()
            time.sleep(seconds)
            cpu = (worker.cpu() - before) / (time.monotonic() - since)
            marker = f"ECHO {os.urandom(8).hex()}"
            other.execute_command(*marker.split())
            sent: Counter[str] = Counter()
            while (line := monitor.next_command())["command"] != marker:
                if line["client_type"] != "lua":  # what functions call, nobody sends
                    sent[" ".join(line["command"].split()[:2])] += 1
    del sent["INFO clients"]  # of the keeper of an embedded server
    return sent, cpu


def dispatch(url: str, times: int, done: Connection) -> None:
    """In another process: one job at a time, to one queue after the other."""
    with SyncClient(url, prefix="bench-idle") as client:
        queues = [client.queue(f"empty-{number}") for number in range(QUEUES)]
        for number in range(times + QUEUES):  # the first of each are not counted
            queues[number % QUEUES].dispatch(time.monotonic())
            time.sleep(PAUSE)
    done.send(None)


def answer(url: str, ready: Connection, times: Connection) -> None:
    """In another process: the least that somebody who is woken has to do."""
    with redis.Redis.from_url(url) as server, redis.Redis.from_url(url) as caller:
        line = server.pubsub()
        line.ssubscribe("bench-wake")
        line.get_message(timeout=5)
        caller.fcall_ro("queasy_bench", 0)
        ready.send(None)
        while True:
            message = line.get_sharded_message(timeout=5)
            if message is None or message["type"] != "smessage":
                continue
            if message["data"] == b"over":
                return
            caller.fcall_ro("queasy_bench", 0)
            times.send(time.monotonic() - float(message["data"]))


def bare(url: str, times: int) -> list[float]:
    """Seconds from a message to the answer of the function that its receiver calls."""
    with redis.Redis.from_url(url) as server:
        server.function_load(LIBRARY, replace=True)
        is_ready, ready = multiprocessing.Pipe(duplex=False)
        took, send = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.Process(target=answer, args=(url, ready, send))
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
    """The 50th and the 99th, in milliseconds."""
    cuts = statistics.quantiles(seconds, n=100)
    return cuts[49] * 1000, cuts[98] * 1000


def report(name: str, seconds: list[float], than: list[float] | None = None) -> None:
    p50, p99 = percentiles(seconds)
    against = ""
    if than is not None:
        b50, b99 = percentiles(than)
        against = f"   {p50 / b50:.1f} and {p99 / b99:.1f} times the bare wake-up"
    print(f"  {name:<24} p50 {p50:6.2f} ms   p99 {p99:6.2f} ms{against}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a server to measure (default: an embedded one)")
    parser.add_argument("--seconds", type=float, default=120, help="how long to watch it idle")
    parser.add_argument("--dispatches", type=int, default=400)
    options = parser.parse_args()
    multiprocessing.set_start_method("spawn")
    with tempfile.TemporaryDirectory(prefix="queasy-bench-") as folder:
        url = options.url or ensure(Path(folder))
        keep = redis.Redis.from_url(url)
        keep.ping()
        worker = Worker(url, Path(folder))
        try:
            time.sleep(SETTLING)
            sent, cpu = idle(worker, url, options.seconds)
            print(f"a worker of {QUEUES} empty queues, 2 processes, {options.seconds:g} s")
            print(f"  {sent.total()} commands, {cpu:.2%} of a CPU")
            print("  " + json.dumps({command: n for command, n in sent.most_common() if n}))
            if options.seconds < A_MINUTE:
                print("  (a queue is looked at about once a minute: for a rate, --seconds 120)")
            reference = bare(url, options.dispatches)
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
