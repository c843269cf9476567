"""What the scripts `crash_x` share: the job that is interrupted, and the verbs.

    crash_x worker                     becomes the worker, or the supervisor of the workers
    crash_x send PREFIX COUNT          sends jobs with the ids PREFIX-00, PREFIX-01, …
    crash_x traffic SECONDS RATE       sends jobs that do nothing, RATE a second

A script's head names the settings it uses, the setting that governs the recovery, and what
restarts a process that was killed. Its packages are those of the script `with_x`.

Each job appends two lines to one file: `start ID PID TIME` when it starts and `end ID PID TIME`
one second later. TIME is the monotonic clock, which all processes of a host share.
"""

import asyncio
import inspect
import os
import sys
import time

from kit import FOLDER, URL, execute

__all__ = ["URL", "execute", "main", "run", "run_async"]
SECONDS = 1.0
TRAFFIC = "traffic"


def run(job):
    """The handler, for peers that call plain functions."""
    if job != TRAFFIC:
        _note("start", job)
        time.sleep(SECONDS)
        _note("end", job)


async def run_async(job):
    """The same handler, for peers that await coroutines."""
    if job != TRAFFIC:
        _note("start", job)
        await asyncio.sleep(SECONDS)
        _note("end", job)


def _note(what, job):
    line = f"{what} {job} {os.getpid()} {time.monotonic():.6f}\n".encode()
    file = os.open(FOLDER / "events", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, line)  # one call: lines of several processes do not mix
    os.close(file)


def main(*, worker, send, connect=None):
    """Does what the command line says. `send(job)` and `connect()` may be coroutines."""
    verb, *rest = sys.argv[1:]
    if verb == "worker":
        worker()
        return
    asyncio.run(_produce(verb, rest, send, connect))
    sys.stdout.flush()
    os._exit(0)  # some clients complain when they are closed


async def _produce(verb, rest, send, connect):
    if connect is not None:
        await _done(connect())
    if verb == "send":
        for number in range(int(rest[1])):
            await _done(send(f"{rest[0]}-{number:02}"))
        return
    until = time.monotonic() + float(rest[0])
    while time.monotonic() < until:
        await _done(send(TRAFFIC))
        await asyncio.sleep(1 / float(rest[1]))


async def _done(result):
    if inspect.isawaitable(result):
        await result
