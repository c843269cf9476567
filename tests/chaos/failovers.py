"""Counts what failovers by Sentinel lose: `python -m tests.chaos.failovers --times 20`.

Each kind of failover is made again and again, under dispatches of every durability, on a primary
with two replicas and three sentinels at their normal pace. Half of the jobs are due at once, and a
worker runs them. The others are delayed, so that none is drained at a primary that was replaced.

A job is lost if its dispatch returned, and in the end it has neither run nor waits. The table says
how long before (-) or after (+) the first `+switch-master` the dispatches of lost jobs returned.
"""

import argparse
import asyncio
import itertools
import logging
import multiprocessing
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import queasy
from queasy import Client, QueasyError, SyncClient
from tests.announcements import SWITCH, Announcements, announcements_of
from tests.groups import SentinelGroup, start_sentinel
from tests.servers import ServerKind, Setting, wait_until
from tests.worker.fleet import Fleet, fleet_on

KINDS = ("command", "kill", "freeze")
DUE, DELAYED = "waits", "delayed"  # queues; `tests.worker.app` serves the first
DELAYS = {DUE: 0.0, DELAYED: 3600.0}
SETTINGS: dict[str, dict[str, Setting]] = {
    "min-replicas-to-write 0": {},
    "min-replicas-to-write 1": {"min_replicas_to_write": 1, "min_replicas_max_lag": 1},
}
DURABILITIES: dict[str, Any] = {"ack": "ack", "replicated": "replicated"}
if hasattr(queasy, "Replicated"):  # so that this program also measures older code
    DURABILITIES["Replicated(2)"] = queasy.Replicated(2)
# Dispatches per second, of one durability: by an async client, and by a sync one.
ASYNC_RATE, SYNC_RATE = 30.0, 15.0
BEFORE_SECONDS, AFTER_SECONDS = 1.5, 12.0
# An old primary that was killed or frozen comes back this long after it was replaced.
AWAY_SECONDS = 2.0


@dataclass
class Load:
    """The dispatches of one failover, and their answers."""

    url: str
    prefix: str
    accepted: dict[str, float] = field(default_factory=dict)
    """When the dispatch of each id returned. An id is durability, queue, client and number."""
    refused: list[str] = field(default_factory=list)
    """The ids of the dispatches that raised."""
    _over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        self._begin(lambda: asyncio.run(self._produce_async()))
        for durability in DURABILITIES:
            self._begin(lambda durability=durability: self._produce(durability))
        wait_until(lambda: len(self.accepted) > 20, "dispatches are answered")

    def _begin(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, daemon=True)
        thread.start()
        self._threads.append(thread)

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _produce(self, durability: str) -> None:
        """Dispatches by a sync client, one after the other."""
        with SyncClient(self.url, prefix=self.prefix) as client:
            for number in itertools.count():
                if self._over.wait(1 / SYNC_RATE):
                    return
                with self._noting(durability, "sync", number) as (name, job):
                    client.queue(name).dispatch(None, **job)

    async def _produce_async(self) -> None:
        """Dispatches by an async client, without waiting for the answers to those before."""

        async def dispatch(durability: str, number: int) -> None:
            with self._noting(durability, "async", number) as (name, job):
                await client.queue(name).dispatch(None, **job)

        async with (
            Client(self.url, prefix=self.prefix) as client,
            asyncio.TaskGroup() as group,
        ):
            for number in itertools.count():
                await asyncio.sleep(1 / ASYNC_RATE)
                if self._over.is_set():
                    return
                for durability in DURABILITIES:
                    group.create_task(dispatch(durability, number))

    @contextmanager
    def _noting(
        self, durability: str, client: str, number: int
    ) -> Generator[tuple[str, dict[str, Any]]]:
        """The queue and the arguments of the next dispatch. Notes its end."""
        name = DELAYED if number % 2 else DUE
        id_ = f"{durability}/{name}/{client}/{number}"
        job = {"id": id_, "delay": DELAYS[name], "durability": DURABILITIES[durability]}
        try:
            yield name, job
        except QueasyError:
            self.refused.append(id_)
        else:
            self.accepted[id_] = time.monotonic()


@dataclass
class Found:
    """What one failover did to the dispatches of one durability."""

    accepted: int
    refused: int
    lost: dict[str, float]
    """The seconds from the first `+switch-master` to the answer, for each lost id."""
    silence: float
    """The longest time between two answers, in seconds."""
    worker_after: float
    """The seconds from the first answer after the switch to the first run of such a job."""


Cell = tuple[str, str, int, ServerKind]
"""Settings, kind of failover, how many, and the server."""
Results = dict[tuple[str, str], list[dict[str, Found]]]
"""For settings and kind: what each failover did, by durability."""


def strike(group: SentinelGroup, kind: str) -> Callable[[], None]:
    """Begins a failover. The function that it returns brings the old primary back."""
    old = group.primary
    match kind:
        case "command":
            group.request_failover()
            return lambda: None
        case "kill":
            old.kill()
            return old.start
        case _:
            old.pause()
            return old.resume


