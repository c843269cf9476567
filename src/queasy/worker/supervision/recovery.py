"""What becomes of the jobs of a child that is gone.

Runs past their deadline timed out. If the child died, whatever had started is stalled, and a
suspect. All else was only interrupted and is released: that is no attempt.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from queasy.errors import QueasyError
from queasy.job import JobError
from queasy.operation import run_operation
from queasy.operations import evict
from queasy.outcomes import TimedOut
from queasy.store.records import Ending
from queasy.store.store import AsyncStore
from queasy.worker.events import event
from queasy.worker.liveness.inflight_table import Entry
from queasy.worker.supervision.messages import Planned

__all__ = ["bury"]

# After this the server has found out by itself.
PATIENCE = 60.0
KILLED = JobError("Timeout", "ran longer than it may, and was killed", "timeout")


async def bury(
    store: AsyncStore,
    planned: Planned,
    client: str,
    entries: Sequence[Entry],
    *,
    died: bool,
    cancelled: frozenset[tuple[int, str, int]],
    overdue_at: float | None,
    patience: float | None = None,
) -> int:
    """Returns the jobs of a client, in every queue; how many there were."""
    counts = await asyncio.gather(
        *(
            _insist(patience or PATIENCE, _return_jobs, store, planned, client, index,
                    [entry for entry in entries if entry.queue == index],
                    died, cancelled, overdue_at)
            for index in range(len(planned.queues))
        )
    )  # fmt: skip
    return sum(counts)


async def _return_jobs(
    store: AsyncStore,
    planned: Planned,
    client: str,
    index: int,
    started: list[Entry],
    died: bool,
    cancelled: frozenset[tuple[int, str, int]],
    overdue_at: float | None,
) -> int:
    name, fail = planned.queues[index]
    commands = planned.place.commands(name, fail=fail)
    # A run that was to be cancelled and timed out is cancelled: the server sees to that.
    overdue = [
        Ending(entry.id, entry.token, TimedOut(KILLED))
        for entry in started
        if overdue_at is not None
        and (entry.deadline <= overdue_at or (index, entry.id, entry.token) in cancelled)
    ]
    if overdue:
        await store.run(commands.settle(overdue))
    guilty = [entry.id for entry in started] if died else []
    ended = await run_operation(
        store, evict(commands, client, died=bool(guilty), started=guilty or None)
    )
    return len(overdue) + ended


async def _insist(
    patience: float, work: Callable[..., Coroutine[Any, Any, int]], *args: Any
) -> int:
    """Until the server has heard it, or has found out by itself."""
    give_up_at = time.monotonic() + patience
    while True:
        try:
            return await work(*args)
        except QueasyError as problem:
            if time.monotonic() > give_up_at:
                why = "the server did not answer; they come back when the lease runs out"
                event("jobs not returned", logging.WARNING, error=problem, why=why)
                return 0
            await asyncio.sleep(random.uniform(0.1, 1.0))
