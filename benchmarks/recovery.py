"""How soon do jobs run elsewhere after a whole host is lost? The distribution over many fleets.

A host is a set of processes with one QUEASY_HOST. It is killed as a whole (SIGKILL), or frozen with
its connections open (SIGSTOP) and thawed later. Fleets differ in the number of hosts, processes and
queues, and in what the other hosts do; all of it follows from a seed. The time counts from the
fault, or from the dispatch if that came later, until each job that the host ran, or that was
dispatched around the fault, runs on another host. If all other hosts are full, the time counts
until the job waits in the queue again. Many fleets run at the same time, each with a server of its
own: most of a trial is waiting.

    python -m benchmarks.recovery --kills 200 --freezes 200
    python -m benchmarks.recovery --seed 7 --only 31,40
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import queue
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness.bench_server import bench_server
from benchmarks.harness.recovery_shape import FLEETS, Shape, shape
from benchmarks.harness.recovery_trial import Measured, Trial, stopping
from queasy.worker.lease_times import DEFAULT_LEASE

BOUND = DEFAULT_LEASE + 10.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--freezes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--only", default="", help="numbers of fleets, with commas between")
    parser.add_argument("--at-once", type=int, default=10, help="fleets at the same time")
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.at_once} fleets at a time", flush=True)
    if options.only:
        plan = [shape(options.seed, int(number)) for number in options.only.split(",")]
    else:
        plan = list(fleets(options.seed, options.kills, options.freezes))
    measured, problems = run_all(plan, options.seed, options.at_once)
    print(f"\n{table(measured)}\n")
    late = [one for one in measured if one.worst > BOUND]
    for one in late:
        print(f"above {BOUND:g} s: {describe(one, options.seed)}")
    if missing := sum(len(one.rounds) for one in plan) - len(measured):
        problems.append(f"{missing} faults were not measured")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if late or problems else 0


def fleets(seed: int, kills: int, freezes: int) -> Iterator[Shape]:
    """As many fleets as it takes for at least so many kills and freezes."""
    number = 0
    while kills > 0 or freezes > 0:
        one = shape(seed, number)
        kills -= sum(each.fault == "kill" for each in one.rounds)
        freezes -= sum(each.fault == "freeze" for each in one.rounds)
        number += 1
        yield one


def run_all(plan: list[Shape], seed: int, at_once: int) -> tuple[list[Measured], list[str]]:
    measured: list[Measured] = []
    problems: list[str] = []
    waiting: queue.SimpleQueue[Shape] = queue.SimpleQueue()
    for one in plan:
        waiting.put(one)
    lanes = [
        threading.Thread(target=run_lane, args=(waiting, seed, measured, problems))
        for _ in range(at_once)
    ]
    lag = Lag()
    began = time.monotonic()
    for lane in lanes:
        lane.start()
    try:
        while any(lane.is_alive() for lane in lanes):
            lag.observe()
    finally:
        stopping.set()  # interrupted by a signal: the lanes end what they started
    print(
        f"{time.monotonic() - began:.0f} s; the cores of this machine were busy for {lag.busy:.0%} "
        f"of it; load average up to {lag.load:.1f}; a sleep of 100 ms was up to "
        f"{lag.worst * 1000:.0f} ms too long"
    )
    return measured, problems


class Lag:
    """How busy the machine is, with all its programs, and how late a sleeping thread continues."""

    def __init__(self) -> None:
        self.worst = self.load = 0.0
        self._before = self._times()

    @staticmethod
    def _times() -> tuple[int, int]:
        """Ticks of all cores since the machine started: in total, and idle."""
        words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        ticks = [int(word) for word in words]
        return sum(ticks), ticks[3] + ticks[4]

    @property
    def busy(self) -> float:
        (total, idle), (total_before, idle_before) = self._times(), self._before
        return 1 - (idle - idle_before) / max(1, total - total_before)

    def observe(self) -> None:
        began = time.monotonic()
        time.sleep(0.1)
        self.worst = max(self.worst, time.monotonic() - began - 0.1)
        self.load = max(self.load, os.getloadavg()[0])


def run_lane(
    waiting: queue.SimpleQueue[Shape], seed: int, measured: list[Measured], problems: list[str]
) -> None:
    """One fleet after the other, until none waits. The thread owns their servers."""
    while not stopping.is_set():
        try:
            one = waiting.get_nowait()
        except queue.Empty:
            return
        try:
            with bench_server() as server, tempfile.TemporaryDirectory(prefix="queasy-") as folder:
                found = Trial(one, seed, server, Path(folder)).run()
        except Exception as problem:  # any fault: one fleet is missing, the others go on
            problems.append(f"fleet {one.number} ({one.describe()}): {problem!r}")
            continue
        measured += found
        for each in found:
            problems += [f"{describe(each, seed)}: {problem}" for problem in each.problems]
            mark = " ABOVE" if each.worst > BOUND else ""
            print(f"{describe(each, seed)}; {one.describe()}{mark}", flush=True)


def describe(one: Measured, seed: int) -> str:
    return (
        f"--seed {seed} --only {one.number}, round {one.round}: {one.fault}, {one.lost} jobs lost, "
        f"{one.worst:.1f} s"
    )


def table(measured: list[Measured]) -> str:
    """p50, p90, p99 and p100 of the seconds until the last job of a fault was back."""
    rows = [
        "| seconds until the last job is back | faults | p50 | p90 | p99 | p100 |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for fault in ("kill", "freeze"):
        chosen = [one for one in measured if one.fault == fault]
        rows.append(row(f"**{fault}**", chosen))
        rows += [row(f"{fault}, {name}", [o for o in chosen if o.fleet == name]) for name in FLEETS]
        for queues in (1, 30, 500):
            some = [one for one in chosen if one.queues == queues]
            rows.append(row(f"{fault}, {queues} queue{'s' * (queues > 1)}", some))
    return "\n".join(line for line in rows if line)


def row(name: str, measured: list[Measured]) -> str:
    if not measured:
        return ""
    worst = sorted(one.worst for one in measured)
    shares = [worst[math.ceil(len(worst) * share) - 1] for share in (0.5, 0.9, 0.99, 1)]
    return f"| {name} | {len(worst)} | {' | '.join(f'{one:.1f}' for one in shares)} |"


if __name__ == "__main__":
    logging.getLogger("queasy").setLevel(logging.ERROR)  # Queasy warns of a server without a file
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each start would compile all modules
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