def fail_over(
    group: SentinelGroup, heard: Announcements, fleet: Fleet, prefix: str, kind: str
) -> dict[str, Found]:
    """Makes one failover under load; returns what it did, by durability."""
    load = Load(group.url, prefix)
    load.start()
    time.sleep(BEFORE_SECONDS)
    old = group.primary
    group.hurry(hasty=False)
    began = time.monotonic()
    bring_back = strike(group, kind)
    wait_until(lambda: heard.first(SWITCH, began) is not None, "the primary is replaced")
    switch = heard.first(SWITCH, began) or began
    time.sleep(AWAY_SECONDS)
    bring_back()
    wait_until(lambda: old.call("ROLE")[0] == "slave", "the old primary is demoted", 60)
    time.sleep(max(0.0, switch + AFTER_SECONDS - time.monotonic()))
    load.stop()
    group.hurry()
    group.wait_until_settled()
    with SyncClient(group.url, prefix=prefix) as client:
        queues = [client.queue(name) for name in DELAYS]
        wait_until(lambda: not queues[0].counts().active, "runs end")
        kept = {job.id for queue in queues for job in queue.jobs()}
        assert [problem for queue in queues for problem in queue.audit()] == []
    ran = {line["id"]: line["at"] for line in fleet.journal.lines("end")}
    return {durability: _judge(durability, load, kept, ran, switch) for durability in DURABILITIES}


def _judge(
    durability: str, load: Load, kept: set[str], ran: dict[str, float], switch: float
) -> Found:
    mine = {id_: at for id_, at in load.accepted.items() if id_.startswith(f"{durability}/")}
    lost = {id_: at - switch for id_, at in mine.items() if id_ not in kept and id_ not in ran}
    since = {id_: at for id_, at in mine.items() if at > switch and id_ not in lost}
    runs = [ran[id_] for id_ in since if id_ in ran]
    return Found(
        accepted=len(mine),
        refused=sum(id_.startswith(f"{durability}/") for id_ in load.refused),
        lost=lost,
        silence=max(b - a for a, b in itertools.pairwise(sorted(mine.values()))),
        worker_after=max(0.0, min(runs) - min(since.values())),
    )


def run_cell(cell: Cell) -> tuple[Cell, list[dict[str, Found]]]:
    """Makes failovers of one kind on a group of servers of its own."""
    settings, kind, times, server = cell
    logging.getLogger("queasy").setLevel(logging.ERROR)  # the settings cause warnings
    found: list[dict[str, Found]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="queasy-")))
        config = SETTINGS[settings]
        group = stack.enter_context(start_sentinel(server, sentinels=3, replicas=2, **config))
        heard = stack.enter_context(announcements_of(group))
        for number in range(1, times + 1):
            prefix = f"{kind}{number}"
            (folder / prefix).mkdir()
            with fleet_on(group.url, prefix, folder / prefix) as fleet:
                fleet.serve("--queue", DUE, processes=1)
                found.append(fail_over(group, heard, fleet, prefix, kind))
            lost = {durability: len(one.lost) for durability, one in found[-1].items()}
            print(f"  {settings}, {kind} {number} of {times}: lost {lost}", flush=True)
    return cell, found


def table(results: Results) -> list[str]:
    heads = (
        "server settings", "failovers", "durability", "accepted", "refused", "lost: due at once",
        "lost: delayed", "answers to lost jobs, s from `+switch-master`",
        "longest wait for an answer, s: p50 / worst",
        "from the first answer after the switch to the first run, s: p50 / worst",
    )  # fmt: skip
    rows = [heads, ["---"] * len(heads)]
    for (settings, kind), failovers in results.items():
        for durability in DURABILITIES:
            of = [one[durability] for one in failovers]
            lost = [item for one in of for item in one.lost.items()]
            times = [at for _, at in lost]
            counts = [sum(f"/{name}/" in id_ for id_, _ in lost) for name in DELAYS]
            rows.append([
                f"`{settings}`", f"{len(of)} by {kind}", f"`{durability}`",
                f"{sum(one.accepted for one in of):,}", f"{sum(one.refused for one in of):,}",
                *(f"{count:,}" for count in counts),
                f"{min(times):+.2f} to {max(times):+.2f}" if times else "-",
                _spread([one.silence for one in of]), _spread([one.worker_after for one in of]),
            ])  # fmt: skip
    return [f"| {' | '.join(row)} |" for row in rows]


def _spread(values: list[float]) -> str:
    return f"{median(values):.2f} / {max(values):.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.chaos.failovers", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--times", type=int, default=20, help="failovers of each kind")
    parser.add_argument("--kind", choices=KINDS, action="append", help="default: all")
    parser.add_argument("--min-replicas", choices=("0", "1"), help="default: both")
    parser.add_argument("--server", choices=[*ServerKind], default=ServerKind.REDIS)
    parser.add_argument("--parallel", type=int, default=6, help="groups of servers at a time")
    options = parser.parse_args()
    half = (options.times + 1) // 2  # two groups share the failovers of one kind
    cells: list[Cell] = [
        (settings, kind, times, ServerKind(options.server))
        for settings in SETTINGS
        if options.min_replicas in (None, settings[-1])
        for kind in options.kind or KINDS
        for times in (half, options.times - half)
        if times
    ]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are ended as well
    with multiprocessing.get_context("spawn").Pool(options.parallel) as pool:
        done = pool.map(run_cell, cells, chunksize=1)
    results: Results = defaultdict(list)
    for (settings, kind, *_), found in done:
        results[settings, kind] += found
    print("\n" + "\n".join(table(results)))
    for (settings, kind), failovers in results.items():
        for number, one in enumerate(failovers, 1):
            for id_, at in ((id_, at) for of in one.values() for id_, at in of.lost.items()):
                print(f"lost: {settings}, {kind} {number}: {id_} answered at {at:+.3f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
