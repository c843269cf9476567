"""Checks that runs ended in time, and with an outcome that they had a reason for."""

from tests.chaos.history import Fault
from tests.chaos.timeline import Run, Timeline
from tests.chaos.verdict import FinalState, Verdict, show
from tests.chaos.workload import FAILING, LONG, LONG_TIMEOUT, TIMEOUT

__all__ = ["check_outcomes", "check_overlong"]

# A run that ignores its timeout ends with its process, after the other runs of that process have
# ended. These have 20 s of grace; the rest is for a slow machine.
OVERTIME = 30.0
# Several cuts of this length, in seconds, one soon after the other, may freeze a process.
LONG_CUT = 2.0


def check_outcomes(timeline: Timeline, final: FinalState, verdict: Verdict) -> None:
    """Accepted outcomes that no handler returned and no caller requested."""
    failed = {*final.failed, *timeline.fail_handlers}
    for key, runs in timeline.runs.items():
        for run in runs:
            settled = timeline.settled.get((*key, run.start.token))
            if settled is None:
                continue
            done = run.end is not None and run.end.how == "done"
            if settled.outcome == "finished" and not done:
                verdict.add("wrong outcome", f"{'/'.join(key)}: {show(run)} is finished")
            elif settled.outcome == "cancelled" and key not in timeline.cancels:
                verdict.add("wrong outcome", f"{'/'.join(key)}: {show(run)} is cancelled")
            elif settled.outcome == "failed":
                failed.add(run.start.n)
    for n in failed:
        request = timeline.dispatches.get(n)
        if request is not None and request.behaviour not in FAILING:
            where = f"{request.queue}/{request.id} n={n}"
            verdict.add("wrong outcome", f"{where} ({request.behaviour}) is failed")


def check_overlong(timeline: Timeline, final: FinalState, verdict: Verdict) -> None:
    for (queue, id_), runs in timeline.runs.items():
        limit = (LONG_TIMEOUT if queue in LONG else TIMEOUT) + OVERTIME
        for run in runs:
            if run.start.until or run.last - run.start.at <= limit:
                continue
            if not any(_delays_end(fault, run) for fault in timeline.faults):
                verdict.add("overlong", f"{queue}/{id_}: {show(run)}")


def _delays_end(fault: Fault, run: Run) -> bool:
    """Whether the fault froze the process of the run, or the supervisor that would end it; or made
    the supervisor freeze the process, because it did not reach the server.
    """
    during_run = fault.at <= run.last and fault.until >= run.start.at
    frozen = fault.kind.startswith("freeze") and run.start.pid in fault.pids
    kind = fault.kind.partition(":")[0]
    cut_off = kind in ("path", "flap") and fault.until - fault.at > LONG_CUT
    return during_run and (frozen or cut_off or fault.kind == "freeze supervisor")
