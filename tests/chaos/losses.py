"""Checks that no accepted job is lost: it ended, or another dispatch or a cancel replaced it."""

import math
from collections.abc import Iterable

from tests.chaos.history import Dispatching
from tests.chaos.timeline import Run, Timeline
from tests.chaos.verdict import FinalState, Verdict, is_excused, show

__all__ = ["check_lost", "has_outcome"]


def check_lost(timeline: Timeline, final: FinalState, verdict: Verdict) -> None:
    failed = {*final.failed}
    for n, request in timeline.dispatches.items():
        answer = timeline.answer(n)
        must_run = answer == "created" or (request.updates and answer in ("updated", "blocked"))
        if not must_run or n in failed or _has_ended(timeline, n):
            continue
        if _may_be_replaced(timeline, request) or _may_be_cancelled(timeline, request):
            continue
        if not final.durable and is_excused(timeline.answered_at(n), final, verdict):
            continue
        how = ", ".join(map(show, _runs_since_requeue(timeline, n))) or "never started"
        verdict.add(
            "lost", f"{request.queue}/{request.id} n={n} ({answer} {request.behaviour}): {how}"
        )


def _has_ended(timeline: Timeline, n: int) -> bool:
    """Whether a job finished, failed or was cancelled; after its last requeue, if there was one."""
    fail_handler = timeline.fail_handlers.get(n)
    if fail_handler is not None and fail_handler.at >= timeline.last_requeue(n):
        return True
    runs = _runs_since_requeue(timeline, n)
    if any(run.end is not None and run.end.how == "done" for run in runs):
        return True
    return has_outcome(timeline, runs, ("finished", "cancelled", "failed"))


def _runs_since_requeue(timeline: Timeline, n: int) -> list[Run]:
    since = timeline.last_requeue(n)
    return [run for run in timeline.runs_of.get(n, ()) if run.start.at >= since]


def has_outcome(timeline: Timeline, runs: Iterable[Run], outcomes: tuple[str, ...]) -> bool:
    """Whether the server accepted one of these outcomes for one of these runs."""
    return any(
        (settled := timeline.settled.get((run.start.queue, run.start.id, run.start.token)))
        and settled.outcome in outcomes
        for run in runs
    )


def _may_be_replaced(timeline: Timeline, request: Dispatching) -> bool:
    """Whether another dispatch may have replaced its data."""
    gone = _gone_by(timeline, request)
    return any(
        other.n != request.n
        and other.updates
        # One that was answered with `created` found nothing to replace.
        and timeline.answer(other.n) in ("updated", "blocked", "unclear")
        and other.at <= gone
        and timeline.executed_by(other.at, timeline.answers.get(other.n)) >= request.at
        for other in timeline.by_id.get((request.queue, request.id), ())
    )


def _gone_by(timeline: Timeline, request: Dispatching) -> float:
    """When the job no longer existed: a later dispatch of its id was answered with `created`."""
    answered = timeline.answered_at(request.n)
    return min(
        (
            timeline.answered_at(other.n)
            for other in timeline.by_id.get((request.queue, request.id), ())
            if other.at >= answered and timeline.answer(other.n) == "created"
        ),
        default=math.inf,
    )


def _may_be_cancelled(timeline: Timeline, request: Dispatching) -> bool:
    """Whether the server may have executed a cancel of its id after it."""
    gone = _gone_by(timeline, request)
    return any(
        (answer is None or answer.answer in ("yes", "unclear"))
        and cancelling.at <= gone
        and timeline.executed_by(cancelling.at, answer) >= request.at
        for cancelling, answer in timeline.cancels.get((request.queue, request.id), ())
    )
