"""Shared by the scripts of all peers. Standard library only, because it runs in every environment.

A peer's script is both the application that its workers load, and a program:

    with_x.py worker PROCESSES KIND         becomes the worker; KIND: the workload
    with_x.py bulk JOB COUNT BYTES          enqueues jobs in the fastest way
    with_x.py concurrent JOB COUNT BYTES    100 awaited concurrently
    with_x.py single JOB COUNT BYTES        awaited one at a time
    with_x.py pickup COUNT                  one job at a time; its payload is the time it was sent
    with_x.py schedule COUNT AT             jobs that are all due at one instant (time.time)

JOB is one of the handlers. `noop`, `stamp` and `burn` are what the peer's users write, async where it
can be. `plain` and `sleep` are functions without `async`. A producer prints one line of JSON: the seconds
it took, not counting the connect, and the number of jobs it enqueued.
"""

import asyncio
import inspect
import itertools
import json
import mmap
import os
import random
import sys
import threading
import time
from pathlib import Path

URL = os.environ.get("BENCH_URL", "redis://127.0.0.1:6379/0")
PORT = int(URL.rpartition(":")[2].partition("/")[0])
FOLDER = Path(os.environ.get("BENCH_FOLDER", "."))
CONCURRENCY = 100
WARM_UP = 100  # jobs sent before the clock starts, to open connections and load code
PICKUP_PAUSE = (0.01, 0.04)  # seconds between two jobs of `pickup`, random between these


# The handlers. Each thread has a memory-mapped file of three numbers that the harness reads while
# the worker runs: jobs done, start of the first, end of the last. Counting costs no system call.


class _Counter(threading.local):
    def __init__(self):
        path = FOLDER / f"tally-{time.monotonic_ns()}-{os.getpid()}-{next(_numbers)}"
        with path.open("xb+") as file:
            file.truncate(24)
            self.numbers = memoryview(mmap.mmap(file.fileno(), 24)).cast("d")


def _open_counter():
    global _counter
    _counter = _Counter()


_numbers = itertools.count()
_open_counter()
os.register_at_fork(after_in_child=_open_counter)


def noop():
    """The handler that only counts."""
    _count(time.monotonic())


def _count(started):
    numbers = _counter.numbers
    if not numbers[0]:
        numbers[1] = started
    numbers[2] = time.monotonic()
    numbers[0] += 1


def stamp(sent):
    """The handler that records the latency of its job. It is not counted."""
    now = time.monotonic()
    with (FOLDER / f"pickup-{os.getpid()}").open("a") as file:
        file.write(f"{now - sent}\n")


def sleep(milliseconds):
    """The plain handler that blocks its thread, but not the interpreter."""
    started = time.monotonic()
    time.sleep(milliseconds / 1000)
    _count(started)


def burn(milliseconds):
    """The handler that computes."""
    started = time.monotonic()
    until = time.thread_time() + milliseconds / 1000
    while time.thread_time() < until:
        pass
    _count(started)


def fork_processes(processes, run):
    """Call `run` in this many processes, for peers without an option for it."""
    for _ in range(processes - 1):
        if os.fork() == 0:
            break  # the harness kills the whole process group
    run()


def execute(program, *arguments):
    """Replace this process by a command of the peer's environment, in the folder of these scripts."""
    here = Path(__file__).parent
    os.chdir(here)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])
    path = Path(sys.executable).parent / program
    os.execv(path, [str(path), *map(str, arguments)])


async def send_concurrently(send, job, arguments):
    """Send with 100 tasks, each of which awaits one call at a time."""
    rest = iter(arguments)

    async def send_next():
        for argument in rest:
            await send(job, argument)

    await asyncio.gather(*(send_next() for _ in range(CONCURRENCY)))


def stamps(count):
    for _ in range(count):
        # Blocks the event loop on purpose: nothing else is to run in it.
        time.sleep(random.uniform(*PICKUP_PAUSE))
        yield time.monotonic()


def payloads(job, count, size):
    if job in ("noop", "plain", "again", "doomed") or job.startswith("spread"):
        return ["x" * int(size)] * count
    return [float(size)] * count  # milliseconds


def main(*, worker, send, bulk=None, schedule=None, connect=None, **more):
    """Do what the command line says. `send(job, argument)`, `bulk(job, arguments)` and
    `schedule(job, arguments, at)` may be async or not. Without `bulk`, `send` serves for it. `more`
    are verbs that only this peer has, called as `bulk` is.
    """
    verb, *rest = sys.argv[1:]
    if verb == "worker":
        worker(int(rest[0]), rest[1])
        return

    async def one_at_a_time(job, arguments):
        for argument in arguments:
            await send(job, argument)

    def one_at_a_time_sync(job, arguments):
        for argument in arguments:
            send(job, argument)

    is_async = inspect.iscoroutinefunction(send)
    single = one_at_a_time if is_async else one_at_a_time_sync

    async def concurrent(job, arguments):
        await send_concurrently(send, job, arguments)

    ways = {
        "bulk": bulk or (concurrent if is_async else single),
        "concurrent": concurrent,
        "single": single,
        **more,
    }

    async def produce():
        if connect is not None:
            await _finish(connect())
        if verb == "schedule":
            jobs = int(rest[0])
            return await timed(schedule, "noop", payloads("noop", jobs, 100), float(rest[1])), jobs
        if verb == "pickup":
            return await timed(single, "stamp", stamps(int(rest[0]))), int(rest[0])
        job, count, size = rest[0], int(rest[1]), rest[2]
        warm_up = WARM_UP if job in ("noop", "plain") else 0
        await _finish(ways[verb](job, payloads(job, warm_up, size)))
        return await timed(ways[verb], job, payloads(job, count, size)), count + warm_up

    async def timed(work, *arguments):
        began = time.monotonic()
        await _finish(work(*arguments))
        return time.monotonic() - began

    seconds, jobs = _run(produce())
    print(json.dumps({"seconds": seconds, "jobs": jobs}))
    sys.stdout.flush()
    os._exit(0)  # some clients are slow to close, and some log errors


async def _finish(result):
    if inspect.isawaitable(result):
        await result


def _run(work):
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)
