"""The application of the tour: its queues and their handlers.

    queasy worker tour.app:client --processes 2

Every handler writes what it did to a journal, a file outside the server.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from queasy import Client, Failure, Job, JobError
from tour.journal import note

# The embedded server of the current folder. Client("redis://...") would use your own server.
client = Client(folder=".queasy")

emails = client.queue("emails")
thumbnails = client.queue("thumbnails")
webhooks = client.queue("webhooks")
payments = client.queue("payments")
inventory = client.queue("inventory")
reminders = client.queue("reminders")
exports = client.queue("exports")
imports = client.queue("imports")
errands = client.queue("errands")

QUEUES = {
    emails: "quick, async",
    thumbnails: "computing, plain",
    webhooks: "two retries each",
    payments: "some are declined",
    inventory: "one id, one job",
    reminders: "not before their time",
    exports: "cancelled while running",
    imports: "hangs in native code",
    errands: "a process is killed",
}


@emails.handler
async def send(data: dict[str, Any], job: Job) -> None:
    """Most of the jobs: each waits two milliseconds, as if for a mail server."""
    await asyncio.sleep(0.002)
    note("done", job)


@thumbnails.handler
def draw(data: dict[str, Any], job: Job) -> None:
    """A plain function runs in a thread. Its worker runs fewer at once when the CPU is busy."""
    primes = sum(all(n % d for d in range(2, int(n**0.5) + 1)) for n in range(2, data["below"]))
    note("done", job, primes)


@webhooks.handler(min_backoff=0.2)
async def call(data: dict[str, Any], job: Job) -> None:
    """An exception retries the job: after 0.2 seconds, then after 0.4, and so on."""
    note("try", job)
    if job.retry_count < 2:
        raise ConnectionError("no answer")
    note("done", job)


@payments.handler
async def pay(data: dict[str, Any], job: Job) -> None:
    """A Failure gives the job up, even if it has retries left."""
    if data["card"] == "expired":
        raise Failure("the card has expired")
    note("done", job)


@payments.fail_handler
@imports.fail_handler
async def report(data: dict[str, Any], job: Job, error: JobError) -> None:
    """Receives every job that is given up."""
    note("given up", job, error.kind)


@inventory.handler
async def count(data: dict[str, Any], job: Job) -> None:
    """All its jobs have the same id, so there is never a second run at the same time."""
    note("start", job, data["version"])
    await asyncio.sleep(0.1)
    note("done", job, data["version"])


@reminders.handler
async def remind(data: dict[str, Any], job: Job) -> None:
    note("done", job, data["text"])


@exports.handler(timeout="unlimited")
async def export(data: dict[str, Any], job: Job) -> None:
    """A cancelled async handler receives `asyncio.CancelledError`."""
    note("start", job)
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        note("cancelled", job, job.cancelled)
        raise


@imports.handler(timeout=1, max_timeouts=2, min_backoff=0.2)
def load(data: dict[str, Any], job: Job) -> None:
    """Python cannot interrupt this. The supervisor kills the process after its other jobs end."""
    note("start", job)
    time.sleep(3600)


@errands.handler(size=10)
async def run(data: dict[str, Any], job: Job) -> None:
    """Ten run at once in each process, because a worker has a capacity of 100."""
    note("start", job)
    await asyncio.sleep(0.1)
    note("done", job)
