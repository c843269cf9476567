"""The cost of a job to the server, in small and in large queues.

Cases: backlogs of different sizes, many scheduled jobs, many active jobs, many clients, many other
queues. Prints for each the server's own time per job (INFO commandstats) for dispatch, dequeue
and finish in batches of 100, and the memory of a waiting job. Absolute times depend on the
machine: the ratio to the first line is the result. Each value is the best of many rounds, because
other load on the machine can only add to it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import redis

from queasy import SyncClient
from queasy.dispatch import new_id
from queasy.outcomes import Finish
from queasy.store.commands import QueueCommands
from queasy.store.embedded.server import ensure
from queasy.store.records import DispatchItem, Ending, Taken

PAYLOAD = os.urandom(100)
FEW = 1_000
ROUNDS = 15
SAMPLE = 1_000
BATCH = 100
LEASE = 3600
STEPS = ("dispatch", "dequeue", "finish")


class Case:
    """Queues with a given content, used in turn, and the times measured on them."""

    def __init__(self, client: SyncClient, server: redis.Redis, waiting: int = FEW) -> None:
        self.server, self.store = server, client._store
        self.queues: list[QueueCommands] = []
        self.client = client
        self.best = dict.fromkeys(STEPS, float("inf"))
        self.bytes_per_job = self.fill(waiting)

    def fill(self, waiting: int) -> float:
        """Create a queue with this many jobs. Returns the bytes that each of them takes."""
        queue = self.client.queue(f"bench-{new_id()}", codec="raw")._commands
        self.store.run(queue.register("bench", LEASE))
        before = self.memory()
        for _ in range(0, waiting, BATCH):
            self.dispatch(queue)
        self.queues.append(queue)
        self.next_queue: Iterator[QueueCommands] = cycle(self.queues)
        return (self.memory() - before) / waiting

    def memory(self) -> int:
        return int(self.server.info("memory")["used_memory"])

    def dispatch(self, queue: QueueCommands, when: str = "") -> None:
        items = [DispatchItem(new_id(), PAYLOAD, when) for _ in range(BATCH)]
        self.store.run(queue.dispatch(items))

    def dequeue(self, queue: QueueCommands, client: str = "bench") -> Taken:
        return self.store.run(queue.dequeue(client, lease=LEASE, limit=BATCH, request=new_id()))

    # Content other than waiting jobs

    def with_scheduled(self, n: int) -> Case:
        for _ in range(0, n, BATCH):
            self.dispatch(self.queues[0], when=f"+{LEASE * 1000}")
        return self

    def with_active(self, n: int) -> Case:
        self.store.run(self.queues[0].register("busy", LEASE))
        for _ in range(0, n, BATCH):
            self.dispatch(self.queues[0])
            self.dequeue(self.queues[0], "busy")
        return self

    def with_clients(self, n: int) -> Case:
        for number in range(n):
            self.store.run(self.queues[0].register(f"client-{number}", LEASE))
        return self

    def with_queues(self, n: int) -> Case:
        for _ in range(n - 1):
            self.fill(BATCH)
        return self

    def server_time(self) -> float:
        """Microseconds that the server has spent in functions so far."""
        return self.server.info("commandstats")["cmdstat_fcall"]["usec"]

    def measure(self) -> None:
        """Add and remove the same number of jobs, so that the content stays the same."""
        took = dict.fromkeys(STEPS, 0.0)
        for _ in range(SAMPLE // BATCH):
            queue = next(self.next_queue)
            start = self.server_time()
            self.dispatch(queue)
            dispatched = self.server_time()
            taken = self.dequeue(queue)
            dequeued = self.server_time()
            endings = [Ending(job.id, job.token, Finish()) for job in taken.jobs]
            assert self.store.run(queue.settle(endings)) == ["finished"] * BATCH
            took["dispatch"] += dispatched - start
            took["dequeue"] += dequeued - dispatched
            took["finish"] += self.server_time() - dequeued
        for step in STEPS:
            self.best[step] = min(self.best[step], took[step] / SAMPLE)

    @property
    def total(self) -> float:
        return sum(self.best.values())


def cases(client: SyncClient, server: redis.Redis) -> dict[str, Case]:
    return {
        f"{FEW:,} waiting": Case(client, server),
        "100,000 waiting": Case(client, server, 100_000),
        "1,000,000 waiting": Case(client, server, 1_000_000),
        "100,000 scheduled": Case(client, server).with_scheduled(100_000),
        "10,000 active": Case(client, server).with_active(10_000),
        "1,000 clients": Case(client, server).with_clients(1_000),
        "500 queues": Case(client, server).with_queues(500),
    }


def report(measured: dict[str, Case]) -> None:
    small = next(iter(measured.values()))
    print(f"  {'':18}   dispatch    dequeue     finish   whole life  ratio   bytes per waiting job")
    for name, case in measured.items():
        costs = "".join(f"{case.best[step]:8.2f} us" for step in STEPS)
        memory = f"{case.bytes_per_job:21.0f}" if name.endswith("waiting") else ""
        print(
            f"  {name:18}{costs}  {case.total:8.2f} us  {case.total / small.total:5.2f}   {memory}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a server to measure (default: an embedded one)")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="queasy-bench-") as folder,
        SyncClient(options.url, folder=None if options.url else folder, timeout=60) as client,
    ):
        server = redis.Redis.from_url(options.url or ensure(Path(folder)))
        about = server.info("server")
        name = about.get("server_name", "redis")
        print(f"{name} {about.get('valkey_version', about['redis_version'])}, batches of {BATCH}")
        measured = cases(client, server)
        for _ in range(ROUNDS):  # interleaved, so that other load affects all cases alike
            for case in measured.values():
                case.measure()
        report(measured)
        server.flushall()
        server.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
