"""A process that runs jobs until it is killed: through our adapter, or as a foreign client does.

    python -m tests.interop.node.holder adapter|functions URL QUEUE LOG

It notes the start and the end of each run in the list LOG, whose order is the server's.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable

import redis

from queasy import SyncClient
from queasy.interop import node
from tests.interop.node.harness import NodeQueue

EXPIRES_IN = 5.0
STEPS, STEP_SECONDS = 4, 0.01

# A job as the loop below sees it: its id, how to keep it alive, and how to end it.
Held = tuple[str, Callable[[], bool], Callable[[], bool]]


def ms(seconds: float) -> int:
    return round(seconds * 1000)


def adapter_jobs(client: SyncClient, key: str) -> Iterable[Held]:
    queue = node.Queue(client, key)
    while True:
        for job in queue.dequeue(3, timeout=None, expires_in=EXPIRES_IN):
            yield (
                job.id,
                lambda job=job: queue.bump(job, expires_in=EXPIRES_IN),
                lambda job=job: queue.finish(job),
            )


def function_jobs(connection: redis.Redis, key: str) -> Iterable[Held]:
    queue, client = NodeQueue(connection, key[1:-1]), f"foreign-{os.getpid()}"

    def bump() -> bool:
        now = time.time()
        return bool(queue.bump(client, ms(now), ms(now + EXPIRES_IN)))

    while True:
        now = time.time()
        jobs = queue.dequeue(client, ms(now), ms(now + EXPIRES_IN), 3)
        for job in jobs:
            id_ = job["id"]
            yield id_, bump, lambda id_=id_: bool(queue.finish(id_, client, ms(time.time())))
        if not jobs:
            time.sleep(0.02)


def main(kind: str, url: str, key: str, log: str) -> None:
    with redis.Redis.from_url(url, decode_responses=True) as connection, SyncClient(url) as client:
        connection.rpush(log, f"ready - {os.getpid()}")
        jobs = adapter_jobs(client, key) if kind == "adapter" else function_jobs(connection, key)
        for id_, bump, finish in jobs:
            connection.rpush(log, f"start {id_} {os.getpid()}")
            held = True
            for _ in range(STEPS):
                time.sleep(STEP_SECONDS)  # the work
                held = bump()
            # The end is noted first: as soon as the job is finished, its next dispatch may start.
            connection.rpush(log, f"end {id_} {os.getpid()}")
            done = finish()
            connection.rpush(log, f"{'done' if done else 'lost'} {id_} {os.getpid()}")
            if held != done:
                connection.rpush(log, f"odd {id_} {os.getpid()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
