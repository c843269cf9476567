"""What the jobs of a crash run wrote, and what follows from it: recovery, loss, second runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise

JOB_SECONDS = 1.0  # what one run of a job takes; `SECONDS` in peers/crash_kit.py


@dataclass
class Run:
    """One run of a job, as the job itself wrote it down."""

    job: str
    pid: int
    started: float
    ended: float | None = None


@dataclass(frozen=True)
class Outcome:
    """The measures of one round. Times are seconds after the kill."""

    interrupted: int  # jobs that were running when their process was killed
    first: float | None  # until the first of them started again; None: not within the window
    recovery: float | None  # until the last of them started again; None: not within the window
    unfinished: int  # jobs that never ended within the window
    gone: int  # unfinished jobs that are not stored on the server any more
    overlapped: int  # jobs that ran twice at the same time
    repeated: int  # jobs that ended twice


def parse(text: str, jobs: Collection[str]) -> list[Run]:
    """The runs of these jobs. A last line that is not complete yet is ignored."""
    runs: list[Run] = []
    for line in text.splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        what, job, pid, at = line.split()
        if job not in jobs:
            continue
        if what == "start":
            runs.append(Run(job, int(pid), float(at)))
        else:
            _open_run(runs, job, int(pid)).ended = float(at)
    return runs


def _open_run(runs: list[Run], job: str, pid: int) -> Run:
    for run in reversed(runs):
        if run.job == job and run.pid == pid and run.ended is None:
            return run
    raise ValueError(f"expected a start of job {job} in process {pid} before its end")


def running(runs: Iterable[Run]) -> list[Run]:
    """The runs that have not ended."""
    return [run for run in runs if run.ended is None]


def finished(runs: Iterable[Run]) -> set[str]:
    """The jobs that have ended at least once."""
    return {run.job for run in runs if run.ended is not None}


def measure(
    runs: list[Run],
    jobs: Collection[str],
    killed: Collection[int],
    at: float,
    kept: Collection[str],
) -> Outcome:
    """The outcome of a round in which the processes `killed` died at the time `at`.

    `kept` are the jobs that the server still stores when the window ends.
    """
    interrupted = {run.job for run in running(runs) if run.pid in killed}
    again = [
        min((run.started for run in runs if run.job == job and _follows(run, killed)), default=None)
        for job in interrupted
    ]
    returned = [started - at for started in again if started is not None]
    unfinished = set(jobs) - finished(runs)
    return Outcome(
        interrupted=len(interrupted),
        first=min(returned, default=None),
        recovery=max(returned, default=0.0) if len(returned) == len(again) else None,
        unfinished=len(unfinished),
        gone=len(unfinished - set(kept)),
        overlapped=sum(_overlaps(runs, job, killed, at) for job in jobs),
        repeated=sum(
            sum(run.job == job and run.ended is not None for run in runs) > 1 for job in jobs
        ),
    )


def _follows(run: Run, killed: Collection[int]) -> bool:
    """Whether a run started after the kill: the processes that were killed start nothing more."""
    return run.pid not in killed


def _overlaps(runs: list[Run], job: str, killed: Collection[int], at: float) -> bool:
    """Whether a run of the job started before the run before it was over."""
    spans = sorted((run.started, _over(run, killed, at)) for run in runs if run.job == job)
    return any(later < until for (_, until), (later, _) in pairwise(spans))


def _over(run: Run, killed: Collection[int], at: float) -> float:
    if run.ended is not None:
        return run.ended
    # A process that was not killed here, and wrote no end, ended within the job's own time.
    return at if run.pid in killed else run.started + JOB_SECONDS
