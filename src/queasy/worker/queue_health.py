"""Whether the jobs of a queue are given out: is it paused, and does any worker serve it?"""

from __future__ import annotations

from collections.abc import Collection

from queasy.operation import Operation
from queasy.store.commands import QueueCommands
from queasy.store.health import QueueHealth
from queasy.store.records import Counts
from queasy.worker.plan import Place
from queasy.worker.roster import ROWS_PER_CALL, check_queue_names
from queasy.worker_record import WorkerRecord

__all__ = ["queue_health"]


def queue_health(place: Place, queues: Collection[str]) -> Operation[tuple[QueueHealth, ...]]:
    """The health of these queues, and of each of their fail queues that has workers or due jobs, or
    is paused.
    """
    found: list[QueueHealth] = []
    for name in check_queue_names(queues):
        found.append((yield from _health_of(place.commands(name, fail=False))))
        fail = yield from _health_of(place.commands(name, fail=True))
        if fail.workers or fail.due or fail.paused:
            found.append(fail)
    return tuple(found)


def _health_of(commands: QueueCommands) -> Operation[QueueHealth]:
    name = commands.keys.name
    counts: Counts = yield commands.counts()
    workers = others = offset = 0
    while page := (yield commands.clients(offset, ROWS_PER_CALL)):
        alive = [row for row in page if row.expires_in > 0]
        serving = sum(WorkerRecord.read(row.worker) is not None for row in alive)
        workers, others = workers + serving, others + len(alive) - serving
        offset += ROWS_PER_CALL
    due = f"{counts.due} due job{'s' * (counts.due != 1)}"
    problem = ""
    if counts.paused:
        problem = (
            f"queue {name!r} is paused, with {due}: no worker gets jobs until `queue.resume()`"
        )
    elif counts.due and not workers and not others and not counts.waiters:
        problem = (
            f"queue {name!r} has {due} and no worker serves it: start one with "
            "`queasy worker`, or have one serve it with `queasy serve`"
        )
    return QueueHealth(
        name=name, workers=workers, due=counts.due, paused=counts.paused, problem=problem
    )
