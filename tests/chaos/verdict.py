"""The promises, and what is said about them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.chaos.story import Run

__all__ = ["PROMISES", "Aftermath", "Verdict", "is_forgiven", "show"]

PROMISES = {
    "lost": "accepted jobs that neither ran to an end, nor were given up, cancelled or replaced",
    "overlap": "runs of one id at the same time",
    "early": "runs before their time",
    "rerun": "runs after an accepted finish",
    "unheard": "jobs given up whose fail handler did not run",
    "undead": "runs after an accepted cancel",
    "token": "runs whose token is not greater than that of the run before",
    "stranger": "runs of a payload that nobody dispatched to that id, or that was refused",
    "stale": "runs with data that had been replaced",
    "unearned": "jobs finished, given up or cancelled without a reason to",
    "overlong": "runs that went on long after their timeout",
    "wedged": "jobs still there when all had time to end",
    "inconsistent": "complaints of the audit",
    "left behind": "processes or exit codes that should not be",
}


@dataclass(frozen=True)
class Aftermath:
    """What was found when all was over."""

    given_up: Sequence[int] = ()
    """The `n` of jobs in the failed record."""
    remaining: Sequence[str] = ()
    audit: Sequence[str] = ()
    processes: Sequence[str] = ()
    forgiven: Sequence[tuple[float, float]] = ()
    """When the server may forget what it answered, as its settings say."""
    durable: bool = False
    """But no dispatch: those were answered when they were on a second server."""


@dataclass
class Verdict:
    broken: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in PROMISES})
    woken: list[float] = field(default_factory=list)
    """Seconds for which who was stopped went on with a run that was another's by then."""
    forgiven: int = 0
    """Of what the server's settings let it forget."""

    @property
    def kept(self) -> bool:
        return not any(self.broken.values())

    def accuse(self, promise: str, evidence: str) -> None:
        self.broken[promise].append(evidence)


def is_forgiven(at: float, aftermath: Aftermath, verdict: Verdict) -> bool:
    """Whether the server may have forgotten what it said at that time."""
    forgiven = any(start <= at <= end for start, end in aftermath.forgiven)
    verdict.forgiven += forgiven
    return forgiven


def show(run: Run) -> str:
    end = run.end.how if run.end is not None else "no end"
    return f"token {run.start.token} pid {run.start.pid} [{run.start.at:.4f}, {run.last:.4f}] {end}"
