"""The metrics of a run: every round is kept; tables show the best round and the spread."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor

# Of each metric: its title, the digits after the point, and whether more is better.
METRICS: dict[str, tuple[str, int, bool]] = {
    "drain": ("drain, 1 process, jobs/s", 0, True),
    "drain 2": ("drain, 2 processes, jobs/s", 0, True),
    "bulk": ("enqueue in bulk, jobs/s", 0, True),
    "concurrent": ("enqueue, 100 awaited concurrently, jobs/s", 0, True),
    "single": ("enqueue, one at a time, jobs/s", 0, True),
    "pickup p50": ("pickup on an idle queue, p50, ms", 2, False),
    "pickup p99": ("pickup on an idle queue, p99, ms", 2, False),
    "burst": ("all due at one instant, jobs/s", 0, True),
    "burst first": ("all due at one instant, first start after, ms", 1, False),
    "server": ("server µs per job dequeued and finished", 1, False),
    "bytes": ("server bytes per waiting job of 100 bytes", 0, False),
    "cpu": ("200 × 20 ms of CPU on 2 processes, ideal / actual", 2, True),
    "plain": ("drain of plain functions, 1 process, jobs/s", 0, True),
    "sleep": ("plain functions that sleep 10 ms, 100 at once, ideal / actual", 2, True),
    "spin": ("50 µs of CPU, 1 process, jobs/s", 0, True),
    "spin 2": ("50 µs of CPU, 2 processes, jobs/s", 0, True),
}

# Measured with Queasy only.
OWN_METRICS: dict[str, tuple[str, int, bool]] = {
    "drain size 1": ("drain with size=1, jobs/s", 0, True),
    "bulk sync": ("SyncClient.dispatch_many, jobs/s", 0, True),
    "drain aof": ("drain, 1 process, with appendonly, jobs/s", 0, True),
    "bulk aof": ("enqueue in bulk, with appendonly, jobs/s", 0, True),
    "supervisor": ("supervisor, % of a core during the drain", 2, False),
    "retried": ("jobs retried once, runs/s", 0, True),
    "retried ratio": ("jobs retried once / jobs that succeed", 2, True),
    "failed": ("jobs that fail, with fail handler, runs/s", 0, True),
    "failed ratio": ("jobs that fail / jobs that succeed", 2, True),
    "one queue": ("drain of one queue, before the next two, jobs/s", 0, True),
    "spread 10": ("drain of the same jobs in 10 queues, jobs/s", 0, True),
    "spread 50": ("drain of the same jobs in 50 queues, jobs/s", 0, True),
    "wait": ("async handlers that wait 5 ms, 100 at once, ideal / actual", 2, True),
    "sleep of default size": (
        "plain functions that sleep 10 ms, 10 at once, ideal / actual",
        2,
        True,
    ),
    "cpu plain": ("200 × 20 ms of CPU in plain functions on 2 processes, ideal / actual", 2, True),
    "drain 1 kB": ("drain of 1 kB payloads, jobs/s", 0, True),
    "drain 10 kB": ("drain of 10 kB payloads, jobs/s", 0, True),
    "drain 100 kB": ("drain of 100 kB payloads, jobs/s", 0, True),
    "bare FCALL": ("bare FCALL on asyncio, calls/s", 0, True),
    "redis-py FCALL": ("the same through redis-py, calls/s", 0, True),
    "dispatch ratio": ("one awaited dispatch / bare FCALL, speed", 2, True),
    "lease ratio": ("lease and complete / two bare FCALLs, speed", 2, True),
    "blpop p50": ("bare wake-up by BLPOP, p50, ms", 2, False),
    "blpop p99": ("bare wake-up by BLPOP, p99, ms", 2, False),
    "pubsub p50": ("bare wake-up by pub/sub and FCALL, p50, ms", 2, False),
    "pubsub p99": ("bare wake-up by pub/sub and FCALL, p99, ms", 2, False),
    "start": ("worker start to first job, ms", 0, False),
    "import": ("import of queasy, ms", 0, False),
    "queues": ("1,000 queues with one job each, jobs/s", 0, True),
    "queues idle": ("worker of 1,000 empty queues, % of a core", 2, False),
}
ALL = METRICS | OWN_METRICS


class Results:
    def __init__(self, about: dict[str, Any], metrics: dict[str, Any]) -> None:
        self.about = about
        # By competitor and metric: one [value, pinned] for each round.
        self.metrics: dict[str, dict[str, list[tuple[float, bool]]]] = metrics
        self.problems: list[str] = []

    @classmethod
    def begin(
        cls,
        server: BenchServer,
        chosen: list[Competitor],
        options: argparse.Namespace,
        others: Sequence[Competitor] = (),
    ) -> Results:
        """Empty results. `others` are codes of Queasy to compare with: they are not competitors."""
        about = {
            "command": ".venv/bin/python -m benchmarks " + " ".join(sys.argv[1:]),
            "date": datetime.now(UTC).date().isoformat(),
            "server": f"Valkey {server.version}",
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "rounds": options.rounds,
            "competitors": {
                one.name: {
                    "packages": one.dependencies or [f"queasy=={version('queasy')}"],
                    **one.about,
                }
                for one in chosen
            },
        }
        return cls(about, {one.name: {} for one in [*chosen, *others]})

    @classmethod
    def load(cls, path: Path) -> Results:
        found = json.loads(path.read_text())
        return cls(found["about"], found["metrics"])

    def save(self, path: Path) -> None:
        found = {"about": self.about, "metrics": self.metrics}
        path.write_text(json.dumps(found, indent=1) + "\n")

    def add(self, competitor: Competitor, found: dict[str, float], *, pinned: bool) -> None:
        name = competitor.name
        for metric, value in found.items():
            self.metrics[name].setdefault(metric, []).append((value, pinned))
            print(f"{name:14} {metric:14} {value:12.2f}{'  pinned' * pinned}", flush=True)

    def add_problem(self, competitor: Competitor, workload: str, what: str) -> None:
        self.problems.append(f"{competitor.name}, {workload}: {what}")
        print(self.problems[-1], file=sys.stderr, flush=True)

    def best(self, name: str, metric: str) -> float | None:
        """The best round of a competitor. None if it was not measured."""
        rounds = self.metrics[name].get(metric)
        if not rounds:
            return None
        return (max if ALL[metric][2] else min)(value for value, _ in rounds)

    def spread(self, name: str, metric: str) -> float | None:
        """Distance of the rounds that had the placement of the best one, divided by the best.
        None if there was only one such round.
        """
        best = self.best(name, metric)
        assert best is not None
        rounds = self.metrics[name][metric]
        placement = next(pinned for value, pinned in rounds if value == best)
        same = [value for value, pinned in rounds if pinned == placement]
        if len(same) < 2:
            return None
        return (max(same) - min(same)) / best if best else 0.0

    def table(self) -> str:
        """The best round of every competitor."""
        names = list(self.metrics)
        rows = [["", *names]]
        for metric, (title, digits, _) in ALL.items():
            values = [self.best(name, metric) for name in names]
            if any(value is not None for value in values):
                shown = ["–" if value is None else f"{value:,.{digits}f}" for value in values]
                rows.append([title, *shown])
        rule = ["---"] + ["---:"] * len(names)
        return "\n".join("| " + " | ".join(row) + " |" for row in [rows[0], rule, *rows[1:]])
