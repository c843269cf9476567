"""All figures of a run: kept round by round, told as the best and the spread."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor

# How each figure is told: what it is, digits after the point, and whether more is better.
FIGURES: dict[str, tuple[str, int, bool]] = {
    "drain": ("drain, 1 process, jobs/s", 0, True),
    "drain 2": ("drain, 2 processes, jobs/s", 0, True),
    "bulk": ("enqueue in bulk, jobs/s", 0, True),
    "concurrent": ("enqueue, 100 awaited at once, jobs/s", 0, True),
    "single": ("enqueue, one after the other, jobs/s", 0, True),
    "pickup p50": ("pickup on an idle queue, p50, ms", 2, False),
    "pickup p99": ("pickup on an idle queue, p99, ms", 2, False),
    "burst": ("all due at one instant, jobs/s", 0, True),
    "burst first": ("all due at one instant, first starts after ms", 1, False),
    "server": ("server µs per job taken and finished", 1, False),
    "bytes": ("server bytes per waiting job of 100 bytes", 0, False),
    "cpu": ("200 × 20 ms of CPU on 2 processes, ideal / actual", 2, True),
}


# Of Queasy only.
OURS: dict[str, tuple[str, int, bool]] = {
    "drain size 1": ("drain with size=1, jobs/s", 0, True),
    "bulk sync": ("SyncClient.dispatch_many, jobs/s", 0, True),
    "drain kept": ("drain, 1 process, with appendonly, jobs/s", 0, True),
    "bulk kept": ("enqueue in bulk, with appendonly, jobs/s", 0, True),
    "supervisor": ("supervisor, % of a core during the drain", 2, False),
    "retried": ("jobs retried once, runs/s", 0, True),
    "retried part": ("jobs retried once, as a part of success", 2, True),
    "given up": ("jobs given up to a fail handler, runs/s", 0, True),
    "given up part": ("jobs given up, as a part of success", 2, True),
    "drain 1 kB": ("drain of 1 kB payloads, jobs/s", 0, True),
    "drain 10 kB": ("drain of 10 kB payloads, jobs/s", 0, True),
    "drain 100 kB": ("drain of 100 kB payloads, jobs/s", 0, True),
    "bare FCALL": ("bare FCALL on asyncio, calls/s", 0, True),
    "redis-py FCALL": ("the same through redis-py, calls/s", 0, True),
    "dispatch part": ("one awaited dispatch, as a part of the bare FCALL", 2, True),
    "lease part": ("lease and complete, as a part of two bare FCALLs", 2, True),
    "blpop p50": ("bare wake-up by BLPOP, p50, ms", 2, False),
    "blpop p99": ("bare wake-up by BLPOP, p99, ms", 2, False),
    "pubsub p50": ("bare wake-up by pub/sub and FCALL, p50, ms", 2, False),
    "pubsub p99": ("bare wake-up by pub/sub and FCALL, p99, ms", 2, False),
    "start": ("start of a worker to its first job, ms", 0, False),
    "import": ("import of queasy, ms", 0, False),
}
ALL = FIGURES | OURS


class Results:
    def __init__(self, about: dict[str, Any], figures: dict[str, Any]) -> None:
        self.about = about
        # By competitor and figure: one [value, pinned] for each round.
        self.figures: dict[str, dict[str, list[tuple[float, bool]]]] = figures
        self.problems: list[str] = []

    @classmethod
    def begin(
        cls, server: BenchServer, chosen: list[Competitor], options: argparse.Namespace
    ) -> Results:
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
        return cls(about, {one.name: {} for one in chosen})

    @classmethod
    def load(cls, path: Path) -> Results:
        found = json.loads(path.read_text())
        return cls(found["about"], found["figures"])

    def save(self, path: Path) -> None:
        found = {"about": self.about, "figures": self.figures}
        path.write_text(json.dumps(found, indent=1) + "\n")

    def add(self, who: Competitor, found: dict[str, float], *, pinned: bool) -> None:
        for figure, value in found.items():
            self.figures[who.name].setdefault(figure, []).append((value, pinned))
            print(f"{who.name:14} {figure:14} {value:12.2f}{'  pinned' * pinned}", flush=True)

    def problem(self, who: Competitor, workload: str, what: str) -> None:
        self.problems.append(f"{who.name}, {workload}: {what}")
        print(self.problems[-1], file=sys.stderr, flush=True)

    def best(self, who: str, figure: str) -> float | None:
        rounds = self.figures[who].get(figure)
        if not rounds:
            return None
        return (max if ALL[figure][2] else min)(value for value, _ in rounds)

    def spread(self, who: str, figure: str) -> float | None:
        """Between the rounds in the placement of the best, as a part of the best; None of one."""
        best = self.best(who, figure)
        assert best is not None
        rounds = self.figures[who][figure]
        placement = next(pinned for value, pinned in rounds if value == best)
        same = [value for value, pinned in rounds if pinned == placement]
        if len(same) < 2:
            return None
        return (max(same) - min(same)) / best if best else 0.0

    def table(self) -> str:
        """The best of everybody."""
        names = list(self.figures)
        rows = [["", *names]]
        for figure, (title, digits, _) in ALL.items():
            values = [self.best(name, figure) for name in names]
            if any(value is not None for value in values):
                told = ["–" if value is None else f"{value:,.{digits}f}" for value in values]
                rows.append([title, *told])
        rule = ["---"] + ["---:"] * len(names)
        return "\n".join("| " + " | ".join(row) + " |" for row in [rows[0], rule, *rows[1:]])
