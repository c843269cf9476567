"""What a run came to, in figures."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tests.chaos.checker import PROMISES, Verdict
from tests.chaos.history import Event
from tests.chaos.story import Run, Story

# Faults that end processes.
KILLS = ("kill child", "kill supervisor", "kill producer", "kill consumer")
SERVER_KILLS = ("kill server", "cut power")


@dataclass
class Figures:
    """Of one run, or of many."""

    runs: Counter[str] = field(default_factory=Counter)
    """Of each scene."""
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    recovery: dict[str, list[float]] = field(default_factory=dict)
    woken: list[float] = field(default_factory=list)
    seconds: float = 0.0
    latest: float = 0.0
    """Start of a job, in seconds after it was due. Nothing is promised about that."""
    seeds: list[str] = field(default_factory=list)

    def add(self, other: "Figures") -> None:
        self.runs += other.runs
        self.counts += other.counts
        self.faults += other.faults
        self.broken += other.broken
        self.woken += other.woken
        self.seconds += other.seconds
        self.latest = max(self.latest, other.latest)
        self.seeds += other.seeds
        for kind, times in other.recovery.items():
            self.recovery.setdefault(kind, []).extend(times)

    @property
    def process_kills(self) -> int:
        return sum(self.faults[kind] for kind in KILLS)

    @property
    def server_kills(self) -> int:
        return sum(self.faults[kind] for kind in SERVER_KILLS)


def figures(
    scene: str, seed: str, events: Sequence[Event], verdict: Verdict, seconds: float
) -> Figures:
    story = Story(events)
    words = Counter(answer.word for answer in story.answers.values())
    runs = [run for runs in story.runs.values() for run in runs]
    counts = Counter(
        {
            "dispatches asked for": len(story.asked),
            "accepted": sum(words[w] for w in ("created", "updated", "blocked", "unchanged")),
            "refused": words["refused"],
            "unclear": len(story.asked) - sum(words.values()) + words["unclear"],
            "jobs": words["created"] + words["blocked"],
            "runs": len(runs),
            "runs by pull consumers": sum(1 for run in runs if run.start.until),
            "cut short": sum(1 for run in runs if run.end is None),
            "given up": len(story.given_up),
            "cancels": sum(len(pairs) for pairs in story.cancels.values()),
            "forgiven": verdict.forgiven,
        }
    )
    return Figures(
        Counter({scene: 1}),
        counts,
        Counter(fault.kind for fault in story.faults),
        Counter({name: len(found) for name, found in verdict.broken.items()}),
        _recovery(story, runs),
        verdict.woken,
        seconds,
        _latest(story),
        [f"{scene} {seed}"],
    )


def _latest(story: Story) -> float:
    """Of those that were created by a dispatch that was answered: the longest wait for a start."""
    return max(
        (
            runs[0].start.at - max(ask.due, story.answered_at(n))
            for n, ask in story.asked.items()
            if story.word(n) == "created" and (runs := story.ran.get(n))
        ),
        default=0.0,
    )


def _recovery(story: Story, runs: list[Run]) -> dict[str, list[float]]:
    """From the death of whoever ran a job to its next run; from the return of the server to the
    next run of anything.
    """
    killed = {pid: fault for fault in story.faults if fault.kind in KILLS for pid in fault.pids}
    times: dict[str, list[float]] = {}
    for same in story.ran.values():
        for run, after in pairwise(same):
            fault = killed.get(run.start.pid)
            if run.end is None and fault and after.start.at > fault.at:
                times.setdefault(f"job after {fault.kind}", []).append(after.start.at - fault.at)
    starts = sorted(run.start.at for run in runs)
    for fault in story.faults:
        if fault.kind in (*SERVER_KILLS, "freeze server", "stall network", "deaf network"):
            next_start = next((at for at in starts if at > fault.until), math.inf)
            if next_start < math.inf:
                times.setdefault(f"any job after {fault.kind}", []).append(next_start - fault.until)
    return times


def percentile(times: Sequence[float], share: float) -> float:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:.0f} minutes"


def markdown(total: Figures) -> Iterable[str]:
    """As it stands in docs/reliability.md."""
    runs = sum(total.runs.values())
    yield f"{runs} run{'s' * (runs != 1)}, {_duration(total.seconds)}: " + ", ".join(
        f"{count} x {name}" for name, count in total.runs.items()
    )
    yield ""
    yield "Seeds: " + ", ".join(total.seeds)
    yield ""
    yield from ("| promise | broken |", "|---|---|")
    for name, about in PROMISES.items():
        yield f"| {about} | **{total.broken[name]}** |"
    yield ""
    yield from ("| what was done | times |", "|---|---|")
    yield f"| processes killed (SIGKILL) | {total.process_kills:,} |"
    yield f"| servers killed | {total.server_kills:,} |"
    for kind, count in sorted(total.faults.items()):
        yield f"| {kind} | {count:,} |"
    yield ""
    yield from ("| what happened | times |", "|---|---|")
    for name, count in total.counts.items():
        yield f"| {name} | {count:,} |"
    yield f"| latest start, s | {total.latest:.1f} |"
    yield ""
    yield from ("| until it went on | n | p50, s | p99, s | worst, s |", "|---|---|---|---|---|")
    for kind, times in sorted(total.recovery.items()):
        yield (
            f"| {kind} | {len(times):,} | {percentile(times, 0.5):.3f} | "
            f"{percentile(times, 0.99):.2f} | {max(times):.2f} |"
        )
    if total.woken:
        yield ""
        yield (
            f"{len(total.woken)} runs were stopped (SIGSTOP) together with their supervisor, lost "
            f"their lease meanwhile, and went on for a moment when they were woken: at most "
            f"{max(total.woken) * 1000:.0f} ms. What they reported was refused."
        )
