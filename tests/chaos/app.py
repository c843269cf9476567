"""The application of a chaos run: what its jobs do is in their data, what happened in a history."""

import asyncio
import ctypes
import math
import os
import signal
import time
import zlib
from pathlib import Path
from typing import Any

from queasy import Client, Failure, Job, JobError, PermanentError, Retry
from tests.chaos.history import Alive, Ended, GaveUp, Pen, Started, now
from tests.chaos.load import BACKOFF, LONG, LONG_TIMEOUT, QUEUES, TIMEOUT

TICK = 0.02

client = Client(os.environ["CHAOS_URL"], prefix=os.environ["CHAOS_PREFIX"])
pen = Pen(Path(os.environ["CHAOS_FOLDER"]), "worker")


def started(data: dict[str, Any], job: Job) -> None:
    assert zlib.crc32(data["blob"].encode()) == data["crc"], f"payload of {job.id} is damaged"
    pen(Started(now(), job.queue, job.id, data["n"], job.token, os.getpid()))


def ended(job: Job, how: str, after: float = 0.0) -> None:
    pen(Ended(now(), job.queue, job.id, job.token, how, after))


def verdict(does: str, job: Job) -> Any:
    """How a run ends that came so far; notes it."""
    match does.split(":"):
        case ["raise", times] if job.retry_count < int(times):
            ended(job, "raised", BACKOFF * 2**job.retry_count)
            raise RuntimeError("as told")
        case ["permanent"]:
            ended(job, "failure")
            raise PermanentError("as told")
        case ["failure"]:
            ended(job, "failure")
            return Failure("as told")
        case ["retry", after] if not job.retry_count:
            ended(job, "retry", float(after))
            return Retry("as told", after=float(after))
        case _:
            ended(job, "done")
            return None


def is_due(does: str, job: Job) -> bool:
    """Whether a job misbehaves in this run: always, or the first time only."""
    return does.endswith(":always") or not (job.stall_count + job.timeout_count)


def die(does: str) -> None:
    match does.partition(":")[0]:
        case "exit":
            os._exit(1)
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case _:
            pass


def spin(job: Job) -> None:
    """Computes for a moment, and says that it is at it."""
    end = now() + TICK
    while now() < end:
        pass
    pen(Alive(now(), job.queue, job.id, job.token))


async def run(data: dict[str, Any], job: Job) -> Any:
    started(data, job)
    does = data["does"]
    if is_due(does, job):
        die(does)
    end = now() + data["seconds"]
    if does.startswith("hang") and is_due(does, job):
        end = math.inf
    try:
        while (left := end - now()) > 0:
            await asyncio.sleep(min(TICK, left))
            if left > TICK:
                pen(Alive(now(), job.queue, job.id, job.token))
    except asyncio.CancelledError:
        ended(job, "cancelled")
        raise
    return verdict(does, job)


def run_plain(data: dict[str, Any], job: Job) -> Any:
    started(data, job)
    does = data["does"]
    if is_due(does, job):
        die(does)
        if does.startswith("gil"):
            # Nothing in this process can say that it goes on: what overlaps with it is not seen.
            ctypes.PyDLL(None).sleep(int(TIMEOUT) + 4)
        while does.startswith("spin"):
            spin(job)
    end = now() + data["seconds"]
    while (left := end - now()) > 0:
        time.sleep(min(TICK, left))
        if left > TICK:
            pen(Alive(now(), job.queue, job.id, job.token))
    return verdict(does, job)


async def gave_up(data: dict[str, Any], job: Job, error: JobError) -> None:
    pen(GaveUp(now(), job.queue, job.id, data["n"], job.token, error.kind))


for name in QUEUES:
    # Whoever is killed a dozen times by us is not poison: jobs that are say so themselves.
    queue = client.queue(name)
    queue.handler(
        timeout=LONG_TIMEOUT if name in LONG else TIMEOUT,
        max_stalls=1000, max_timeouts=1000, min_backoff=BACKOFF, max_backoff=5,
    )(run_plain if name.endswith("plain") else run)  # fmt: skip
    queue.fail_handler(max_stalls=1000, max_timeouts=1000, min_backoff=BACKOFF, max_backoff=5)(
        gave_up
    )
