"""The application of a chaos run. Payloads say what handlers do; handlers write the history."""

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
from tests.chaos.history import Ended, FailHandlerRan, HistoryWriter, Started, StillRunning, now
from tests.chaos.workload import BACKOFF, LONG, LONG_TIMEOUT, QUEUES, TIMEOUT

STEP = 0.02

client = Client(os.environ["CHAOS_URL"], prefix=os.environ["CHAOS_PREFIX"])
write = HistoryWriter(Path(os.environ["CHAOS_FOLDER"]), "worker")


def record_start(data: dict[str, Any], job: Job) -> None:
    assert zlib.crc32(data["blob"].encode()) == data["crc"], f"payload of {job.id} is damaged"
    write(Started(now(), job.queue, job.id, data["n"], job.token, os.getpid()))


def record_end(job: Job, how: str, after: float = 0.0) -> None:
    write(Ended(now(), job.queue, job.id, job.token, how, after))


def finish(behaviour: str, job: Job) -> Any:
    """Record the end of a run, and return or raise its result."""
    match behaviour.split(":"):
        case ["raise", times] if job.retry_count < int(times):
            record_end(job, "raised", BACKOFF * 2**job.retry_count)
            raise RuntimeError("as requested")
        case ["permanent"]:
            record_end(job, "failure")
            raise PermanentError("as requested")
        case ["failure"]:
            record_end(job, "failure")
            return Failure("as requested")
        case ["retry", after] if not job.retry_count:
            record_end(job, "retry", float(after))
            return Retry("as requested", after=float(after))
        case _:
            record_end(job, "done")
            return None


def misbehaves(behaviour: str, job: Job) -> bool:
    """Whether this run misbehaves: every run does, or only the first."""
    return behaviour.endswith(":always") or not (job.stall_count + job.timeout_count + job.suspect)


def die(behaviour: str) -> None:
    """Exit or crash, if that is the behaviour."""
    match behaviour.partition(":")[0]:
        case "exit":
            os._exit(1)
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case _:
            pass


def spin(job: Job) -> None:
    """Compute for a moment, and record that the run is still running."""
    end = now() + STEP
    while now() < end:
        pass
    write(StillRunning(now(), job.queue, job.id, job.token))


async def run(data: dict[str, Any], job: Job) -> Any:
    record_start(data, job)
    behaviour = data["behaviour"]
    if misbehaves(behaviour, job):
        die(behaviour)
    end = now() + data["seconds"]
    if behaviour.startswith("hang") and misbehaves(behaviour, job):
        end = math.inf
    try:
        while (left := end - now()) > 0:
            await asyncio.sleep(min(STEP, left))
            if left > STEP:
                write(StillRunning(now(), job.queue, job.id, job.token))
    except asyncio.CancelledError:
        record_end(job, "cancelled")
        raise
    return finish(behaviour, job)


def run_plain(data: dict[str, Any], job: Job) -> Any:
    record_start(data, job)
    behaviour = data["behaviour"]
    if misbehaves(behaviour, job):
        die(behaviour)
        if behaviour.startswith("gil"):
            # Nothing in this process can record StillRunning: overlaps with it are not detected.
            ctypes.PyDLL(None).sleep(int(TIMEOUT) + 4)
        while behaviour.startswith("spin"):
            spin(job)
    end = now() + data["seconds"]
    while (left := end - now()) > 0:
        time.sleep(min(STEP, left))
        if left > STEP:
            write(StillRunning(now(), job.queue, job.id, job.token))
    return finish(behaviour, job)


async def record_failure(data: dict[str, Any], job: Job, error: JobError) -> None:
    write(FailHandlerRan(now(), job.queue, job.id, data["n"], job.token, error.kind))


for name in QUEUES:
    # High limits: kills by this program make no job poison. Poison jobs have limits of their own.
    queue = client.queue(name)
    queue.handler(
        timeout=LONG_TIMEOUT if name in LONG else TIMEOUT,
        max_stalls=1000, max_timeouts=1000, min_backoff=BACKOFF, max_backoff=5,
    )(run_plain if name.endswith("plain") else run)  # fmt: skip
    queue.fail_handler(max_stalls=1000, max_timeouts=1000, min_backoff=BACKOFF, max_backoff=5)(
        record_failure
    )
