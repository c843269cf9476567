"""This code next to the code of another checkout, both measured in one run.

A ratio is a speed: above 1 this code is better, whether the metric counts jobs or milliseconds.
"""

from __future__ import annotations

from statistics import median

from benchmarks.harness.results import ALL, Results

NOT_SLOWER = 0.95
# Metrics of the bare server, measured without any code of ours. Their ratios show the noise.
CONTROLS = {"bare FCALL", "redis-py FCALL", "blpop p50", "blpop p99", "pubsub p50", "pubsub p99"}
# Quotients of two speeds of the same code. They fall when the divisor improves, so that only the
# speeds themselves are compared.
QUOTIENTS = {"retried ratio", "failed ratio"}


class Comparison:
    """The ratios of each metric, round by round."""

    def __init__(self, other: str) -> None:
        self.other = other
        """Name of the other code among the results."""
        self.ratios: dict[str, list[float]] = {}

    def add(self, ours: dict[str, float], theirs: dict[str, float]) -> None:
        """Take the metrics that one workload measured in one round, with both codes."""
        for metric in (ours.keys() & theirs.keys()) - QUOTIENTS:
            self.ratios.setdefault(metric, []).append(ratio(metric, ours[metric], theirs[metric]))

    def best(self, results: Results, metric: str) -> float:
        """The best round of this code against the best round of the other."""
        ours, theirs = results.best("Queasy", metric), results.best(self.other, metric)
        assert ours is not None
        assert theirs is not None
        return ratio(metric, ours, theirs)

    def slower(self, results: Results) -> list[str]:
        """Metrics in which this code is slower: the median of the rounds and the best round both
        say so. Either alone is noise too often.
        """
        return [
            metric
            for metric, ratios in self._measured()
            if metric not in CONTROLS
            and max(median(ratios), self.best(results, metric)) < NOT_SLOWER
        ]

    def table(self, results: Results) -> str:
        """Each metric: both codes, the ratios, and a last line with the outcome."""
        rows = [
            f"| metric | Queasy | {self.other} | median ratio | best / best | lowest to highest |",
            "|---|---:|---:|---:|---:|---|",
        ]
        for metric, ratios in self._measured():
            title, digits, _ = ALL[metric]
            ours, theirs = results.best("Queasy", metric), results.best(self.other, metric)
            note = " (control)" if metric in CONTROLS else ""
            rows.append(
                f"| {title}{note} | {ours:,.{digits}f} | {theirs:,.{digits}f} | "
                f"{median(ratios):.2f} | {self.best(results, metric):.2f} | "
                f"{min(ratios):.2f} to {max(ratios):.2f} |"
            )
        return "\n".join([*rows, "", self._outcome(results)])

    def _measured(self) -> list[tuple[str, list[float]]]:
        return [(metric, self.ratios[metric]) for metric in ALL if metric in self.ratios]

    def _outcome(self, results: Results) -> str:
        counted = sum(1 for metric, _ in self._measured() if metric not in CONTROLS)
        slower = self.slower(results)
        if not slower:
            return f"None of {counted} metrics is below {NOT_SLOWER} of {self.other}."
        names = "; ".join(ALL[metric][0] for metric in slower)
        return f"{len(slower)} of {counted} metrics below {NOT_SLOWER} of {self.other}: {names}."


def ratio(metric: str, ours: float, theirs: float) -> float:
    """How many times as good as the other this code is."""
    more_is_better = ALL[metric][2]
    part, whole = (ours, theirs) if more_is_better else (theirs, ours)
    return part / whole if whole else 1.0 if part == whole else float("inf")
