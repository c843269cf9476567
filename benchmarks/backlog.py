"""What a job costs the server when few others wait, and when a million do.

Prints, for backlogs of different size, the server's own time per job (INFO commandstats) for
dispatch, dequeue and finish in batches of 100, and the memory a waiting job takes. The ratio
between the largest and the smallest backlog is the figure that matters: absolute times are
those of the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

import redis

from queasy import SyncClient
from queasy.dispatch import new_id
from queasy.outcome import Finish
from queasy.store.embedded import ensure
from queasy.store.records import Ending

PAYLOAD = os.urandom(100)
SIZES = (1_000, 100_000, 1_000_000)
ROUNDS = 15
SAMPLE = 1_000
BATCH = 100
STEPS = ("dispatch", "dequeue", "finish")


class Backlog:
    """A queue with so many jobs waiting, and what was measured on it."""

    def __init__(self, size: int, client: SyncClient, server: redis.Redis) -> None:
        self.size = size
        self.queue = client.queue(f"bench-{size}", codec="raw")
        self.server = server
        self.store = client._store
        self.commands = self.queue._commands
        self.samples: dict[str, list[float]] = {step: [] for step in STEPS}
        before = self.memory()
        self.queue.dispatch_many(PAYLOAD for _ in range(size))
        self.bytes_per_job = (self.memory() - before) / size
        self.store.run(self.commands.register("bench", 3600))

    def memory(self) -> int:
        return int(self.server.info("memory")["used_memory"])

    def server_time(self) -> float:
        """Microseconds the server has spent in functions."""
        return self.server.info("commandstats")["cmdstat_fcall"]["usec"]

    def measure(self) -> None:
        """As many jobs out as in, so that the backlog stays as it is."""
        took = dict.fromkeys(STEPS, 0.0)
        for _ in range(SAMPLE // BATCH):
            start = self.server_time()
            self.queue.dispatch_many([PAYLOAD] * BATCH)
            dispatched = self.server_time()
            taken = self.store.run(
                self.commands.dequeue("bench", lease=3600, limit=BATCH, request=new_id())
            )
            dequeued = self.server_time()
            words = self.store.run(
                self.commands.settle([Ending(job.id, job.token, Finish()) for job in taken.jobs])
            )
            assert words == ["finished"] * BATCH
            took["dispatch"] += dispatched - start
            took["dequeue"] += dequeued - dispatched
            took["finish"] += self.server_time() - dequeued
        for step in STEPS:
            self.samples[step].append(took[step] / SAMPLE)

    def cost(self, step: str) -> float:
        return statistics.median(self.samples[step])

    @property
    def life(self) -> float:
        return sum(map(self.cost, STEPS))


def report(backlogs: list[Backlog]) -> None:
    print("  waiting jobs   dispatch    dequeue     finish   whole life   bytes per waiting job")
    for b in backlogs:
        costs = "".join(f"{b.cost(step):8.2f} us" for step in STEPS)
        print(f"  {b.size:>12,}{costs}  {b.life:8.2f} us   {b.bytes_per_job:21.0f}")
    first, last = backlogs[0], backlogs[-1]
    ratios = ", ".join(f"{step} {last.cost(step) / first.cost(step):.2f}" for step in STEPS)
    print(
        f"  {last.size:,} against {first.size:,}: {ratios}, whole life {last.life / first.life:.2f}"
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
        backlogs = [Backlog(size, client, server) for size in SIZES]
        for _ in range(ROUNDS):  # interleaved: whatever else the machine does hits all alike
            for backlog in backlogs:
                backlog.measure()
        report(backlogs)
        server.flushall()
        server.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
