"""Instructions that the server executes for one job life, counted by callgrind.

A job life is a dispatch, a lease and an outcome; each call handles 100 jobs. Instructions do not
depend on what else the machine does, so a difference of one percent is a difference in the code.

    python -m benchmarks.instructions --lua . --lua ../before --life finish --life fail

compares the Lua of two checkouts (`--lua` also takes a file that holds an assembled library).
Needs valgrind. The client is always the one of this checkout.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from queasy.job import JobError
from queasy.outcomes import Fail, Finish, Outcome, Release, RetryLater
from queasy.store import library
from queasy.store.commands import QueueCommands
from queasy.store.embedded.server import find_server
from queasy.store.keys import QueueKeys
from queasy.store.net.url import parse_url
from queasy.store.records import DispatchItem, Ending
from queasy.store.store import SyncStore

CALL = 100  # jobs in one call
WARM = 1000  # jobs before the count begins
STARTUP_SECONDS = 60.0
ERROR = JobError("ValueError", "expected a number, got 'x'")
LIVES: dict[str, tuple[list[Outcome], str]] = {  # how its leases end, and when it is to run
    "finish": ([Finish()], ""),
    "scheduled": ([Finish()], "+1"),
    "fail": ([Fail(ERROR)], ""),
    "retry": ([RetryLater(ERROR, after=3600)], ""),
    "retry and finish": ([RetryLater(ERROR, after=0), Finish()], ""),
    "release": ([Release()], ""),
}
SETTINGS = ("--save", "", "--appendonly", "no", "--hz", "1", "--dynamic-hz", "no", "--port", "0")


def source_of(place: Path) -> str:
    """The library of a checkout, or the one that a file holds."""
    if place.is_file():
        return place.read_text()
    spec = importlib.util.spec_from_file_location("lua", place / "src/queasy/store/library.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.source()


def server_binary(kind: str) -> str:
    found = find_server() if kind == "valkey" else shutil.which("redis-server")
    if found is None:
        raise SystemExit("expected redis-server in PATH")
    return str(found)


@contextmanager
def server_under_callgrind(kind: str, folder: Path) -> Generator[tuple[str, int]]:
    """A server, its address and its process id."""
    socket = folder / "server.sock"
    process = subprocess.Popen(
        [
            "valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out",
            "--instr-atstart=no", server_binary(kind), "--unixsocket", str(socket), *SETTINGS,
        ],
        cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + STARTUP_SECONDS
        while not socket.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{kind} did not start under valgrind")
            time.sleep(0.1)
        yield f"unix://{socket}", process.pid
    finally:
        process.kill()
        process.wait()


def control(pid: int, *options: str) -> None:
    subprocess.run(["callgrind_control", *options, str(pid)], check=True, capture_output=True)


def count_instructions(folder: Path) -> int:
    """What the dumps of this run add up to; removes them."""
    total = 0
    for dump in folder.glob("out*"):
        found = re.search(r"^(?:totals|summary): (\d+)", dump.read_text(), re.MULTILINE)
        total += int(found[1]) if found else 0
        dump.unlink()
    return total


def live(store: SyncStore, commands: QueueCommands, ids: range, life: str) -> None:
    """Dispatches a job for each number, then leases and ends them."""
    outcomes, when = LIVES[life]
    for first in ids[::CALL]:
        numbers = range(first, first + CALL)
        items = [DispatchItem(f"job-{n:08}", b'{"n":%d}' % n, when) for n in numbers]
        store.run(commands.dispatch(items))
    endings: list[Ending] = []
    calls = len(ids) // CALL
    for number in range(calls * len(outcomes) + 1):
        outcome = outcomes[min(number // calls, len(outcomes) - 1)]
        limit = CALL if number < calls * len(outcomes) else 0
        taken = store.run(
            commands.dequeue(
                "c", lease=600, limit=limit, request=f"{ids[0] + number}", endings=endings
            )
        )
        endings = [Ending(job.id, job.token, outcome) for job in taken.jobs]


def measure(kind: str, text: str, life: str, jobs: int) -> float:
    """Instructions for one job life."""
    library.source = functools.cache(lambda: text)
    found = re.search(r"local VERSION = \{ \d+, (\d+) \}", text)
    number = int(found[1]) if found else 0
    library.revision = functools.cache(lambda: number)
    with (
        tempfile.TemporaryDirectory() as name,
        server_under_callgrind(kind, Path(name)) as (url, pid),
    ):
        store = SyncStore(parse_url(url), timeout=60)
        commands = QueueCommands(QueueKeys("bench", "q"))
        store.run(commands.register("c", 600))
        store.run(commands.configure(fail_handler=True))
        live(store, commands, range(WARM), life)  # warm: tables have grown, counters exist
        control(pid, "-i", "on")
        live(store, commands, range(WARM, WARM + jobs), life)
        control(pid, "-d")
        store.close()
        return count_instructions(Path(name)) / jobs


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--lua", action="append", type=Path, help="a checkout or a file (default: .)"
    )
    parser.add_argument("--life", action="append", choices=LIVES, help="default: finish")
    parser.add_argument("--server", action="append", choices=["valkey", "redis"])
    parser.add_argument("--jobs", type=int, default=5000, help="a multiple of 100")
    args = parser.parse_args()
    for kind in args.server or ["valkey"]:
        for name in args.life or ["finish"]:
            first = None
            for place in args.lua or [Path()]:
                cost = measure(kind, source_of(place), name, args.jobs)
                first = first or cost
                print(
                    f"{kind} {name}: {cost:,.0f} instructions a job life, "
                    f"{cost / first:.3f} of the first ({place})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
