"""Gives back jobs that a child has taken and cannot begin, because a handler blocks its event loop.

The child does not notice this, and may continue at any moment. Each step is safe whatever the child
does:

1. The supervisor reads from the server which leases the child has.
2. It writes the highest of their tokens into the child's table. From then on the child begins none
   of these jobs: it enters a run into the table first, and then compares the token.
3. It waits until both processes must see what the other has written, and reads the table: the runs
   in it have begun, or have ended and are not reported yet.
4. It releases the other leases by their tokens. The server refuses a token that is out of date.
5. It records that the server has answered. A child that refuses to begin such a job compares its
   leases with those on the server. If the answer was recorded before that, the child drops the jobs
   that were given back, and ignores the token from step 2 from then on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from queasy.errors import QueasyError
from queasy.operation import run_operation
from queasy.operations import leases_of
from queasy.outcomes import Release
from queasy.store.coalescing import CHUNK_JOBS
from queasy.store.records import Ending
from queasy.store.store import AsyncStore
from queasy.worker.events import event
from queasy.worker.liveness.heartbeat import BUSY_LOOP_BLOCKED
from queasy.worker.supervision.child_process import ChildProcess

__all__ = ["GiveBack"]

# Long enough for a number to travel from one processor to another, in seconds.
VISIBLE_AFTER = 0.05


class GiveBack:
    """Watches the children of one supervisor. `run_task` starts a coroutine as a task."""

    def __init__(
        self,
        store: AsyncStore,
        run_task: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._store = store
        self._run_task = run_task
        self._done: dict[str, float] = {}
        """When the event loop of each child had last turned before its jobs were given back."""

    def observe(self, child: ChildProcess, now: float) -> None:
        """Gives back the jobs of a child if it is blocked, once for each time it is blocked."""
        table, state, turned_at = child.table, child.state, child.table.loop_turned_at
        planned = state.planned
        if planned is None or state.is_killed or state.frozen_at is not None:
            return
        if now - max(turned_at, state.thawed_at) < BUSY_LOOP_BLOCKED:
            return
        runs, held = table.run_count, table.held_total(len(planned.queues))
        if runs and held > runs and self._done.get(child.client) != turned_at:
            self._done[child.client] = turned_at
            self._run_task(self._give_back(child))

    def forget(self, child: ChildProcess) -> None:
        """The child is gone."""
        self._done.pop(child.client, None)

    async def _give_back(self, child: ChildProcess) -> None:
        planned = child.state.planned
        assert planned is not None
        queues = [index for index in range(len(planned.queues)) if child.table.held_of(index)]
        try:
            counts = await asyncio.gather(*(self._of_queue(child, index) for index in queues))
        except QueasyError as problem:
            event("jobs_not_given_back", logging.WARNING, pid=child.pid, client=child.client,
                  error=problem)  # fmt: skip
            self._done.pop(child.client, None)  # the next round of the watchdog tries again
            return
        if given_back := sum(counts):
            event("jobs_given_back", logging.WARNING, pid=child.pid, client=child.client,
                  jobs=given_back)  # fmt: skip

    async def _of_queue(self, child: ChildProcess, index: int) -> int:
        """Gives back the jobs of one queue; returns how many."""
        assert child.state.planned is not None
        name, fail = child.state.planned.queues[index]
        commands = child.state.planned.place.commands(name, fail=fail)
        leases = await run_operation(self._store, leases_of(commands, child.client))
        if not leases or child.state.is_killed:
            return 0
        child.table.revoke(index, max(token for _, token in leases))
        await asyncio.sleep(VISIBLE_AFTER)
        if child.state.is_killed:  # its table may be closed; whatever it holds is recovered
            return 0
        begun = child.table.begun(index)
        endings = [Ending(id_, token, Release()) for id_, token in leases if token not in begun]
        given_back = 0
        for start in range(0, len(endings), CHUNK_JOBS):
            words = await self._store.run(commands.settle(endings[start : start + CHUNK_JOBS]))
            given_back += words.count("released")
        if not child.state.is_killed:
            child.table.note_given_back(index)
        return given_back
