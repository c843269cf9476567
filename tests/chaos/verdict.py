"""The promises that the checker verifies, and the violations it found."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from tests.chaos.timeline import Run

__all__ = ["PROMISES", "FinalState", "Verdict", "is_excused", "show"]

# Each promise, by what a violation of it is.
PROMISES = {
    "lost": "accepted jobs lost",
    "overlap": "runs of one id at the same time",
    "early": "runs before their time",
    "repeated": "runs after an accepted finish",
    "no fail handler": "failed jobs without a run of the fail handler",
    "cancelled": "runs after an accepted cancel",
    "token": "runs with a token not greater than that of the previous run",
    "unknown payload": "runs with a payload that was refused, or never dispatched to that id",
    "stale data": "runs with data that had been replaced",
    "wrong outcome": "jobs finished, failed or cancelled without a reason",
    "overlong": "runs that continued long after their timeout",
    "stuck": "jobs that did not end within the drain time",
    "audit": "problems found by the audit",
    "processes": "processes left over, and unexpected exit codes",
}


class FinalState(msgspec.Struct, frozen=True, rename={"failed": "given_up", "excused": "forgiven"}):
    """The state of queues and processes after a run."""

    failed: Sequence[int] = ()
    """The `n` of the jobs in the failed record."""
    remaining: Sequence[str] = ()
    audit: Sequence[str] = ()
    processes: Sequence[str] = ()
    excused: Sequence[tuple[float, float]] = ()
    """Intervals in which the server may lose acknowledged writes, by its settings."""
    durable: bool = False
    """Whether dispatches are exempt from that: they were acknowledged by a second server."""


@dataclass
class Verdict:
    violations: dict[str, list[str]] = field(
        default_factory=lambda: {name: [] for name in PROMISES}
    )
    resumed: list[float] = field(default_factory=list)
    """Seconds for which a process that was frozen until its lease expired continued its run."""
    excused: int = 0
    """Violations within the intervals that the server's settings excuse."""

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        return not any(self.violations.values())

    def add(self, promise: str, evidence: str) -> None:
        self.violations[promise].append(evidence)


def is_excused(at: float, final: FinalState, verdict: Verdict) -> bool:
    """Whether the server may have lost what it acknowledged at that time. Counts it if so."""
    excused = any(start <= at <= end for start, end in final.excused)
    verdict.excused += excused
    return excused


def show(run: Run) -> str:
    end = run.end.how if run.end is not None else "no end"
    return f"token {run.start.token} pid {run.start.pid} [{run.start.at:.4f}, {run.last:.4f}] {end}"
