"""Measures what SIGKILL costs: how soon interrupted jobs run again, and which jobs never end.

Twenty jobs of one second, ten at once. When ten have started, the worker process that runs them is
killed ("process"), or every process of the system ("host"). A process that ended is started again
at once, as a service manager does; fresh processes use the same server. Five other jobs a
second arrive all the time. Several rounds run at the same time, each with a server of its own:
most of a round is waiting.

    python -m benchmarks.crash --peers all --document
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import queue
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks.harness.bench_server import bench_server
from benchmarks.harness.crash_events import Outcome
from benchmarks.harness.crash_run import HOST, JOBS, PROCESS, System, crash, stopping, systems

DOCUMENT = Path(__file__).parents[1] / "docs" / "crashes.md"
BEGIN = "<!-- written by `make bench-crashes`: begin -->"
END = "<!-- written by `make bench-crashes`: end -->"
SCENARIOS = {PROCESS: "worker process killed", HOST: "host lost"}

Outcomes = dict[tuple[str, str], list[Outcome]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crash", description=__doc__)
    parser.add_argument("--peers", default="", help="all, or names with commas between")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS), help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--window", type=float, default=120.0, help="seconds to observe after a kill"
    )
    parser.add_argument("--at-once", type=int, default=4, help="rounds at the same time")
    parser.add_argument("--document", action="store_true", help="write docs/crashes.md")
    options = parser.parse_args()
    scenarios = options.scenarios.split(",")
    if unknown := [name for name in scenarios if name not in SCENARIOS]:
        parser.error(f"expected scenarios among {', '.join(SCENARIOS)}, got {', '.join(unknown)}")
    try:
        chosen = systems([name for name in options.peers.split(",") if name])
    except ValueError as problem:
        parser.error(str(problem))
    problems: list[str] = []
    ready = [one for one in chosen if set_up(one, problems)]
    plan = [
        (one, scenario) for _ in range(options.rounds) for one in ready for scenario in scenarios
    ]
    with bench_server() as server:
        valkey = f"Valkey {server.version}"
    outcomes = run_all(plan, options.window, options.at_once, problems)
    if missing := len(plan) - sum(map(len, outcomes.values())):
        report(problems, f"{missing} of {len(plan)} rounds have no outcome")
    tables = "\n\n".join(table(ready, outcomes, name, options.window) for name in scenarios)
    print(f"\n{tables}")
    if options.document:
        about = describe(valkey, options.rounds, options.window, options.at_once)
        write(DOCUMENT, f"{about}\n\n{tables}\n\n{settings(ready)}")
    return 1 if problems else 0


def set_up(one: System, problems: list[str]) -> bool:
    """Whether the system's packages are installed."""
    try:
        one.set_up()
    except (OSError, subprocess.CalledProcessError) as problem:
        report(problems, f"{one.name}: cannot be installed: {problem}")
        return False
    return True


def report(problems: list[str], text: str) -> None:
    problems.append(text)
    print(text, file=sys.stderr, flush=True)


def run_all(
    plan: list[tuple[System, str]], window: float, at_once: int, problems: list[str]
) -> Outcomes:
    """The outcomes of all rounds, by system and scenario."""
    outcomes: Outcomes = {}
    waiting: queue.SimpleQueue[tuple[System, str]] = queue.SimpleQueue()
    for one in plan:
        waiting.put(one)
    lanes = [
        threading.Thread(target=run_lane, args=(waiting, window, outcomes, problems))
        for _ in range(at_once)
    ]
    for lane in lanes:
        lane.start()
    try:
        for lane in lanes:
            lane.join()
    finally:
        stopping.set()  # interrupted by a signal: the lanes end what they started
    return outcomes


def run_lane(
    waiting: queue.SimpleQueue[tuple[System, str]],
    window: float,
    outcomes: Outcomes,
    problems: list[str],
) -> None:
    """One round after the other, on one server, until none waits. The thread owns the server."""
    with bench_server() as server:
        while not stopping.is_set():
            try:
                one, scenario = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                outcome = crash(one, scenario, server, window)
            except Exception as problem:  # any fault: one round is missing, the others go on
                report(problems, f"{one.name}, {scenario}: {problem!r}")
                continue
            outcomes.setdefault((one.name, scenario), []).append(outcome)
            print(f"{one.name:14} {scenario:8} {progress(outcome)}", flush=True)


def progress(outcome: Outcome) -> str:
    first, last = best_and_worst([outcome.first], 0), best_and_worst([outcome.recovery], 0)
    return (
        f"interrupted {outcome.interrupted}, first again {first}, all again {last}, "
        f"unfinished {outcome.unfinished} ({outcome.gone} gone), "
        f"twice at once {outcome.overlapped}, ended twice {outcome.repeated}"
    )


def describe(server: str, rounds: int, window: float, at_once: int) -> str:
    command = "python -m benchmarks.crash " + " ".join(sys.argv[1:])
    return (
        f"`{command.strip()}` on {datetime.now(UTC).date().isoformat()}: {server} without "
        f"persistence, loopback TCP, Python {platform.python_version()}, {os.cpu_count()} cores "
        f"that other programs used as well. {rounds} rounds of each, {at_once} at a time; {JOBS} "
        f"jobs in each round, observed for {window:g} s after the kill."
    )


def table(ready: list[System], outcomes: Outcomes, scenario: str, window: float) -> str:
    """One line for each system. Times and counts are the best round and the worst."""
    rows = [
        f"| {SCENARIOS[scenario]} | interrupted | first runs again | all run again "
        f"| not ended in {window:g} s | of these lost | ran twice at once | ended twice |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in ready:
        found = outcomes.get((one.name, scenario), [])
        if found:
            cells = [
                counted([outcome.interrupted for outcome in found]),
                best_and_worst([outcome.first for outcome in found], window),
                best_and_worst([outcome.recovery for outcome in found], window),
                counted([outcome.unfinished for outcome in found]),
                counted([outcome.gone for outcome in found]),
                counted([outcome.overlapped for outcome in found]),
                counted([outcome.repeated for outcome in found]),
            ]
            rows.append(f"| {one.name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def best_and_worst(seconds: list[float | None], window: float) -> str:
    """The best and the worst of some times; None is later than the window."""
    late = f"not within {window:g} s" if window else "not in the window"
    texts = [late if one is None else f"{one:.1f} s" for one in sorted(seconds, key=_late_last)]
    return texts[0] if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]}"


def _late_last(seconds: float | None) -> float:
    return float("inf") if seconds is None else seconds


def counted(numbers: list[int]) -> str:
    """The best and the worst of some counts."""
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def settings(ready: list[System]) -> str:
    """What each system was set to, and what its recovery depends on."""
    rows = [
        "| | versions | settings | recovery depends on | restarted by |",
        "|---|---|---|---|---|",
    ]
    for one in ready:
        packages = ", ".join(one.packages or [f"queasy=={version('queasy')}"])
        about = one.about
        cells = [one.name, packages, about["settings"], about["governs"], about["restarts"]]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def write(document: Path, part: str) -> None:
    """Replaces what is between the markers."""
    text = document.read_text()
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"expected {BEGIN!r} and {END!r} in {document}")
    document.write_text(f"{before}{BEGIN}\n\n{part}\n\n{END}{after}")


if __name__ == "__main__":
    logging.getLogger("queasy").setLevel(logging.ERROR)  # Queasy warns of a server without a file
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each start would compile all modules
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
