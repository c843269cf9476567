"""The targets of Queasy: each is a ratio of two metrics of one run, or a metric by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.harness.results import ALL, Results

QUEASY = "Queasy"
NODE = "BullMQ (Node)"


@dataclass(frozen=True)
class TargetResult:
    """One line of the document. Without a target it only informs."""

    work: str
    ours: str
    against: str
    ratio: float | None
    target: str
    met: bool | None


def evaluate_targets(results: Results) -> list[TargetResult]:
    """The outcome of every target that this run has the metrics for."""
    return [found for line in TARGETS if (found := line(results)) is not None]


Target = Callable[[Results], TargetResult | None]


def _shown(results: Results, name: str, metric: str) -> str:
    """A metric, and the spread of its rounds."""
    value, digits = results.best(name, metric), ALL[metric][1]
    spread = results.spread(name, metric)
    return f"{value:,.{digits}f}" + ("" if spread is None else f" ({spread:.0%})")


def _best_peer(results: Results, metric: str, safe: bool) -> str | None:
    """The best peer. With `safe`, only Python peers that deliver at least once count."""
    found: dict[str, float] = {}
    for name, about in results.about["competitors"].items():
        value = results.best(name, metric)
        excluded = safe and (name == NODE or about["promise"] != "at least once")
        if name != QUEASY and value is not None and not excluded:
            found[name] = value
    best = max if ALL[metric][2] else min
    return best(found, key=lambda name: found[name]) if found else None


def against_peers(
    metric: str, target: float | None = None, *, safe: bool = False, only: str | None = None
) -> Target:
    """Compare with the best peer. The target is the least ratio where more is better, otherwise the
    largest.
    """

    def line(results: Results) -> TargetResult | None:
        ours = results.best(QUEASY, metric)
        peer = only or _best_peer(results, metric, safe)
        theirs = results.best(peer, metric) if peer in results.metrics else None
        if ours is None or theirs is None:
            return None
        title, _, more = ALL[metric]
        ratio = ours / theirs
        met = None if target is None else ratio >= target if more else ratio <= target
        sign = "at least" if more else "at most"
        goal = "" if target is None else f"{sign} {target:g} ×"
        return TargetResult(
            title,
            _shown(results, QUEASY, metric),
            f"{peer} {_shown(results, str(peer), metric)}",
            ratio,
            goal,
            met,
        )

    return line


def against_own(metric: str, other: str, target: float) -> Target:
    """Compare with another metric of ours, or of the bare server."""

    def line(results: Results) -> TargetResult | None:
        ours, theirs = results.best(QUEASY, metric), results.best(QUEASY, other)
        if ours is None or theirs is None:
            return None
        title, _, more = ALL[metric]
        ratio = ours / theirs
        met = ratio >= target if more else ratio <= target
        against = f"{ALL[other][0]}: {_shown(results, QUEASY, other)}"
        sign = "at least" if more else "at most"
        return TargetResult(
            title, _shown(results, QUEASY, metric), against, ratio, f"{sign} {target:g} ×", met
        )

    return line


def alone(metric: str, target: float | None = None) -> Target:
    """Compare a metric with a fixed value. Without a target it only informs."""

    def line(results: Results) -> TargetResult | None:
        ours = results.best(QUEASY, metric)
        if ours is None:
            return None
        title, _, more = ALL[metric]
        if target is None:
            return TargetResult(title, _shown(results, QUEASY, metric), "", None, "", None)
        met = ours >= target if more else ours <= target
        goal = f"{'at least' if more else 'at most'} {target:g}"
        return TargetResult(title, _shown(results, QUEASY, metric), "", None, goal, met)

    return line


TARGETS: list[Target] = [
    against_peers("drain", 10, safe=True),
    against_peers("drain", 5, only=NODE),
    against_peers("drain 2", safe=True),
    against_own("drain 2", "drain", 1.7),
    alone("drain size 1"),
    alone("drain aof"),
    alone("bulk aof"),
    against_peers("bulk", 10),
    alone("bulk sync"),
    against_peers("concurrent", 10, safe=True),
    against_peers("concurrent", only=NODE),
    against_peers("single"),
    alone("dispatch ratio", 0.9),
    against_peers("pickup p50", 1),
    against_peers("pickup p99", 1),
    against_own("pickup p50", "pubsub p50", 1.5),
    against_own("pickup p99", "pubsub p99", 1.5),
    against_own("pickup p50", "blpop p50", 1.5),
    against_own("pickup p99", "blpop p99", 1.5),
    against_peers("burst"),
    against_own("burst", "drain", 0.9),
    alone("burst first", 5),
    against_peers("server"),
    against_peers("bytes"),
    alone("bytes", 220),
    against_peers("cpu"),
    alone("cpu", 0.96),
    alone("cpu plain", 0.96),
    against_peers("plain", 5, safe=True),
    against_peers("plain", only=NODE),
    against_peers("sleep"),
    alone("sleep", 0.95),
    alone("sleep of default size", 0.95),
    against_peers("spin"),
    against_peers("spin 2"),
    against_own("spin 2", "spin", 1.7),
    alone("supervisor", 1),
    alone("start", 400),
    alone("import", 120),
    alone("queues", 333),
    alone("queues idle", 1),
    alone("retried ratio", 0.5),
    alone("failed ratio", 0.5),
    against_own("spread 10", "one queue", 0.9),
    against_own("spread 50", "one queue", 0.7),
    alone("wait", 0.9),
    alone("lease ratio", 0.8),
    alone("drain 1 kB"),
    alone("drain 10 kB"),
    alone("drain 100 kB"),
]
