"""Decides what to do about a child whose run does not end, or whose process does not run.

`decide` is pure: it takes a snapshot of a child and returns actions. The supervisor carries them
out.

1. If the server has not confirmed the lease of a run for CUT_OFF seconds, the process is frozen
   before another client can get the job. When all leases of its runs are confirmed, it is thawed.
2. If a run does not end after it was interrupted, its process is killed. Before that, the other
   jobs of the process have the grace time to end and be reported, unless the event loop is blocked.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from queasy.worker.liveness.inflight_table import Entry
from queasy.worker.plan import CUT_OFF, LEASE
from queasy.worker.supervision.child_state import ChildSnapshot, KillReason

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
]

# A run that was interrupted has this long to end, in seconds.
INTERRUPT_TIMEOUT = 1.0
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


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """Kill the process now; the other fields are for the log."""

    reason: KillReason
    job: str | None = None
    overdue: int | None = None
    """How many runs do not end."""
    others: int | None = None
    """How many other runs end with them."""
    bytes: int | None = None


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
    if child.unconfirmed > CUT_OFF:
        return [Freeze(unconfirmed=child.unconfirmed)]
    if child.is_frozen:
        return [Thaw()]
    for action in (
        _about_overdue_runs(child, limits.grace) if child.runs else _about_reports(child),
        _about_memory(child, limits.max_memory),
        _about_stopped(child),
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
    """Something runs: is a run past its deadline, or past its cancellation?"""
    now = child.now
    overdue = [entry for entry in child.entries if now > _due(child, entry) + INTERRUPT_TIMEOUT]
    if not overdue:
        return None
    job = overdue[0].id
    all_else_is_reported = child.held <= len(overdue)
    time_is_up = child.kill_by is not None and (all_else_is_reported or child.kill_by < now)
    if child.is_blocked or time_is_up:
        others = len(child.entries) - len(overdue)
        return Kill(reason="overdue", job=job, overdue=len(overdue), others=others)
    if child.kill_by is None:
        return DrainThenKill(job=job, kill_by=now + grace)
    return None


def _due(child: ChildSnapshot, entry: Entry) -> float:
    """When a run should end: at its deadline, or when it was asked to cancel."""
    run = (entry.queue, entry.id, entry.token)
    return min(entry.deadline, child.cancels.get(run, entry.deadline))


def _about_reports(child: ChildSnapshot) -> Action | None:
    """Nothing runs: does a blocked event loop keep outcomes from being reported?

    A run that has just ended may have blocked the loop. So the child has LEASE seconds to report,
    counted from when the supervisor first saw that nothing runs and the loop is blocked.
    """
    if child.cannot_report_since is not None and child.now - child.cannot_report_since > LEASE:
        return Kill(reason="blocked")
    return None


def _about_memory(child: ChildSnapshot, limit: int | None) -> Action | None:
    if limit is None or child.memory <= limit:
        return None
    if child.memory > limit * FAR_TOO_MUCH_MEMORY:
        return Kill(reason="memory", bytes=child.memory)
    # A child that has just started is not replaced yet.
    return Retire(why="memory") if child.is_settled else None


def _about_stopped(child: ChildSnapshot) -> Action | None:
    """Did another program stop it? It neither works nor ends, while its leases are kept alive."""
    if child.stopped_since is not None and child.now - child.stopped_since > LEASE:
        return Kill(reason="sigstop")
    return None
