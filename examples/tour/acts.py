"""The acts of the tour: which jobs it dispatches, and what it does to the workers."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import time
from asyncio.subprocess import Process
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from queasy import Dispatch, Queue
from tour.app import (
    client,
    emails,
    errands,
    exports,
    imports,
    inventory,
    payments,
    reminders,
    thumbnails,
    webhooks,
)
from tour.journal import Entry, Journal

QUICK = 20_000
PAYMENTS, DECLINED = 200, 20
BELOW, PRIMES = 20_000, 2_262
VERSIONS = 500
POLL = 0.05


class WorkersEnded(Exception):
    """The supervisor ended during the tour."""


@dataclass
class Tour:
    """What the tour dispatched. The promises compare it with the journal and the server."""

    supervisor: Process
    processes: int
    journal: Journal = field(default_factory=Journal)
    dispatched: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Ids of the jobs, by queue."""
    due: dict[str, float] = field(default_factory=dict[str, float])
    """The earliest time at which each reminder may run."""
    victim: int = 0
    killed_at: float = 0.0

    async def dispatch(self, queue: Queue, jobs: Iterable[dict[str, Any] | Dispatch]) -> None:
        put = await queue.dispatch_many(jobs)
        self.dispatched[queue.name] |= {one.id for one in put}

    async def until(self, condition: Callable[[], bool | Awaitable[bool]]) -> None:
        """Wait for a condition; raise WorkersEnded if the workers have ended."""
        while True:
            met = condition()
            if await met if inspect.isawaitable(met) else met:
                return
            if self.supervisor.returncode is not None:
                raise WorkersEnded(f"the supervisor exited with {self.supervisor.returncode}")
            await asyncio.sleep(POLL)

    async def over(self, *queues: Queue) -> None:
        """Wait until these queues and their fail queues are empty."""
        for queue in queues:
            for each in (queue, queue.fail_queue):
                await self.until(lambda each=each: idle(each))

    async def started(self) -> None:
        async def all_there() -> bool:
            return len(await client.workers()) == self.processes

        await self.until(all_there)

    async def noted(self, queue: Queue, event: str) -> None:
        await self.until(lambda: bool(self.journal.entries(queue.name, event)))


async def idle(queue: Queue) -> bool:
    counts = await queue.counts()
    return not counts.waiting + counts.active + counts.blocked


async def bulk(tour: Tour) -> None:
    await tour.dispatch(webhooks, ({"event": n} for n in range(200)))
    cards = ["expired"] * DECLINED + ["valid"] * (PAYMENTS - DECLINED)
    await tour.dispatch(payments, ({"card": card} for card in cards))
    await tour.dispatch(thumbnails, ({"below": BELOW} for _ in range(40)))
    await tour.dispatch(emails, ({"to": f"{n}@example.org"} for n in range(QUICK)))
    await tour.over(emails, thumbnails, webhooks, payments)


async def one_id(tour: Tour) -> None:
    for version in range(1, VERSIONS + 1):
        await tour.dispatch(inventory, [Dispatch({"version": version}, id="shop")])
        await asyncio.sleep(0.003)
    await tour.over(inventory)


async def on_time(tour: Tour) -> None:
    now = time.time()
    tour.due = {f"reminder-{n}": now + 0.5 + n / 20 for n in range(40)}
    await tour.dispatch(
        reminders, [Dispatch({"text": "?"}, id=id_, run_at=at) for id_, at in tour.due.items()]
    )
    # Dispatching the same id again updates the job: here its data and its time.
    await tour.dispatch(reminders, [Dispatch({"text": "old"}, id="lunch", delay=3600)])
    tour.due["lunch"] = now + 2
    await tour.dispatch(
        reminders, [Dispatch({"text": "new"}, id="lunch", run_at=tour.due["lunch"])]
    )
    await tour.over(reminders)


async def cancel(tour: Tour) -> None:
    await tour.dispatch(exports, [Dispatch({"year": 2026}, id="year")])
    await tour.noted(exports, "start")
    await asyncio.sleep(0.5)
    await exports.cancel("year", running=True)
    await tour.over(exports)


async def hang(tour: Tour) -> None:
    await tour.dispatch(imports, [Dispatch({"file": "prices.csv"}, id="prices")])
    await tour.over(imports)


async def kill(tour: Tour) -> None:
    await tour.dispatch(errands, ({"errand": n} for n in range(500)))

    def killed_a_busy_worker() -> bool:
        """Kill at once: a run takes 100 ms, so one that began less than 50 ms ago still runs."""
        entries = tour.journal.entries(errands.name)
        fresh = [entry for entry in unfinished(entries) if time.time() - entry.at < 0.05]
        if len(entries) < 200 or not fresh:
            return False
        tour.victim = Counter(entry.pid for entry in fresh).most_common(1)[0][0]
        tour.killed_at = time.time()
        os.kill(tour.victim, signal.SIGKILL)
        return True

    await tour.until(killed_a_busy_worker)
    await tour.over(errands)


def unfinished(entries: Iterable[Entry]) -> list[Entry]:
    """Runs that have a start in the journal, but no end."""
    runs: dict[tuple[str, int], Entry] = {}
    for entry in entries:
        if entry.event == "start":
            runs[entry.id, entry.pid] = entry
        else:
            runs.pop((entry.id, entry.pid), None)
    return list(runs.values())


ACTS: dict[str, Callable[[Tour], Awaitable[None]]] = {
    f"{QUICK:,} quick jobs; others compute, are retried, or fail": bulk,
    f"One id, dispatched {VERSIONS} times while it runs": one_id,
    "Scheduled jobs, and one that is updated": on_time,
    "A running job is cancelled": cancel,
    "A job hangs where Python cannot interrupt it": hang,
    "A worker process is killed with SIGKILL": kill,
}
