"""Whether runs ended when and as they had to."""

from tests.chaos.history import Fault
from tests.chaos.load import FATAL, LONG, LONG_TIMEOUT, TIMEOUT
from tests.chaos.story import Run, Story
from tests.chaos.verdict import Aftermath, Verdict, show

__all__ = ["overlong", "unearned"]

# A run that does not heed its timeout ends with its process, when the runs beside it have ended:
# they have 20 s of grace; and a machine may be slow.
OVERTIME = 30.0


def unearned(story: Story, aftermath: Aftermath, verdict: Verdict) -> None:
    """Ends that the server accepted, though nobody had come to them or asked for them."""
    given_up = {*aftermath.given_up, *story.given_up}
    for key, runs in story.runs.items():
        for run in runs:
            settled = story.settled.get((*key, run.start.token))
            if settled is None:
                continue
            done = run.end is not None and run.end.how == "done"
            if settled.word == "finished" and not done:
                verdict.accuse("unearned", f"{'/'.join(key)}: {show(run)} is finished")
            elif settled.word == "cancelled" and key not in story.cancels:
                verdict.accuse("unearned", f"{'/'.join(key)}: {show(run)} is cancelled")
            elif settled.word == "failed":
                given_up.add(run.start.n)
    for n in given_up:
        ask = story.asked.get(n)
        if ask is not None and ask.does not in FATAL:
            verdict.accuse("unearned", f"{ask.queue}/{ask.id} n={n} ({ask.does}) is given up")


def overlong(story: Story, aftermath: Aftermath, verdict: Verdict) -> None:
    for (queue, id_), runs in story.runs.items():
        limit = (LONG_TIMEOUT if queue in LONG else TIMEOUT) + OVERTIME
        for run in runs:
            if run.start.until or run.last - run.start.at <= limit:
                continue
            if not any(_holds_up(fault, run) for fault in story.faults):
                verdict.accuse("overlong", f"{queue}/{id_}: {show(run)}")


def _holds_up(fault: Fault, run: Run) -> bool:
    """Whether it was stopped, or those were who end it."""
    at_that_time = fault.at <= run.last and fault.until >= run.start.at
    stopped = fault.kind.startswith("freeze") and run.start.pid in fault.pids
    return at_that_time and (stopped or fault.kind == "freeze supervisor")
