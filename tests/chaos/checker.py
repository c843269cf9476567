"""Reads a history and reports every broken promise, with evidence.

The checker does not use Queasy's internals: only requests, answers, and the times of runs. Where
several orders of events are possible it assumes one that breaks no promise, so every violation it
reports did happen.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise

from tests.chaos.history import Event
from tests.chaos.losses import check_lost, has_outcome
from tests.chaos.outcomes import check_outcomes, check_overlong
from tests.chaos.timeline import Run, Timeline
from tests.chaos.verdict import PROMISES, FinalState, Verdict, is_excused, show
from tests.chaos.workload import BACKOFF

__all__ = ["PROMISES", "FinalState", "Verdict", "check"]

# A frozen process learns what happened meanwhile only after its first steps. This much time is
# allowed for them, in seconds.
RESUME_TIME = 1.0
# A worker's lease, 12.5 s, less the time between two heartbeats, 2 s: a process that is frozen for
# less than that keeps its leases.
LEASE_LEFT = 10.0
# The server counts in milliseconds.
RESOLUTION = 0.001


def check(events: Iterable[Event], final: FinalState) -> Verdict:
    """Check every promise, one after the other."""
    timeline = Timeline(events)
    verdict = Verdict()
    checks = (check_lost, _check_overlap, _check_scheduled, _check_retry_delay, _check_repeated,
              _check_fail_handlers, _check_cancelled, _check_tokens, _check_payloads,
              _check_stale_data, check_outcomes, check_overlong)  # fmt: skip
    for one in checks:
        one(timeline, final, verdict)
    verdict.violations["stuck"] += final.remaining
    verdict.violations["audit"] += final.audit
    verdict.violations["processes"] += final.processes
    return verdict


def _check_overlap(timeline: Timeline, final: FinalState, verdict: Verdict) -> None:
    for (queue, id_), runs in timeline.runs.items():
        for index, run in enumerate(runs):
            # The holder of a pull lease knows when the lease expires.
            end = min(run.last, run.start.until or run.last)
            for other in islice(runs, index + 1, None):
                if other.start.at >= end:
                    break
                resumed = _resumed_for(timeline, run, other)
                if resumed is not None and resumed <= RESUME_TIME:
                    verdict.resumed.append(resumed)
                    continue
                if is_excused(run.start.at, final, verdict):
                    continue
                verdict.add(
                    "overlap",
                    f"{queue}/{id_}: {show(run)} and {show(other)}, "
                    f"{(end - other.start.at) * 1000:.1f} ms",
                )


def _resumed_for(timeline: Timeline, run: Run, other: Run) -> float | None:
    """For how long a run continued after a freeze of its process that outlasted its lease.

    None if such a freeze does not explain that the other run started.
    """
    if run.start.until:
        return None  # a pull consumer knows when its lease expires
    for freeze in timeline.freezes.get(run.start.pid, ()):
        expired = freeze.at + LEASE_LEFT
        thawed = freeze.until
        if run.start.at <= thawed and expired <= other.start.at <= thawed + RESUME_TIME:
            return max(0.0, run.last - thawed)
    return None


def _check_scheduled(timeline: Timeline, final: FinalState, verdict: Verdict) -> None:
    for n, runs in timeline.runs_of.items():
        request = timeline.dispatches.get(n)
        if request is None or not request.due:
            continue
        for run in runs:
            if run.start.at < request.due - RESOLUTION:
                early = (request.due - run.start.at) * 1000
                verdict.add("early", f"{request.queue}/{request.id}: {show(run)} {early:.1f} ms")


def _check_retry_delay(timeline: Timeline, final: FinalState, verdict: Verdict) -> None:
    for (queue, id_), runs in timeline.runs.items():
        if len(timeline.by_id.get((queue, id_), ())) > 1:
            continue  # another dispatch may have changed its time
        for run, following in pairwise(runs):
            settled = timeline.settled.get((queue, id_, run.start.token))
            if settled is None:
                continue
            if settled.outcome == "retried" and run.end is not None:
                delay = run.end.after
            elif settled.outcome == "timed_out":
                delay = BACKOFF
            else:
                continue
            early = run.last + delay - following.start.at
            if early > RESOLUTION and not is_excused(run.last, final, verdict):
                verdict.add(
                    "early", f"{queue}/{id_}: retry {show(following)} {early * 1000:.1f} ms"
                )


def _check_repeated(timeline: Timeline, final: FinalState, verdict: Verdict) -> None:
    for runs in timeline.runs_of.values():
        for run in runs:
            settled = timeline.settled.get((run.start.queue, run.start.id, run.start.token))
            if settled is None or settled.outcome != "finished":
                continue
            later = [other for other in runs if other.start.token > run.start.token]
            if later and not is_excused(settled.at or run.last, final, verdict):
                verdict.add(
                    "repeated", f"{run.start.queue}/{run.start.id}: {show(run)}, {show(later[0])}"
                )


def _check_fail_handlers(timeline: Timeline, final: FinalState, verdict: Verdict) -> None:
    failed = dict.fromkeys(final.failed)
    for n, runs in timeline.runs_of.items():
        excused = any(_is_within(final.excused, run.last) for run in runs)
        if not excused and has_outcome(timeline, runs, ("failed",)):
            failed.setdefault(n)
    for n in failed:
        if n not in timeline.fail_handlers:
            request = timeline.dispatches.get(n)
            where = f"{request.queue}/{request.id} n={n}" if request else f"n={n}"
            verdict.add("no fail handler", where)


def _is_within(intervals: Sequence[tuple[float, float]], at: float) -> bool:
    return any(start <= at <= end for start, end in intervals)


def _check_cancelled(timeline: Timeline, final: FinalState, verdict: Verdict) -> None:
    for (queue, id_), cancels in timeline.cancels.items():
        requests = timeline.by_id.get((queue, id_), ())
        if len(requests) != 1:
            continue  # the id may have been dispatched again after the cancel
        (request,) = requests
        for cancelling, answer in cancels:
            if answer is None or answer.answer != "yes" or request.n in timeline.requeues:
                continue
            if timeline.answered_at(request.n) > answer.at:
                continue  # the server may have executed the dispatch after the cancel
            for run in timeline.runs.get((queue, id_), ()):
                if run.start.at <= answer.at:
                    continue
                if cancelling.running and _may_be_leased_by(timeline, run, answer.at):
                    continue
                if not is_excused(answer.at, final, verdict):
                    verdict.add("cancelled", f"{queue}/{id_}: {show(run)}")


def _may_be_leased_by(timeline: Timeline, run: Run, at: float) -> bool:
    """Whether the lease of a run may have begun before that time.

    A run starts a moment after its lease, and a cancel of an active job is answered with yes.
    """
    earlier = [other for other in timeline.runs[run.start.queue, run.start.id]
               if other.start.token < run.start.token]  # fmt: skip
    return not any(other.start.at > at for other in earlier)


def _check_tokens(timeline: Timeline, final: FinalState, verdict: Verdict) -> None:
    for (queue, id_), runs in timeline.runs.items():
        for run, following in pairwise(runs):
            grew = following.start.token > run.start.token
            if not grew and not _has_expired_lease(timeline, following):
                verdict.add("token", f"{queue}/{id_}: {show(run)}, {show(following)}")


def _has_expired_lease(timeline: Timeline, run: Run) -> bool:
    """Whether the lease expired before the run started, because its process was frozen."""
    if run.start.until:
        return run.start.at >= run.start.until
    return any(
        freeze.at <= run.start.at <= freeze.until + RESUME_TIME
        for freeze in timeline.freezes.get(run.start.pid, ())
        if freeze.until - freeze.at >= LEASE_LEFT
    )


def _check_payloads(timeline: Timeline, final: FinalState, verdict: Verdict) -> None:
    for n, runs in timeline.runs_of.items():
        request = timeline.dispatches.get(n)
        for start in (run.start for run in runs):
            if request is None or (request.queue, request.id) != (start.queue, start.id):
                why = "it was never dispatched"
            elif timeline.answer(n) == "refused":
                why = "its dispatch was refused"
            elif start.at < request.at:
                why = "it ran before its dispatch"
            else:
                continue
            verdict.add("unknown payload", f"{start.queue}/{start.id} n={n}: {why}")


def _check_stale_data(timeline: Timeline, final: FinalState, verdict: Verdict) -> None:
    """A dispatch that was answered with `updated` found a waiting job. Runs that start after that
    answer have its data, or that of a later dispatch.
    """
    for key, runs in timeline.runs.items():
        updates = sorted(
            (timeline.answered_at(request.n), request.at)
            for request in timeline.by_id.get(key, ())
            if request.updates and timeline.answer(request.n) == "updated"
        )
        for run in runs:
            last_update = bisect_left(updates, (run.start.at, 0.0)) - 1
            if last_update < 0:
                continue
            answered, requested = updates[last_update]
            is_older = timeline.answered_at(run.start.n) < requested
            is_stale = is_older and not _has_expired_lease(timeline, run)
            if is_stale and not is_excused(answered, final, verdict):
                verdict.add("stale data", f"{'/'.join(key)}: {show(run)}")
