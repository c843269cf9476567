"""Measures Queasy, and other libraries next to it: `python -m benchmarks --peers all`.

Every round runs every competitor once, so that other load on the machine affects all alike. Every
other round the server has a core of its own and everything else runs on the other cores. A
competitor's result is its best round, in the placement that suits it.

`--against PATH` compares this code with the code of another checkout of Queasy: every workload
runs with both, one directly after the other, and every round swaps their order.
"""

import argparse
import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness.bench_server import BenchServer, bench_server
from benchmarks.harness.comparison import Comparison
from benchmarks.harness.competitor import Competitor, RunFailed, competitors, other_code
from benchmarks.harness.document import conditions, summary, write
from benchmarks.harness.results import Results
from benchmarks.ours import OURS
from benchmarks.workloads import TWO_PROCESSES, WORKLOADS

ALL = {**WORKLOADS, **OURS}


def parse() -> tuple[argparse.Namespace, list[Competitor], Competitor | None]:
    """The options, Queasy and the chosen peers, and the code to compare with if there is one."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--peers", default="", help="all, or names separated by commas")
    parser.add_argument("--workloads", default=",".join(ALL), help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the number of jobs")
    parser.add_argument(
        "--against", type=Path, metavar="PATH",
        help="also measure the Queasy of this checkout, in turns, and print the ratios",
    )  # fmt: skip
    parser.add_argument("--results", type=Path, help="write all metrics to this file, as JSON")
    parser.add_argument("--document", action="store_true", help="write docs/performance.md")
    options = parser.parse_args()
    options.workloads = options.workloads.split(",")
    if unknown := [name for name in options.workloads if name not in ALL]:
        parser.error(f"expected workloads among {', '.join(ALL)}, got {', '.join(unknown)}")
    if options.against and options.document:
        parser.error("expected --against or --document, got both")
    try:
        chosen = competitors([name for name in options.peers.split(",") if name])
        other = other_code(options.against) if options.against else None
    except ValueError as problem:
        parser.error(str(problem))
    return options, chosen, other


class Program:
    """One run of the benchmarks."""

    def __init__(self, options: argparse.Namespace, chosen: list[Competitor],
                 other: Competitor | None) -> None:  # fmt: skip
        self.options, self.chosen, self.other = options, chosen, other
        self.comparison = None if other is None else Comparison(other.name)

    def run(self) -> int:
        """Measure and print. Returns the exit status."""
        with ExitStack() as stack:
            self.server = stack.enter_context(bench_server())
            self.results = Results.begin(
                self.server, self.chosen, self.options, [self.other] if self.other else []
            )
            ready = [one for one in self.chosen if self._set_up(one, self.server)]
            if self.chosen[0] not in ready:
                return 1
            if self.other is not None:
                # A server for each code: both would load their Lua library under one name.
                self.other_server = stack.enter_context(bench_server())
                if not self._set_up(self.other, self.other_server):
                    return 1
            began = time.monotonic()
            for number in range(self.options.rounds):
                self._run_round(number, ready)
                print(
                    f"round {number + 1} of {self.options.rounds} done after "
                    f"{(time.monotonic() - began) / 60:.1f} minutes",
                    flush=True,
                )
        return self._report()

    def _run_round(self, number: int, ready: list[Competitor]) -> None:
        for name in self.options.workloads:
            pinned = self._is_pinned(number, name)
            queasy, *peers = ready
            if self.other is None or self.comparison is None:
                self._measure(name, queasy, self.server, pinned)
            else:
                pair = [(queasy, self.server), (self.other, self.other_server)]
                order = pair if number % 2 == 0 else pair[::-1]
                found = {one: self._measure(name, one, server, pinned) for one, server in order}
                self.comparison.add(found[queasy], found[self.other])
            for peer in peers if name in WORKLOADS else ():
                self._measure(name, peer, self.server, pinned)

    def _is_pinned(self, number: int, workload: str) -> bool:
        """Placement changes every round; with two codes every second round, so that each order of
        the two is measured in each placement.
        """
        turn = number if self.other is None else number // 2
        return turn % 2 == 0 and workload not in TWO_PROCESSES

    def _set_up(self, one: Competitor, server: BenchServer) -> bool:
        """Install a competitor and load its functions and scripts, which are not measured.

        Returns whether it can run.
        """
        try:
            one.set_up()
            with one.on(server) as bench:
                bench.produce("bulk", "noop", 1, 100)
        except (RunFailed, OSError, subprocess.CalledProcessError) as problem:
            self.results.add_problem(one, "set-up", str(problem))
            return False
        return True

    def _measure(
        self, workload: str, one: Competitor, server: BenchServer, pinned: bool
    ) -> dict[str, float]:
        try:
            found = ALL[workload](one, server, pinned=pinned, scale=self.options.scale)
        except RunFailed as problem:
            self.results.add_problem(one, workload, str(problem))
            return {}
        self.results.add(one, found, pinned=pinned)
        return found

    def _report(self) -> int:
        results, failed = self.results, bool(self.results.problems)
        if self.comparison is None:
            print(f"\n{results.table()}\n\n{summary(results)}")
        else:
            print(f"\n{conditions(results)}\n\n{self.comparison.table(results)}")
            failed = failed or bool(self.comparison.slower(results))
            if len(self.chosen) > 1:
                print(f"\n{summary(results)}")
        if self.options.results:
            results.save(self.options.results)
        if self.options.document:
            write(results)
        return 1 if failed else 0


def main() -> int:
    return Program(*parse()).run()


if __name__ == "__main__":
    logging.getLogger("queasy").setLevel(logging.ERROR)  # it warns that nothing is persisted
    # Without byte code every start of a process would compile everything.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # An ordinary exit, so that every worker is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
