"""What Queasy is to reach, each as a ratio of two figures of one run, or as a figure by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.harness.results import ALL, Results

QUEASY = "Queasy"
NODE = "BullMQ (Node)"


@dataclass(frozen=True)
class Verdict:
    """One line of the document. Without a target it only informs."""

    work: str
    ours: str
    against: str
    ratio: float | None
    target: str
    met: bool | None


def verdicts(results: Results) -> list[Verdict]:
    """Of all targets that this run has the figures for."""
    return [found for line in LINES if (found := line(results)) is not None]


Line = Callable[[Results], Verdict | None]


def _told(results: Results, who: str, figure: str) -> str:
    """A figure, and how much of it was between the rounds."""
    value, digits = results.best(who, figure), ALL[figure][1]
    spread = results.spread(who, figure)
    return f"{value:,.{digits}f}" + ("" if spread is None else f" ({spread:.0%})")


def _best_peer(results: Results, figure: str, safe: bool) -> str | None:
    """Who is best. With `safe`, among those for Python that lose nothing."""
    found: dict[str, float] = {}
    for name, about in results.about["competitors"].items():
        value = results.best(name, figure)
        left_out = safe and (name == NODE or about["promise"] != "at least once")
        if name != QUEASY and value is not None and not left_out:
            found[name] = value
    best = max if ALL[figure][2] else min
    return best(found, key=lambda name: found[name]) if found else None


def against_peers(
    figure: str, target: float | None = None, *, safe: bool = False, only: str | None = None
) -> Line:
    """More is better: at least so many times the best peer. Less is: at most so many times."""

    def line(results: Results) -> Verdict | None:
        ours = results.best(QUEASY, figure)
        peer = only or _best_peer(results, figure, safe)
        theirs = results.best(peer, figure) if peer in results.figures else None
        if ours is None or theirs is None:
            return None
        title, _, more = ALL[figure]
        ratio = ours / theirs
        met = None if target is None else ratio >= target if more else ratio <= target
        sign = "at least" if more else "at most"
        told = "" if target is None else f"{sign} {target:g} ×"
        return Verdict(
            title,
            _told(results, QUEASY, figure),
            f"{peer} {_told(results, str(peer), figure)}",
            ratio,
            told,
            met,
        )

    return line


def against_own(figure: str, other: str, target: float) -> Line:
    """As the line above, against another figure of ours or of the bare server."""

    def line(results: Results) -> Verdict | None:
        ours, theirs = results.best(QUEASY, figure), results.best(QUEASY, other)
        if ours is None or theirs is None:
            return None
        title, _, more = ALL[figure]
        ratio = ours / theirs
        met = ratio >= target if more else ratio <= target
        against = f"{ALL[other][0]}: {_told(results, QUEASY, other)}"
        sign = "at least" if more else "at most"
        return Verdict(
            title, _told(results, QUEASY, figure), against, ratio, f"{sign} {target:g} ×", met
        )

    return line


def alone(figure: str, target: float | None = None) -> Line:
    """A figure by itself."""

    def line(results: Results) -> Verdict | None:
        ours = results.best(QUEASY, figure)
        if ours is None:
            return None
        title, _, more = ALL[figure]
        if target is None:
            return Verdict(title, _told(results, QUEASY, figure), "", None, "", None)
        met = ours >= target if more else ours <= target
        told = f"{'at least' if more else 'at most'} {target:g}"
        return Verdict(title, _told(results, QUEASY, figure), "", None, told, met)

    return line


LINES: list[Line] = [
    against_peers("drain", 10, safe=True),
    against_peers("drain", 5, only=NODE),
    against_peers("drain 2", safe=True),
    against_own("drain 2", "drain", 1.7),
    alone("drain size 1"),
    alone("drain kept"),
    alone("bulk kept"),
    against_peers("bulk", 10),
    alone("bulk sync"),
    against_peers("concurrent", 10, safe=True),
    against_peers("concurrent", only=NODE),
    against_peers("single"),
    alone("dispatch part", 0.9),
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
    alone("supervisor", 1),
    alone("start", 400),
    alone("import", 120),
    alone("retried part", 0.5),
    alone("given up part", 0.5),
    alone("lease part", 0.8),
    alone("drain 1 kB"),
    alone("drain 10 kB"),
    alone("drain 100 kB"),
]
