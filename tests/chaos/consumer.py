"""A pull consumer on the queues of the workers: `python -m tests.chaos.consumer SEED sync|async`.

It ends what it leased in every way there is, sometimes late, sometimes not at all.
"""

import asyncio
import os
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

from queasy import Client, QueasyError, SyncClient
from tests.chaos.history import Ended, Pen, Settled, Started, now
from tests.chaos.load import SHORT

LEASE = 4.0


class Consumer:
    def __init__(self, random: Random, pen: Pen) -> None:
        self.random = random
        self.pen = pen

    def queue(self) -> str:
        return self.random.choice(SHORT)

    def started(self, lease: Any, asked: float) -> float:
        """How long it works; notes that it does. The lease began when the server answered: it
        cannot end before `asked` + its length.
        """
        job, data = lease.job, lease.data
        self.pen(
            Started(now(), job.queue, job.id, data["n"], job.token, os.getpid(), asked + LEASE)
        )
        return data["seconds"]

    def ending(self, lease: Any) -> tuple[str, float]:
        """What to do with it, and notes it."""
        job = lease.job
        does = lease.data["does"].partition(":")[0]
        how, after = {
            "raise": ("retry", 0.1),
            "retry": ("retry", 0.3),
            "permanent": ("failure", 0.0),
            "failure": ("failure", 0.0),
        }.get(does, ("done", 0.0))
        if how == "retry" and job.retry_count:
            how, after = "done", 0.0
        drawn = self.random.random()
        if drawn < 0.01:
            os._exit(1)
        if drawn < 0.03:
            how = "release"
        self.pen(Ended(now(), job.queue, job.id, job.token, how, after))
        return how, after

    def settled(self, lease: Any) -> None:
        if lease.ended not in (None, "lost"):
            job = lease.job
            self.pen(Settled(job.queue, job.id, job.token, lease.ended, now()))


async def consume(consumer: Consumer, client: Client) -> None:
    queues = {name: client.queue(name) for name in SHORT}
    while True:
        try:
            asked = now()
            lease = await queues[consumer.queue()].lease(LEASE, timeout=0.2)
            if lease is None:
                continue
            await asyncio.sleep(consumer.started(lease, asked))
            how, after = consumer.ending(lease)
            match how:
                case "retry":
                    await lease.retry(after=after)
                case "failure":
                    await lease.fail("as told")
                case "release":
                    await lease.release()
                case _:
                    await lease.complete()
            consumer.settled(lease)
        except QueasyError:
            await asyncio.sleep(0.1)


def consume_sync(consumer: Consumer, client: SyncClient) -> None:
    queues = {name: client.queue(name) for name in SHORT}
    while True:
        try:
            asked = now()
            lease = queues[consumer.queue()].lease(LEASE, timeout=0.2)
            if lease is None:
                continue
            time.sleep(consumer.started(lease, asked))
            how, after = consumer.ending(lease)
            match how:
                case "retry":
                    lease.retry(after=after)
                case "failure":
                    lease.fail("as told")
                case "release":
                    lease.release()
                case _:
                    lease.complete()
            consumer.settled(lease)
        except QueasyError:
            time.sleep(0.1)


def main(seed: str, kind: str) -> None:
    consumer = Consumer(Random(seed), Pen(Path(os.environ["CHAOS_FOLDER"]), "consumer"))
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
