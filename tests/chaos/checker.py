"""Reads what happened and says which promise was broken, and how.

It knows nothing of Queasy's insides: only what was asked, what was answered, and who ran when.
Where several orders of events are possible it takes the one that accuses nobody; so whatever it
reports did happen.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise

from tests.chaos.endings import overlong, unearned
from tests.chaos.history import Event
from tests.chaos.load import BACKOFF
from tests.chaos.losses import lost, settled_so
from tests.chaos.story import Run, Story
from tests.chaos.verdict import PROMISES, Aftermath, Verdict, is_forgiven, show

__all__ = ["PROMISES", "Aftermath", "Verdict", "check"]

# Who was stopped cannot know what happened meanwhile before its first step; so long it may take.
WAKING = 1.0
# A worker's lease, 12.5 s, less the time between two heartbeats, 2 s: who is stopped for less
# than that is not taken for dead.
LEASE_LEFT = 10.0
# The server counts in milliseconds.
GRAIN = 0.001


def check(events: Iterable[Event], aftermath: Aftermath) -> Verdict:
    """Every promise, one after the other."""
    story = Story(events)
    verdict = Verdict()
    checks = (lost, _overlap, _early, _rerun, _unheard, _undead, _tokens, _strangers,
              _replaced_data, unearned, overlong)  # fmt: skip
    for one in checks:
        one(story, aftermath, verdict)
    verdict.broken["wedged"] += aftermath.remaining
    verdict.broken["inconsistent"] += aftermath.audit
    verdict.broken["left behind"] += aftermath.processes
    return verdict


# The promises


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
                if is_forgiven(run.start.at, aftermath, verdict):
                    continue
                verdict.accuse(
                    "overlap",
                    f"{queue}/{id_}: {show(run)} and {show(other)}, "
                    f"{(known - other.start.at) * 1000:.1f} ms",
                )


def _woken(story: Story, run: Run, other: Run) -> float | None:
    """If all that is known of a run after another began lies behind a freeze of its process
    which began before, and long enough before that its lease was over: for how long behind it.
    """
    if run.start.until:
        return None  # who pulled it knows when it is over
    for freeze in story.freezes.get(run.start.pid, ()):
        over = freeze.at + LEASE_LEFT
        if run.start.at <= freeze.until and over <= other.start.at <= freeze.until + WAKING:
            return max(0.0, run.last - freeze.until)
    return None


def _early(story: Story, aftermath: Aftermath, verdict: Verdict) -> None:
    for n, runs in story.ran.items():
        ask = story.asked.get(n)
        if ask is not None and ask.due:
            for run in runs:
                if run.start.at < ask.due - GRAIN:
                    early = (ask.due - run.start.at) * 1000
                    verdict.accuse("early", f"{ask.queue}/{ask.id}: {show(run)} {early:.1f} ms")
    for (queue, id_), runs in story.runs.items():
        if len(story.by_id.get((queue, id_), ())) > 1:
            continue  # another dispatch may have changed its time
        for run, after in pairwise(runs):
            told = story.settled.get((queue, id_, run.start.token))
            if told is not None and told.word == "retried" and run.end is not None:
                pause = run.end.after
            elif told is not None and told.word == "timed_out":
                pause = BACKOFF
            else:
                continue
            early = run.last + pause - after.start.at
            if early > GRAIN and not is_forgiven(run.last, aftermath, verdict):
                verdict.accuse("early", f"{queue}/{id_}: retry {show(after)} {early * 1000:.1f} ms")


def _rerun(story: Story, aftermath: Aftermath, verdict: Verdict) -> None:
    for runs in story.ran.values():
        for run in runs:
            settled = story.settled.get((run.start.queue, run.start.id, run.start.token))
            if settled is None or settled.word != "finished":
                continue
            again = [other for other in runs if other.start.token > run.start.token]
            if again and not is_forgiven(settled.at or run.last, aftermath, verdict):
                verdict.accuse(
                    "rerun", f"{run.start.queue}/{run.start.id}: {show(run)}, {show(again[0])}"
                )


def _unheard(story: Story, aftermath: Aftermath, verdict: Verdict) -> None:
    given_up = dict.fromkeys(aftermath.given_up)
    for n, runs in story.ran.items():
        forgiven = any(_in(aftermath.forgiven, run.last) for run in runs)
        if not forgiven and settled_so(story, runs, ("failed",)):
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
            if answer is None or answer.word != "yes" or ask is None or ask.n in story.requeued:
                continue
            if story.answered_at(ask.n) > answer.at:
                continue  # the dispatch may have come behind the cancel
            for run in story.runs.get((queue, id_), ()):
                if run.start.at <= answer.at:
                    continue
                if cancelling.running and _is_delayed(story, run, answer.at):
                    continue
                if not is_forgiven(answer.at, aftermath, verdict):
                    verdict.accuse("undead", f"{queue}/{id_}: {show(run)}")


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
                verdict.accuse("token", f"{queue}/{id_}: {show(run)}, {show(after)}")


def _stale(story: Story, run: Run) -> bool:
    """Whether its process was frozen between taking the job and starting it, and lost it."""
    if run.start.until:
        return run.start.at >= run.start.until
    return any(
        freeze.at <= run.start.at <= freeze.until + WAKING
        for freeze in story.freezes.get(run.start.pid, ())
        if freeze.until - freeze.at >= LEASE_LEFT
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
            if replaced and not is_forgiven(answered, aftermath, verdict):
                verdict.accuse("stale", f"{'/'.join(key)}: {show(run)}")
