"""What the scripts of all peers share. Standard library only: it runs in every environment.

A peer's script is the application that its workers load, and a program of its own:

    with_x.py worker PROCESSES KIND         becomes the worker; KIND: drain, pickup, burst or cpu
    with_x.py bulk JOB COUNT BYTES          jobs by the fastest way there is
    with_x.py concurrent JOB COUNT BYTES    a hundred awaited at once
    with_x.py single JOB COUNT BYTES        one awaited after the other
    with_x.py pickup COUNT                  one now and then; each carries the time it was sent
    with_x.py schedule COUNT AT             jobs all due at one instant (time.time)

JOB is one of the three handlers: noop, stamp, burn. A producer prints one line of JSON: the
seconds it took, with a connection that was open before, and how many jobs it has put there.
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
AT_ONCE = 100
WARM = 100  # jobs sent before the clock starts: connections are open, code is loaded
GAPS = (0.01, 0.04)  # seconds between two jobs of `pickup`


# What handlers do. Each thread has a file of three numbers that the harness reads while the
# worker runs: jobs done, start of the first, end of the last. Nothing of it costs a system call.


class _Slot(threading.local):
    def __init__(self):
        path = FOLDER / f"tally-{time.monotonic_ns()}-{os.getpid()}-{next(_numbers)}"
        with path.open("xb+") as file:
            file.truncate(24)
            self.numbers = memoryview(mmap.mmap(file.fileno(), 24)).cast("d")


def _begin():
    global _slot
    _slot = _Slot()


_numbers = itertools.count()
_begin()
os.register_at_fork(after_in_child=_begin)


def noop():
    """The handler that does nothing but count."""
    _count(time.monotonic())


def _count(started):
    numbers = _slot.numbers
    if not numbers[0]:
        numbers[1] = started
    numbers[2] = time.monotonic()
    numbers[0] += 1


def stamp(sent):
    """The handler that notes how long its job was on the way, and is not counted."""
    now = time.monotonic()
    with (FOLDER / f"pickup-{os.getpid()}").open("a") as journal:
        journal.write(f"{now - sent}\n")


def burn(milliseconds):
    """The handler that computes."""
    started = time.monotonic()
    until = time.thread_time() + milliseconds / 1000
    while time.thread_time() < until:
        pass
    _count(started)


def copies(processes, run):
    """Runs it in so many processes, for peers that have no option for it."""
    for _ in range(processes - 1):
        if os.fork() == 0:
            break  # ended with the process group, as the first
    run()


def execute(program, *arguments):
    """Becomes a command of the peer's environment, in the folder of these scripts."""
    here = Path(__file__).parent
    os.chdir(here)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])
    path = Path(sys.executable).parent / program
    os.execv(path, [str(path), *map(str, arguments)])


async def lanes(send, job, arguments):
    """A hundred at once, each awaiting its own."""
    rest = iter(arguments)

    async def lane():
        for argument in rest:
            await send(job, argument)

    await asyncio.gather(*(lane() for _ in range(AT_ONCE)))


def stamps(count):
    for _ in range(count):
        # Blocks the loop, if there is one: nothing else is to run in it.
        time.sleep(random.uniform(*GAPS))
        yield time.monotonic()


def payloads(job, count, size):
    return [int(size)] * count if job == "burn" else ["x" * int(size)] * count


def main(*, worker, send, bulk=None, schedule=None, connect=None):
    """Does what the command line says. `send(job, argument)`, `bulk(job, arguments)` and
    `schedule(job, arguments, at)` may be async or not; without `bulk`, `send` is its best.
    """
    verb, *rest = sys.argv[1:]
    if verb == "worker":
        worker(int(rest[0]), rest[1])
        return

    async def in_turn(job, arguments):
        for argument in arguments:
            await send(job, argument)

    def in_turn_sync(job, arguments):
        for argument in arguments:
            send(job, argument)

    is_async = inspect.iscoroutinefunction(send)
    single = in_turn if is_async else in_turn_sync

    async def concurrent(job, arguments):
        await lanes(send, job, arguments)

    ways = {
        "bulk": bulk or (concurrent if is_async else single),
        "concurrent": concurrent,
        "single": single,
    }

    async def produce():
        if connect is not None:
            await _done(connect())
        if verb == "schedule":
            jobs = int(rest[0])
            return await timed(schedule, "noop", payloads("noop", jobs, 100), float(rest[1])), jobs
        if verb == "pickup":
            return await timed(single, "stamp", stamps(int(rest[0]))), int(rest[0])
        job, count, size = rest[0], int(rest[1]), rest[2]
        warm = WARM if job == "noop" else 0
        await _done(ways[verb](job, payloads(job, warm, size)))
        return await timed(ways[verb], job, payloads(job, count, size)), count + warm

    async def timed(work, *arguments):
        began = time.monotonic()
        await _done(work(*arguments))
        return time.monotonic() - began

    seconds, jobs = _run(produce())
    print(json.dumps({"seconds": seconds, "jobs": jobs}))
    sys.stdout.flush()
    os._exit(0)  # some clients take long to say goodbye, and some complain


async def _done(result):
    if inspect.isawaitable(result):
        await result


def _run(work):
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)
