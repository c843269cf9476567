"""What a supervisor looks for in a child: runs that do not end, a process that does not run."""

from __future__ import annotations

import logging
import time

from queasy.worker.events import event
from queasy.worker.liveness.inflight_table import Entry
from queasy.worker.plan import LEASE
from queasy.worker.supervision.child_process import ChildProcess
from queasy.worker.supervision.messages import Drain

__all__ = ["ASKED", "forget_cancels", "is_frozen", "look_at_runs", "look_for_life", "outgrew"]

# What was asked to end has this long to do so.
ASKED = 1.0
# An event loop that did not turn for this long does not turn.
FROZEN = 1.0
# Beyond this much of the memory a child may have it is not replaced any more, but killed.
TOO_MUCH = 1.5


def look_at_runs(child: ChildProcess, now: float, grace: float) -> None:
    """A run that was asked to end, and does not, ends with its process.

    The others in that process may end first, for `grace` seconds, and what has ended may be
    reported; unless the process is frozen.
    """
    if not child.table.runs:
        child.cancels.clear()
        look_whether_it_reports(child, now)
        return
    child.dumb_since = None
    entries = child.table.entries()
    forget_cancels(child, entries, now)
    overdue = [entry for entry in entries if now > _due(child, entry) + ASKED]
    if not overdue or child.killed:
        return
    fields = {"pid": child.pid, "client": child.client, "job": overdue[0].id}
    reported = child.planned is None or child.table.held(len(child.planned.queues)) <= len(overdue)
    if is_frozen(child) or (child.drain_by and (reported or child.drain_by < now)):
        others = len(entries) - len(overdue)
        event("killing", logging.WARNING, **fields, why="a run does not end", overdue=len(overdue),
              others=others)  # fmt: skip
        child.kill("overdue")
    elif not child.drain_by:
        event("draining", logging.WARNING, **fields, why="a run does not end")
        child.drain_by = now + grace
        if not child.ending:
            child.end(Drain())


def forget_cancels(child: ChildProcess, entries: list[Entry], now: float) -> None:
    """Of runs that have ended. Of one that has not begun the child is told again, if need be."""
    if child.cancels:
        running = {(entry.queue, entry.id, entry.token) for entry in entries}
        for run, at in list(child.cancels.items()):
            if run not in running and now - at > LEASE:
                del child.cancels[run]


def _due(child: ChildProcess, entry: Entry) -> float:
    """When it is to end: by its deadline, or because somebody asked to cancel it."""
    run = (entry.queue, entry.id, entry.token)
    return min(entry.deadline, child.cancels.get(run, entry.deadline))


def is_frozen(child: ChildProcess) -> bool:
    """Something runs, and the event loop does not turn."""
    return child.table.runs > 0 and time.monotonic() - child.table.last_beat > FROZEN


def look_whether_it_reports(child: ChildProcess, now: float) -> None:
    """Nothing runs, it holds jobs, and the event loop does not turn: they are never reported. But
    what ran until now may have held it up: it has a lease's time from its end.
    """
    table, planned = child.table, child.planned
    if now - table.last_beat <= FROZEN or not planned or not table.held(len(planned.queues)):
        child.dumb_since = None
    elif child.dumb_since is None:
        child.dumb_since = now
    elif now - child.dumb_since > LEASE and not child.killed:
        event("killing", logging.WARNING, pid=child.pid, client=child.client,
              why="its event loop is blocked, and nothing runs")  # fmt: skip
        child.kill("dumb")


def look_for_life(child: ChildProcess, now: float) -> None:
    """One that is stopped neither works nor ends, and its leases are kept for nothing."""
    if not child.is_stopped():
        child.stopped_since = None
    elif child.stopped_since is None:
        child.stopped_since = now
    elif now - child.stopped_since > LEASE and not child.killed:
        event("killing", logging.WARNING, pid=child.pid, client=child.client, why="frozen")
        child.kill("frozen")


def outgrew(child: ChildProcess, limit: int) -> bool:
    """Whether it has more memory than it may; one that has far too much is killed."""
    memory = child.memory()
    if memory > limit * TOO_MUCH and not child.killed:
        event("killing", logging.WARNING, pid=child.pid, client=child.client, why="memory",
              bytes=memory)  # fmt: skip
        child.kill("memory")
    return memory > limit
