"""A worker of many queues: seconds to run one job of each, and the CPU that it needs when idle.

This file is also the program that is measured, because it must import the code to compare.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor
from queasy import Client, Job

QUEUES = 1000
PATIENCE = 30.0  # seconds; jobs that have not run by then do not count
SETTLE, IDLE = 2.0, 5.0


def run(
    competitor: Competitor, server: BenchServer, *, pinned: bool, scale: float
) -> dict[str, float]:
    """The number of queues does not depend on the scale: it is what is measured."""
    environment = {**competitor.environment, "BENCH_URL": server.url}
    with competitor.on(server):  # an empty server
        found = subprocess.run(
            [sys.executable, __file__], env=environment, check=True, stdout=subprocess.PIPE
        )
    return json.loads(found.stdout)


async def measure(url: str) -> dict[str, float]:
    runs, drained = 0, asyncio.Event()

    async def handle(data: int, job: Job) -> None:
        nonlocal runs
        runs += 1
        if runs == QUEUES:
            drained.set()

    async with Client(url, prefix="bench-queues") as client:
        queues = [client.queue(f"queue-{number}") for number in range(QUEUES)]
        for queue in queues:
            queue.handler(handle)
        await asyncio.gather(*(queue.dispatch(0) for queue in queues))
        worker = client.worker(signals=False)
        began = time.monotonic()
        task = asyncio.create_task(worker.run())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await drained.wait()
        speed = runs / (time.monotonic() - began)
        await asyncio.sleep(SETTLE)
        cpu = time.process_time()
        await asyncio.sleep(IDLE)
        idle = (time.process_time() - cpu) / IDLE
        worker.stop(0)
        await task
    return {"queues": speed, "queues idle": idle * 100}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(os.environ["BENCH_URL"]))))
