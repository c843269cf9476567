"""The application of `benchmarks.recovery`, for workers and for pull consumers.

Each process belongs to a host, named by QUEASY_HOST. A run ends when the file of its host exists:
so the benchmark decides when the runs of a host end. Runs append a line to a journal when they
start and when they end.

    python -m benchmarks.ours.recovery_app QUEUE ...     consumes these queues, one thread for each
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from pathlib import Path

from queasy import Client, Job, SyncClient

PREFIX = "recovery"
CHECK_EVERY = 0.2
LEASE = 30.0
UNITS = 5  # so a process runs up to 20 of these jobs

URL = os.environ.get("BENCH_URL", "")
FOLDER = Path(os.environ.get("BENCH_FOLDER", "."))
HOST = os.environ.get("QUEASY_HOST", "")


def queue_name(number: int) -> str:
    return f"q-{number}"


def own_queues(host: str, count: int) -> list[str]:
    """Queues that only this host serves, with jobs that fill a process."""
    return [f"own-{host}-{number}" for number in range(count)]


def gate(folder: Path, host: str, what: str) -> Path:
    """When this file exists, the runs of that host end."""
    return folder / f"end-{host}-{what}"


def note(what: str, job: Job) -> None:
    line = f"{what} {job.id} {job.token} {HOST} {time.monotonic():.6f}\n".encode()
    file = os.open(FOLDER / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, line)  # one call: lines of several processes do not mix
    os.close(file)


async def hold(data: str, job: Job) -> None:
    note("start", job)
    until = gate(FOLDER, HOST, data)
    while not until.exists():  # noqa: ASYNC110 - another process creates the file
        await asyncio.sleep(CHECK_EVERY)
    note("end", job)


if URL:
    client = Client(URL, prefix=PREFIX)
    for number in range(int(os.environ["BENCH_QUEUES"])):
        client.queue(queue_name(number)).handler(size=UNITS, timeout=3600)(hold)
    for name in own_queues(HOST, int(os.environ["BENCH_OWN_QUEUES"])):
        client.queue(name).handler(size=100, timeout=3600)(hold)


def consume(client: SyncClient, queue: str) -> None:
    while True:
        with client.queue(queue).lease(LEASE) as lease:
            note("start", lease.job)
            note("end", lease.job)


def main(queues: list[str]) -> None:
    with SyncClient(URL, prefix=PREFIX) as client:
        for name in queues:
            threading.Thread(target=consume, args=(client, name), daemon=True).start()
        print("consuming", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1:])
