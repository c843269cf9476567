"""A pull consumer on the queues of the workers: `python -m tests.chaos.consumer SEED sync|async`.

It ends its leases with every possible outcome, sometimes late, sometimes not at all.
"""

import asyncio
import os
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

from queasy import Client, QueasyError, SyncClient
from tests.chaos.history import Ended, HistoryWriter, Settled, Started, now
from tests.chaos.workload import SHORT

LEASE = 4.0


class Consumer:
    def __init__(self, random: Random, write: HistoryWriter) -> None:
        self.random = random
        self.write = write

    def queue(self) -> str:
        return self.random.choice(SHORT)

    def start(self, lease: Any, requested: float) -> float:
        """Record the start. Returns the seconds that the work takes.

        The lease began after `requested`, so it cannot expire before `requested` + its length.
        """
        job, data = lease.job, lease.data
        self.write(
            Started(now(), job.queue, job.id, data["n"], job.token, os.getpid(), requested + LEASE)
        )
        return data["seconds"]

    def end(self, lease: Any) -> tuple[str, float]:
        """Choose and record how the lease ends. Returns the outcome and the delay of a retry."""
        job = lease.job
        behaviour = lease.data["behaviour"].partition(":")[0]
        how, after = {
            "raise": ("retry", 0.1),
            "retry": ("retry", 0.3),
            "permanent": ("failure", 0.0),
            "failure": ("failure", 0.0),
        }.get(behaviour, ("done", 0.0))
        if how == "retry" and job.retry_count:
            how, after = "done", 0.0
        drawn = self.random.random()
        if drawn < 0.01:
            os._exit(1)
        if drawn < 0.03:
            how = "release"
        self.write(Ended(now(), job.queue, job.id, job.token, how, after))
        return how, after

    def record_outcome(self, lease: Any) -> None:
        if lease.ended not in (None, "lost"):
            job = lease.job
            self.write(Settled(job.queue, job.id, job.token, lease.ended, now()))


async def consume(consumer: Consumer, client: Client) -> None:
    queues = {name: client.queue(name) for name in SHORT}
    while True:
        try:
            requested = now()
            lease = await queues[consumer.queue()].lease(LEASE, timeout=0.2)
            if lease is None:
                continue
            await asyncio.sleep(consumer.start(lease, requested))
            how, after = consumer.end(lease)
            match how:
                case "retry":
                    await lease.retry(after=after)
                case "failure":
                    await lease.fail("as requested")
                case "release":
                    await lease.release()
                case _:
                    await lease.complete()
            consumer.record_outcome(lease)
        except QueasyError:
            await asyncio.sleep(0.1)


def consume_sync(consumer: Consumer, client: SyncClient) -> None:
    queues = {name: client.queue(name) for name in SHORT}
    while True:
        try:
            requested = now()
            lease = queues[consumer.queue()].lease(LEASE, timeout=0.2)
            if lease is None:
                continue
            time.sleep(consumer.start(lease, requested))
            how, after = consumer.end(lease)
            match how:
                case "retry":
                    lease.retry(after=after)
                case "failure":
                    lease.fail("as requested")
                case "release":
                    lease.release()
                case _:
                    lease.complete()
            consumer.record_outcome(lease)
        except QueasyError:
            time.sleep(0.1)


def main(seed: str, kind: str) -> None:
    consumer = Consumer(Random(seed), HistoryWriter(Path(os.environ["CHAOS_FOLDER"]), "consumer"))
    url, prefix = os.environ["CHAOS_URL"], os.environ["CHAOS_PREFIX"]
    if kind == "sync":
        with SyncClient(url, prefix=prefix, timeout=3) as client:
            consume_sync(consumer, client)

    async def run() -> None:
        async with Client(url, prefix=prefix, timeout=3) as client:
            await consume(consumer, client)

    asyncio.run(run())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
