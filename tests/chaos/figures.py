"""The figures of a run, counted from its history."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tests.chaos.history import Event
from tests.chaos.timeline import Run, Timeline
from tests.chaos.verdict import Verdict

__all__ = ["Figures", "count"]

PROCESS_KILLS = (
    "kill worker process", "kill supervisor", "kill host", "kill producer", "kill consumer",
)  # fmt: skip
SERVER_KILLS = ("kill server", "power failure", "flap: server killed")
OUTAGES = (
    *SERVER_KILLS, "freeze server", "flap: server frozen", "stall network", "unresponsive network",
)  # fmt: skip


@dataclass
class Figures:
    """The figures of one run, or the sum of several."""

    scenes: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    violations: Counter[str] = field(default_factory=Counter)
    recovery: dict[str, list[float]] = field(default_factory=dict)
    resumed: list[float] = field(default_factory=list)
    seconds: float = 0.0
    longest_wait: float = 0.0
    """Seconds from the time a job was due to its start. Nothing is promised about that."""
    seeds: list[str] = field(default_factory=list)

    def add(self, other: "Figures") -> None:
        self.scenes.update(other.scenes)
        self.counts.update(other.counts)  # unlike `+`, this keeps zeros, which are reported too
        self.faults.update(other.faults)
        self.violations.update(other.violations)
        self.resumed += other.resumed
        self.seconds += other.seconds
        self.longest_wait = max(self.longest_wait, other.longest_wait)
        self.seeds += other.seeds
        for kind, times in other.recovery.items():
            self.recovery.setdefault(kind, []).extend(times)

    @property
    def process_kills(self) -> int:
        return sum(self.faults[kind] for kind in PROCESS_KILLS)

    @property
    def server_kills(self) -> int:
        return sum(self.faults[kind] for kind in SERVER_KILLS)


def count(
    scene: str, seed: str, events: Sequence[Event], verdict: Verdict, seconds: float
) -> Figures:
    timeline = Timeline(events)
    answers = Counter(answer.answer for answer in timeline.answers.values())
    runs = [run for runs in timeline.runs.values() for run in runs]
    counts = Counter(
        {
            "dispatches": len(timeline.dispatches),
            "dispatches accepted": sum(
                answers[answer] for answer in ("created", "updated", "blocked", "unchanged")
            ),
            "dispatches refused": answers["refused"],
            "dispatches without a clear answer": (
                len(timeline.dispatches) - sum(answers.values()) + answers["unclear"]
            ),
            "jobs": answers["created"] + answers["blocked"],
            "runs": len(runs),
            "runs by pull consumers": sum(1 for run in runs if run.start.until),
            "runs interrupted": sum(1 for run in runs if run.end is None),
            "runs frozen": _runs(timeline, "process_frozen"),
            "runs thawed": _runs(timeline, "process_thawed"),
            "runs killed after their lease was lost": _runs(timeline, "process_died"),
            "jobs failed": len(timeline.fail_handlers),
            "cancels": sum(len(cancels) for cancels in timeline.cancels.values()),
            "losses excused by the server's settings": verdict.excused,
        }
    )
    return Figures(
        Counter({scene: 1}),
        counts,
        Counter(fault.kind for fault in timeline.faults),
        Counter({name: len(found) for name, found in verdict.violations.items()}),
        _recovery_times(timeline, runs),
        verdict.resumed,
        seconds,
        _longest_wait(timeline),
        [f"{scene} {seed}"],
    )


def _runs(timeline: Timeline, how: str) -> int:
    return sum(event.runs for event in timeline.frozen if event.how == how)


def _longest_wait(timeline: Timeline) -> float:
    """The longest wait for a first start, if the dispatch was answered with `created`."""
    return max(
        (
            runs[0].start.at - max(request.due, timeline.answered_at(n))
            for n, request in timeline.dispatches.items()
            if timeline.answer(n) == "created" and (runs := timeline.runs_of.get(n))
        ),
        default=0.0,
    )


def _recovery_times(timeline: Timeline, runs: list[Run]) -> dict[str, list[float]]:
    """Seconds from the death of a process to the next run of each job it ran; and from the end of
    an outage to the next run of any job.
    """
    killed = {
        pid: fault for fault in timeline.faults if fault.kind in PROCESS_KILLS for pid in fault.pids
    }
    times: dict[str, list[float]] = {}
    for same_job in timeline.runs_of.values():
        for run, following in pairwise(same_job):
            fault = killed.get(run.start.pid)
            if run.end is None and fault and following.start.at > fault.at:
                seconds = following.start.at - fault.at
                times.setdefault(f"job after {fault.kind}", []).append(seconds)
    starts = sorted(run.start.at for run in runs)
    for fault in timeline.faults:
        if fault.kind in OUTAGES:
            next_start = next((at for at in starts if at > fault.until), math.inf)
            if next_start < math.inf:
                times.setdefault(f"any job after {fault.kind}", []).append(next_start - fault.until)
    return times
