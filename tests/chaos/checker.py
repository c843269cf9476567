"""Reads what happened and says which promise was broken, and how.

It knows nothing of Queasy's insides: only what was asked, what was answered, and who ran when.
Where several orders of events are possible it takes the one that accuses nobody; so whatever it
reports did happen.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise

from tests.chaos.history import Dispatching, Event
from tests.chaos.story import Run, Story

__all__ = ["PROMISES", "Aftermath", "Verdict", "check"]

# Who was stopped cannot know what happened meanwhile before its first step; so long it may take.
WAKING = 1.0
# The server counts in milliseconds.
GRAIN = 0.001

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


def check(events: Iterable[Event], aftermath: Aftermath) -> Verdict:
    """Every promise, one after the other."""
    story = Story(events)
    verdict = Verdict()
    checks = (_lost, _overlap, _early, _rerun, _unheard, _undead, _tokens, _strangers,
              _replaced_data)  # fmt: skip
    for one in checks:
        one(story, aftermath, verdict)
    verdict.broken["wedged"] += aftermath.remaining
    verdict.broken["inconsistent"] += aftermath.audit
    verdict.broken["left behind"] += aftermath.processes
    return verdict


def _is_forgiven(at: float, aftermath: Aftermath, verdict: Verdict) -> bool:
    """Whether the server may have forgotten what it said at that time."""
    forgiven = any(start <= at <= end for start, end in aftermath.forgiven)
    verdict.forgiven += forgiven
    return forgiven


# The promises


def _lost(story: Story, aftermath: Aftermath, verdict: Verdict) -> None:
    failed = {*aftermath.given_up, *story.given_up}
    for n, ask in story.asked.items():
        word = story.word(n)
        must_run = word == "created" or (ask.updates and word in ("updated", "blocked"))
        if not must_run or n in failed:
            continue
        if any(run.end is not None and run.end.how == "done" for run in story.ran.get(n, ())):
            continue
        if _settled_so(story, n, ("finished", "cancelled", "failed")):
            continue
        if _replaced(story, ask) or _cancel_after(story, ask):
            continue
        if not aftermath.durable and _is_forgiven(story.answered_at(n), aftermath, verdict):
            continue
        runs = ", ".join(_show(run) for run in story.ran.get(n, ())) or "never started"
        verdict.accuse("lost", f"{ask.queue}/{ask.id} n={n} ({word} {ask.does}): {runs}")


def _settled_so(story: Story, n: int, words: tuple[str, ...]) -> bool:
    return any(
        (settled := story.settled.get((run.start.queue, run.start.id, run.start.token)))
        and settled.word in words
        for run in story.ran.get(n, ())
    )


def _replaced(story: Story, ask: Dispatching) -> bool:
    """Whether another dispatch of its id may have come after it, and put its data in place."""
    return any(
        other.n != ask.n
        and other.updates
        # One that was created found nothing to replace.
        and story.word(other.n) in ("updated", "blocked", "unclear")
        and story.answered_at(other.n) >= ask.at
        for other in story.by_id.get((ask.queue, ask.id), ())
    )


def _cancel_after(story: Story, ask: Dispatching) -> bool:
    """Whether a cancel of its id may have come after it."""
    return any(
        (answer is None or (answer.word in ("yes", "unclear") and answer.at >= ask.at))
        for _, answer in story.cancels.get((ask.queue, ask.id), ())
    )


def _overlap(story: Story, aftermath: Aftermath, verdict: Verdict) -> None:
    for (queue, id_), runs in story.runs.items():
        for index, run in enumerate(runs):
            # A pull lease knows when it is over.
            known = min(run.last, run.start.until or run.last)
            for other in islice(runs, index + 1, None):
                if other.start.at >= known:
                    break
                woken = _woken(story, run, other)
                if woken is not None and woken <= WAKING:
                    verdict.woken.append(woken)
                    continue
                if _is_forgiven(run.start.at, aftermath, verdict):
                    continue
                verdict.accuse(
                    "overlap",
                    f"{queue}/{id_}: {_show(run)} and {_show(other)}, "
                    f"{(known - other.start.at) * 1000:.1f} ms",
                )


def _woken(story: Story, run: Run, other: Run) -> float | None:
    """If all that is known of a run after another began lies behind a freeze of its process
    which began before: for how long behind it.
    """
    for freeze in story.freezes.get(run.start.pid, ()):
        if run.start.at <= freeze.until and freeze.at <= other.start.at <= freeze.until + WAKING:
            return max(0.0, run.last - freeze.until)
    return None


def _early(story: Story, aftermath: Aftermath, verdict: Verdict) -> None:
    for n, runs in story.ran.items():
        ask = story.asked.get(n)
        if ask is not None and ask.due:
            for run in runs:
                if run.start.at < ask.due - GRAIN:
                    early = (ask.due - run.start.at) * 1000
                    verdict.accuse("early", f"{ask.queue}/{ask.id}: {_show(run)} {early:.1f} ms")
    for (queue, id_), runs in story.runs.items():
        if len(story.by_id.get((queue, id_), ())) > 1:
            continue  # another dispatch may have changed its time
        for run, after in pairwise(runs):
            told = story.settled.get((queue, id_, run.start.token))
            if told is None or told.word != "retried" or run.end is None:
                continue
            early = run.end.at + run.end.after - after.start.at
            if early > GRAIN and not _is_forgiven(run.end.at, aftermath, verdict):
                verdict.accuse(
                    "early", f"{queue}/{id_}: retry {_show(after)} {early * 1000:.1f} ms"
                )


def _rerun(story: Story, aftermath: Aftermath, verdict: Verdict) -> None:
    for runs in story.ran.values():
        for run in runs:
            settled = story.settled.get((run.start.queue, run.start.id, run.start.token))
            if settled is None or settled.word != "finished":
                continue
            again = [other for other in runs if other.start.token > run.start.token]
            if again and not _is_forgiven(settled.at or run.last, aftermath, verdict):
                verdict.accuse(
                    "rerun", f"{run.start.queue}/{run.start.id}: {_show(run)}, {_show(again[0])}"
                )


def _unheard(story: Story, aftermath: Aftermath, verdict: Verdict) -> None:
    given_up = dict.fromkeys(aftermath.given_up)
    for n, runs in story.ran.items():
        forgiven = any(_in(aftermath.forgiven, run.last) for run in runs)
        if not forgiven and _settled_so(story, n, ("failed",)):
            given_up.setdefault(n)
    for n in given_up:
        if n not in story.given_up:
            ask = story.asked.get(n)
            verdict.accuse("unheard", f"{ask.queue}/{ask.id} n={n}" if ask else f"n={n}")


def _in(windows: Sequence[tuple[float, float]], at: float) -> bool:
    return any(start <= at <= end for start, end in windows)


def _undead(story: Story, aftermath: Aftermath, verdict: Verdict) -> None:
    for (queue, id_), pairs in story.cancels.items():
        if len(story.by_id.get((queue, id_), ())) > 1:
            continue  # it may have been dispatched again
        ask = next(iter(story.by_id.get((queue, id_), ())), None)
        for cancelling, answer in pairs:
            if answer is None or answer.word != "yes" or ask is None:
                continue
            if story.answered_at(ask.n) > answer.at:
                continue  # the dispatch may have come behind the cancel
            for run in story.runs.get((queue, id_), ()):
                if run.start.at <= answer.at:
                    continue
                if cancelling.running and _is_delayed(story, run, answer.at):
                    continue
                if not _is_forgiven(answer.at, aftermath, verdict):
                    verdict.accuse("undead", f"{queue}/{id_}: {_show(run)}")


def _is_delayed(story: Story, run: Run, at: float) -> bool:
    """Whether it may have been taken before that time: a run begins a moment after its lease
    does, and asking to cancel what runs is answered with yes.
    """
    earlier = [other for other in story.runs[run.start.queue, run.start.id]
               if other.start.token < run.start.token]  # fmt: skip
    return not any(other.start.at > at for other in earlier)


def _tokens(story: Story, aftermath: Aftermath, verdict: Verdict) -> None:
    for (queue, id_), runs in story.runs.items():
        for run, after in pairwise(runs):
            if after.start.token <= run.start.token and not _stale(story, after):
                verdict.accuse("token", f"{queue}/{id_}: {_show(run)}, {_show(after)}")


def _stale(story: Story, run: Run) -> bool:
    """Whether its process was frozen between taking the job and starting it."""
    return any(
        freeze.at <= run.start.at <= freeze.until + WAKING
        for freeze in story.freezes.get(run.start.pid, ())
    )


def _strangers(story: Story, aftermath: Aftermath, verdict: Verdict) -> None:
    for n, runs in story.ran.items():
        ask = story.asked.get(n)
        for start in (run.start for run in runs):
            if ask is None or (ask.queue, ask.id) != (start.queue, start.id):
                why = "nobody dispatched it"
            elif story.word(n) == "refused":
                why = "it had been refused"
            elif start.at < ask.at:
                why = "before its dispatch"
            else:
                continue
            verdict.accuse("stranger", f"{start.queue}/{start.id} n={n}: {why}")


def _replaced_data(story: Story, aftermath: Aftermath, verdict: Verdict) -> None:
    """A dispatch that updated a job found it waiting: what starts behind has its data, or that
    of a later one.
    """
    for key, runs in story.runs.items():
        updates = sorted(
            (story.answered_at(ask.n), ask.at)
            for ask in story.by_id.get(key, ())
            if ask.updates and story.word(ask.n) == "updated"
        )
        for run in runs:
            replaced_by = bisect_left(updates, (run.start.at, 0.0)) - 1
            if replaced_by < 0:
                continue
            answered, asked = updates[replaced_by]
            replaced = story.answered_at(run.start.n) < asked and not _stale(story, run)
            if replaced and not _is_forgiven(answered, aftermath, verdict):
                verdict.accuse("stale", f"{'/'.join(key)}: {_show(run)}")


def _show(run: Run) -> str:
    end = run.end.how if run.end is not None else "no end"
    return f"token {run.start.token} pid {run.start.pid} [{run.start.at:.4f}, {run.last:.4f}] {end}"
