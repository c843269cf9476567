"""Returns jobs to their queues after the child that held them is gone.

If the supervisor killed the child for runs past their deadline, those runs count as timed out. If
the child crashed, or was killed for its memory, because it was stopped, or because one of its runs
blocked it and the supervisor does not know which, each job that had started and was not reported
becomes a suspect: it next runs with at most half as many others. If only one had started, it counts
as a stall. All other jobs are released, which does not count as an attempt.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence

import msgspec

from queasy.errors import QueasyError
from queasy.job import JobError
from queasy.operation import run_operation
from queasy.operations import evict, settle_all
from queasy.outcomes import Died, Outcome, TimedOut
from queasy.store.records import Ending
from queasy.store.store import AsyncStore
from queasy.worker.events import event
from queasy.worker.liveness.inflight_table import Entry
from queasy.worker.supervision.child_state import RunKey, run_key
from queasy.worker.supervision.messages import Planned

__all__ = ["GoneChild", "recover_jobs"]

# How much longer than a lease to retry, in seconds. By then the leases have run out, and a sweep
# returns the jobs.
RETRY_FOR = 47.0
# The same for a child that held no jobs: the server removes such a client when its lease ends.
RETRY_FOR_IF_NOTHING_HELD = 1.0
KILLED = JobError("Timeout", "ran longer than it may, and was killed", "timeout")


class GoneChild(msgspec.Struct, frozen=True, kw_only=True):
    """What the supervisor knows about a child that is gone."""

    client: str
    planned: Planned
    runs: Sequence[Entry]
    """The runs that had started and were not reported."""
    runs_are_suspect: bool
    """Whether one of these runs may have caused the end of the child."""
    timed_out: frozenset[RunKey]
    """The runs for which the supervisor killed the child, because they did not end."""
    lease: float
    """How long its leases last at most."""
    held: frozenset[int]
    """The queues of which the child may have held jobs."""


async def recover_jobs(store: AsyncStore, child: GoneChild) -> int:
    """Put the child's jobs back into all its queues; return how many there were."""
    counts = await asyncio.gather(
        *(_recover_until_done(store, child, index) for index in range(len(child.planned.queues)))
    )
    return sum(counts)


async def _recover_until_done(store: AsyncStore, child: GoneChild, index: int) -> int:
    """Put the child's jobs back into one queue; return how many there were.

    Tries until the server answers, or until the leases have run out.
    """
    held = index in child.held
    retry_for = child.lease + RETRY_FOR if held else RETRY_FOR_IF_NOTHING_HELD
    give_up_at = time.monotonic() + retry_for
    while True:
        try:
            return await _recover(store, child, index)
        except QueasyError as problem:
            if time.monotonic() > give_up_at:
                if held:
                    why = "the server did not answer; they come back when the lease runs out"
                    event("jobs_not_returned", logging.WARNING, error=problem, why=why)
                return 0
            await asyncio.sleep(random.uniform(0.1, 1.0))


async def _recover(store: AsyncStore, child: GoneChild, index: int) -> int:
    """Put the child's jobs back into one queue, in one try; return how many there were."""
    name, fail = child.planned.queues[index]
    commands = child.planned.place.commands(name, fail=fail)
    endings = [
        Ending(entry.id, entry.token, outcome)
        for entry in child.runs
        if entry.queue == index and (outcome := _outcome(child, entry))
    ]
    ended = await run_operation(store, settle_all(commands, endings))
    return ended + await run_operation(store, evict(commands, child.client, died=False))


def _outcome(child: GoneChild, entry: Entry) -> Outcome | None:
    """What became of a run; None if its job is released. If its cancellation was requested, the
    server records that instead.
    """
    if run_key(entry) in child.timed_out:
        return TimedOut(KILLED)
    return Died(len(child.runs)) if child.runs_are_suspect else None
