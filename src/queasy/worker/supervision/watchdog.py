"""Decides what to do about a child whose run does not end, or whose process does not run.

`decide` is pure: it takes a snapshot of a child and returns actions. The supervisor carries them
out.

1. If the server has not confirmed the lease of a run until the cut-off, the process is frozen
   before another client can get the job. When all leases of its runs are confirmed, it is thawed.
2. If a run does not end after it was interrupted, its process is killed. Before that, the other
   jobs of the process have the grace time to end and be reported, unless the event loop is blocked.
3. If the event loop is blocked, runs whose deadline passes meanwhile may be waiting for it. Only
   the run that is on the loop is guilty, once its own deadline has passed. If it is not known which
   run that is, and there are several, the process is killed, and all of them are suspects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from queasy.worker.lease_times import DEFAULT_TIMES, LeaseTimes
from queasy.worker.liveness.inflight_table import Entry
from queasy.worker.supervision.child_state import ChildSnapshot, KillReason, run_key

__all__ = [
    "KILL_AFTER_GRACE",
    "Action",
    "DrainThenKill",
    "Freeze",
    "Kill",
    "Limits",
    "Retire",
    "Thaw",
    "decide",
    "outstays_stop",
    "overdue_runs",
]

# A run that was asked to end has this long to do so, in seconds.
INTERRUPT_TIMEOUT = 1.0
# If the thread that looks at a blocked event loop has not done so for this long, in seconds, a
# handler holds the GIL. It looks every half second.
LOOK_TIMEOUT = 1.5
# After the grace time of a stop, a child has this long to interrupt its runs and report them before
# it is killed, in seconds.
KILL_AFTER_GRACE = 10.0
# A child with more than this multiple of its memory limit is killed at once, without a drain.
FAR_TOO_MUCH_MEMORY = 1.5


class Limits(msgspec.Struct, frozen=True):
    """The limits that the supervisor's options set for a child."""

    grace: float
    """Seconds that other jobs of a child have to end when one of its runs does not."""
    max_memory: int | None = None
    """Bytes."""
    times: LeaseTimes = DEFAULT_TIMES


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """Kill the process now. `reason` and `runs` decide what becomes of its jobs.

    The other fields are for the log.
    """

    reason: KillReason
    runs: tuple[Entry, ...] = ()
    """The runs that do not end. Each is charged with a timeout, unless it was cancelled."""
    others: int | None = None
    """How many other runs end with them."""
    suspects: int | None = None
    """How many runs the process has, if it is not known which of them blocks it."""
    bytes: int | None = None

    @property
    def job(self) -> str | None:
        """The first of the runs that do not end."""
        return self.runs[0].id if self.runs else None

    @property
    def overdue(self) -> int | None:
        """How many runs do not end."""
        return len(self.runs) or None


class DrainThenKill(msgspec.Struct, frozen=True, kw_only=True):
    """Let the other jobs of the process end until `kill_by`, while another child starts."""

    job: str
    kill_by: float


class Retire(msgspec.Struct, frozen=True, kw_only=True):
    """Replace the process: drain it once another serves."""

    why: Literal["memory"]


class Freeze(msgspec.Struct, frozen=True, kw_only=True):
    """Stop the process, or stop it again: the server does not confirm its leases."""

    unconfirmed: float
    """For how many seconds the server has not confirmed a lease."""


class Thaw(msgspec.Struct, frozen=True):
    """Let a frozen process continue: the leases of all its runs are confirmed."""


Action = Freeze | Thaw | Kill | DrainThenKill | Retire


def decide(child: ChildSnapshot, limits: Limits) -> list[Action]:
    """The actions to take about a child now, in order. Nothing follows a kill.

    Nothing else is decided about a child that is frozen or being thawed: it had no time to act.
    """
    actions: list[Action] = []
    if child.killed:
        return actions
    if child.unconfirmed > limits.times.cut_off:
        return [Freeze(unconfirmed=child.unconfirmed)]
    if child.is_frozen:
        return [Thaw()]
    for action in (
        _about_overdue_runs(child, limits.grace)
        if child.runs
        else _about_reports(child, limits.times),
        _about_memory(child, limits.max_memory),
        _about_stopped(child, limits.times),
    ):
        if action is not None:
            actions.append(action)
        if isinstance(action, Kill):
            break
    return actions


