"""Measures Queasy, and its peers beside it: `python -m benchmarks --peers all`.

Every round runs every competitor once, so that whatever else the machine does hits all alike. In
every other round the server has a core of its own and the rest runs on the others; a competitor's
figure is its best, in the placement that suits it.
"""

import argparse
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

from benchmarks.harness.bench_server import BenchServer, bench_server
from benchmarks.harness.competitor import Competitor, Gone, competitors
from benchmarks.harness.document import summary, write
from benchmarks.harness.results import Results
from benchmarks.ours import OURS
from benchmarks.workloads import TWO_PROCESSES, WORKLOADS

ALL = {**WORKLOADS, **OURS}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--peers", default="", help="all, or names with commas between")
    parser.add_argument("--workloads", default=",".join(ALL), help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of jobs")
    parser.add_argument("--results", type=Path, help="a file for all figures, as JSON")
    parser.add_argument("--document", action="store_true", help="write docs/performance.md")
    options = parser.parse_args()
    workloads = options.workloads.split(",")
    if unknown := [name for name in workloads if name not in ALL]:
        parser.error(f"expected workloads among {', '.join(ALL)}, got {', '.join(unknown)}")
    try:
        chosen = competitors([name for name in options.peers.split(",") if name])
    except ValueError as problem:
        parser.error(str(problem))
    with bench_server() as server:
        results = Results.begin(server, chosen, options)
        ready = [one for one in chosen if set_up(results, one, server)]
        for number in range(options.rounds):
            for name in workloads:
                for one in ready if name in WORKLOADS else ready[:1]:
                    measure(results, number, name, one, server, options.scale)
    print(f"\n{results.table()}\n\n{summary(results)}")
    if options.results:
        results.save(options.results)
    if options.document:
        write(results)
    return 1 if results.problems else 0


def set_up(results: Results, one: Competitor, server: BenchServer) -> bool:
    """Whether it can run. Loads functions and scripts, which are not to be weighed."""
    try:
        one.set_up()
        with one.at(server) as bench:
            bench.produce("bulk", "noop", 1, 100)
    except (Gone, OSError, subprocess.CalledProcessError) as problem:
        results.problem(one, "to set up", str(problem))
        return False
    return True


def measure(
    results: Results, number: int, name: str, one: Competitor, server: BenchServer, scale: float
) -> None:
    pinned = number % 2 == 0 and name not in TWO_PROCESSES
    try:
        found = ALL[name](one, server, pinned=pinned, scale=scale)
    except Gone as problem:
        results.problem(one, name, str(problem))
        return
    results.add(one, found, pinned=pinned)


if __name__ == "__main__":
    logging.getLogger("queasy").setLevel(logging.ERROR)  # it warns of no persistence
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or every start would compile everything
    # An ordinary end, so that no worker is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
