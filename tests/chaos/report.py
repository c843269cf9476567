"""The report of one or several runs, as Markdown that can be pasted into docs/."""

import math
from collections.abc import Iterator, Sequence

from tests.chaos.figures import Figures
from tests.chaos.verdict import PROMISES

__all__ = ["markdown"]


def markdown(runs: Sequence[Figures]) -> Iterator[str]:
    """Tables with a column for each of these runs. Violations are summed over all runs."""
    total = Figures()
    for run in runs:
        total.add(run)
    yield from _heading(runs)
    yield from ("| promise | violations |", "|---|---|")
    for name, about in PROMISES.items():
        yield f"| {about} | **{total.violations[name]}** |"
    yield ""
    yield _row("fault", _columns(runs, "times"))
    yield _rule(runs)
    yield _row("processes killed (SIGKILL)", [f"{run.process_kills:,}" for run in runs])
    yield _row("servers killed", [f"{run.server_kills:,}" for run in runs])
    for kind in sorted(total.faults):
        yield _row(kind, [f"{run.faults[kind]:,}" for run in runs])
    yield ""
    yield _row("event", _columns(runs, "count"))
    yield _rule(runs)
    for name in total.counts:
        yield _row(name, [f"{run.counts[name]:,}" for run in runs])
    yield _row("longest wait for a start, s", [f"{run.longest_wait:.1f}" for run in runs])
    if total.recovery:
        yield ""
        yield _row("recovery time, s: p50 / p99 / worst (n)", _columns(runs, "seconds"))
        yield _rule(runs)
    for kind in sorted(total.recovery):
        yield _row(kind, [_recovery(run.recovery.get(kind, [])) for run in runs])
    if total.resumed:
        yield ""
        yield (
            f"{len(total.resumed)} runs were frozen (SIGSTOP) together with their supervisor until "
            f"their lease had expired. When they were thawed they continued for at most "
            f"{max(total.resumed) * 1000:.0f} ms. The server refused their outcomes."
        )


def _heading(runs: Sequence[Figures]) -> Iterator[str]:
    for number, run in enumerate(runs, 1):
        name = f"Run {number}: " if len(runs) > 1 else ""
        scenes = ", ".join(f"{count} x {scene}" for scene, count in run.scenes.items())
        duration = f" in {_duration(run.seconds)}" if run.seconds else ""
        yield f"{name}{scenes}{duration}"
        yield ""
        yield "Seeds: " + ", ".join(run.seeds)
        yield ""


def _columns(runs: Sequence[Figures], only: str) -> list[str]:
    return [only] if len(runs) == 1 else [f"run {number}" for number in range(1, len(runs) + 1)]


def _row(name: str, cells: Sequence[str]) -> str:
    return "| " + " | ".join([name, *cells]) + " |"


def _rule(runs: Sequence[Figures]) -> str:
    return "|---" * (len(runs) + 1) + "|"


def _recovery(times: Sequence[float]) -> str:
    if not times:
        return "-"
    p50, p99 = percentile(times, 0.5), percentile(times, 0.99)
    return f"{p50:.3f} / {p99:.2f} / {max(times):.2f} ({len(times):,})"


def percentile(times: Sequence[float], share: float) -> float:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:.0f} minutes"
