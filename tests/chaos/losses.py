"""Whether an accepted job is lost: it came to no end, and nobody put another in its place."""

import math
from collections.abc import Iterable

from tests.chaos.history import Dispatching
from tests.chaos.story import Run, Story
from tests.chaos.verdict import Aftermath, Verdict, is_forgiven, show

__all__ = ["lost", "settled_so"]


def lost(story: Story, aftermath: Aftermath, verdict: Verdict) -> None:
    failed = {*aftermath.given_up}
    for n, ask in story.asked.items():
        word = story.word(n)
        must_run = word == "created" or (ask.updates and word in ("updated", "blocked"))
        if not must_run or n in failed:
            continue
        # Who was given up and brought back has to come to another end.
        since = max((one.at for one in story.requeued.get(n, ()) if one.word == "yes"), default=0.0)
        if n in story.given_up and story.given_up[n].at >= since:
            continue
        runs = [run for run in story.ran.get(n, ()) if run.start.at >= since]
        if any(run.end is not None and run.end.how == "done" for run in runs):
            continue
        if settled_so(story, runs, ("finished", "cancelled", "failed")):
            continue
        if _replaced(story, ask) or _cancel_after(story, ask):
            continue
        if not aftermath.durable and is_forgiven(story.answered_at(n), aftermath, verdict):
            continue
        how = ", ".join(map(show, runs)) or "never started"
        verdict.accuse("lost", f"{ask.queue}/{ask.id} n={n} ({word} {ask.does}): {how}")


def settled_so(story: Story, runs: Iterable[Run], words: tuple[str, ...]) -> bool:
    return any(
        (settled := story.settled.get((run.start.queue, run.start.id, run.start.token)))
        and settled.word in words
        for run in runs
    )


def _replaced(story: Story, ask: Dispatching) -> bool:
    """Whether another dispatch may have put its data in place of it."""
    gone = _gone_by(story, ask)
    return any(
        other.n != ask.n
        and other.updates
        # One that was created found nothing to replace.
        and story.word(other.n) in ("updated", "blocked", "unclear")
        and other.at <= gone
        and story.done_by(other.at, story.answers.get(other.n)) >= ask.at
        for other in story.by_id.get((ask.queue, ask.id), ())
    )


def _gone_by(story: Story, ask: Dispatching) -> float:
    """When there was nothing left of it: a dispatch asked for behind its answer was created."""
    answered = story.answered_at(ask.n)
    return min(
        (
            story.answered_at(other.n)
            for other in story.by_id.get((ask.queue, ask.id), ())
            if other.at >= answered and story.word(other.n) == "created"
        ),
        default=math.inf,
    )


def _cancel_after(story: Story, ask: Dispatching) -> bool:
    """Whether a cancel of its id may have come after it, and found it."""
    gone = _gone_by(story, ask)
    return any(
        (answer is None or answer.word in ("yes", "unclear"))
        and cancelling.at <= gone
        and story.done_by(cancelling.at, answer) >= ask.at
        for cancelling, answer in story.cancels.get((ask.queue, ask.id), ())
    )