def outstays_stop(child: ChildSnapshot, late: float) -> bool:
    """Whether to kill a child that should have ended `late` seconds ago."""
    cannot_end = child.is_frozen or child.is_blocked
    return late >= KILL_AFTER_GRACE or (late > INTERRUPT_TIMEOUT and cannot_end)


def _about_overdue_runs(child: ChildSnapshot, grace: float) -> Action | None:
    """Something runs: does a run not end, although its deadline has passed or it was cancelled?"""
    overdue = overdue_runs(child)
    if child.is_blocked:
        return _about_blocked_loop(child, overdue)
    if not overdue:
        return None
    if child.kill_by is None:
        return DrainThenKill(job=overdue[0].id, kill_by=child.now + grace)
    all_else_is_reported = child.held <= len(overdue)
    if all_else_is_reported or child.kill_by < child.now:
        return _kill_for(child, overdue)
    return None


def overdue_runs(child: ChildSnapshot) -> list[Entry]:
    """The runs that the worker asked to end, and that did not end within INTERRUPT_TIMEOUT."""
    return [entry for entry in _late_runs(child) if _due(child, entry) <= child.checked_until]


def _late_runs(child: ChildSnapshot) -> list[Entry]:
    """The runs that should have ended by now. Some may merely be waiting for the event loop."""
    return [entry for entry in child.entries if child.now > _due(child, entry) + INTERRUPT_TIMEOUT]


def _kill_for(child: ChildSnapshot, runs: Sequence[Entry]) -> Kill:
    return Kill(reason="overdue", runs=tuple(runs), others=len(child.entries) - len(runs))


def _about_blocked_loop(child: ChildSnapshot, overdue: list[Entry]) -> Kill | None:
    """The event loop is blocked, so that late runs cannot be asked to end: which of them is guilty?

    A late run is guilty if it was asked to end before the loop was blocked, or if it is on the
    loop. Any other late run may have returned, or may only need the loop to do so.
    """
    late, on_loop = _late_runs(child), child.on_loop
    if not late:
        return None
    looked_at = child.last_beat if on_loop is None else on_loop.seen
    if child.now - looked_at > LOOK_TIMEOUT:
        blocking = None  # no thread can look
    elif on_loop is None or child.now - on_loop.since <= INTERRUPT_TIMEOUT:
        return None  # several handlers may keep the loop busy in turns: look again
    else:
        blocking = on_loop.run
    guilty = [e for e in late if e in overdue or (e.queue, e.token) == blocking]
    if not guilty and blocking is None:
        # Kill for cancelled runs, if there are any: they are to end anyway, and are not charged.
        guilty = [entry for entry in late if run_key(entry) in child.cancels]
        if not guilty and len(child.entries) > 1:
            return Kill(reason="overdue", suspects=len(child.entries))
        guilty = guilty or late
    return _kill_for(child, guilty) if guilty else None


def _due(child: ChildSnapshot, entry: Entry) -> float:
    """When a run should end: at its deadline, or when it was asked to cancel."""
    return min(entry.deadline, child.cancels.get(run_key(entry), entry.deadline))


def _about_reports(child: ChildSnapshot, times: LeaseTimes) -> Action | None:
    """Nothing runs: does a blocked event loop keep outcomes from being reported?

    A run that has just ended may have blocked the loop. So the child has a lease's time to report,
    counted from when the supervisor first saw that nothing runs and the loop is blocked.
    """
    since = child.cannot_report_since
    if since is not None and child.now - since > times.lease:
        return Kill(reason="blocked")
    return None


def _about_memory(child: ChildSnapshot, limit: int | None) -> Action | None:
    if limit is None or child.memory <= limit:
        return None
    if child.memory > limit * FAR_TOO_MUCH_MEMORY:
        return Kill(reason="memory", bytes=child.memory)
    # A child that has just started is not replaced yet.
    return Retire(why="memory") if child.is_settled else None


def _about_stopped(child: ChildSnapshot, times: LeaseTimes) -> Action | None:
    """Did another program stop the process? It neither works nor ends, and its leases are kept."""
    if child.stopped_since is not None and child.now - child.stopped_since > times.lease:
        return Kill(reason="sigstop")
    return None
