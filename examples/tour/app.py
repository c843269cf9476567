"""The application of the tour: its queues, and what runs their jobs.

    queasy worker tour.app:client --processes 2

Every handler notes what it did in a journal, a file that the server knows nothing about.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from queasy import Client, Failure, Job, JobError
from tour.journal import note

# An embedded server for the folder one is in; with Client("redis://...") it would be yours.
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
    """The bulk: a moment of waiting for somebody else."""
    await asyncio.sleep(0.002)
    note("done", job)


@thumbnails.handler
def draw(data: dict[str, Any], job: Job) -> None:
    """A plain function runs in a thread, and the pace of its process follows the CPU it takes."""
    primes = sum(all(n % d for d in range(2, int(n**0.5) + 1)) for n in range(2, data["below"]))
    note("done", job, primes)


@webhooks.handler(min_backoff=0.2)
async def call(data: dict[str, Any], job: Job) -> None:
    """An exception retries the job later: after 0.2 seconds, after 0.4, and so on."""
    note("try", job)
    if job.retry_count < 2:
        raise ConnectionError("nobody answers")
    note("done", job)


@payments.handler
async def pay(data: dict[str, Any], job: Job) -> None:
    """A Failure gives the job up, whatever retries it has left."""
    if data["card"] == "expired":
        raise Failure("the card has expired")
    note("done", job)


@payments.fail_handler
@imports.fail_handler
async def tell(data: dict[str, Any], job: Job, error: JobError) -> None:
    """Sees every job that is given up."""
    note("given up", job, error.kind)


@inventory.handler
async def count(data: dict[str, Any], job: Job) -> None:
    """Always dispatched as the same id, so there is never a second run at the same time."""
    note("start", job, data["version"])
    await asyncio.sleep(0.1)
    note("done", job, data["version"])


@reminders.handler
async def remind(data: dict[str, Any], job: Job) -> None:
    note("done", job, data["text"])


@exports.handler(timeout=None)
async def export(data: dict[str, Any], job: Job) -> None:
    """An async handler that is cancelled sees what asyncio has for that."""
    note("start", job)
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        note("cancelled", job, job.cancelled)
        raise


@imports.handler(timeout=1, max_timeouts=2, min_backoff=0.2)
def load(data: dict[str, Any], job: Job) -> None:
    """Nothing in Python can interrupt this. Its process is killed, once its other jobs ended."""
    note("start", job)
    time.sleep(3600)


@errands.handler(size=10)
async def run(data: dict[str, Any], job: Job) -> None:
    """Ten at a time in each process: a worker has a capacity of 100."""
    note("start", job)
    await asyncio.sleep(0.1)
    note("done", job)
