"""Measures what a crash costs: a process dies with a hundred jobs in flight, and some are to blame.

Two processes. One has all its capacity in use by jobs of two seconds, the other is kept busy until
the crash. Some of the jobs are poisons, which kill their process a tenth of a second after they
start. Prints how long the other jobs, the innocent, take from the crash until half of them and all
of them have ended; how many processes died; when the last one died, and how many stalls each poison
had when it was given up.

    python -m benchmarks.suspects
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from queasy import Client, Job, SyncClient
from queasy.store.embedded.server import ensure

PREFIX = "bench-suspects"
RUN_SECONDS = 2.0
POISON_SECONDS = 0.1
CAPACITY = 100
MAX_STALLS = 3


class Scenario(msgspec.Struct, frozen=True):
    """Jobs that fill one process: how many in each queue, and their size there."""

    name: str
    queues: dict[str, int]
    poisons: int

    @property
    def jobs(self) -> list[tuple[str, str]]:
        """Queue and id of each, in turns."""
        numbered = [(n, queue) for queue, count in self.queues.items() for n in range(count)]
        return [(queue, f"{queue}-{n}") for n, queue in sorted(numbered)]

    @property
    def guilty(self) -> set[str]:
        """The ids of the poisons, at equal distances."""
        jobs = self.jobs
        places = [(2 * n + 1) * len(jobs) // (2 * self.poisons) for n in range(self.poisons)]
        return {jobs[place][1] for place in places}


# The handler of each queue, by the size of its jobs.
SIZES = {"one": 1, "also-one": 1, "two": 2, "four": 4}
FILLS = {
    "one queue": {"one": 100},
    "two queues": {"one": 50, "also-one": 50},
    "three sizes": {"one": 40, "two": 20, "four": 5},
}
SCENARIOS = [
    Scenario(name, queues, poisons) for name, queues in FILLS.items() for poisons in (1, 3)
]

# This file is also the application that the workers load.
if "BENCH_JOURNAL" in os.environ:
    client = Client(os.environ["BENCH_URL"], prefix=PREFIX)
    JOURNAL = os.open(os.environ["BENCH_JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    CRASH = Path(os.environ["BENCH_CRASH"])

    def is_over() -> bool:
        """Whether the time before the crash is over."""
        return CRASH.exists()

    def note(event: str, job: Job) -> None:
        line = f"{event} {job.id} {os.getpid()} {time.monotonic()}\n"
        os.write(JOURNAL, line.encode())

    async def run(data: str, job: Job) -> None:
        """The first run lasts until the crash."""
        note("start", job)
        first = not is_over()
        while not is_over():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        if data == "poison":
            await asyncio.sleep(POISON_SECONDS)
            note("die", job)
            os._exit(1)
        await asyncio.sleep(60 if first and data != "filler" else RUN_SECONDS)
        note("end", job)

    for queue, size in SIZES.items():
        client.queue(queue).handler(size=size, max_stalls=MAX_STALLS)(run)
    client.queue("filler").handler(size=CAPACITY)(run)


class Line(msgspec.Struct, frozen=True):
    event: str
    id: str
    pid: int
    at: float


class Journal:
    def __init__(self, path: Path) -> None:
        self._path = path

    def lines(self, event: str) -> list[Line]:
        found: list[Line] = []
        for text in self._path.read_text().splitlines() if self._path.exists() else []:
            name, id_, pid, at = text.split()
            if name == event:
                found.append(Line(name, id_, int(pid), float(at)))
        return found


def wait_until(condition: object, window: float, what: str) -> None:
    assert callable(condition)
    give_up_at = time.monotonic() + window
    while not condition():
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"not within {window:g} s: {what}")
        time.sleep(0.02)


@contextmanager
def worker(url: str, folder: Path) -> Iterator[None]:
    environment = {
        **os.environ,
        "BENCH_URL": url,
        "BENCH_JOURNAL": str(folder / "journal"),
        "BENCH_CRASH": str(folder / "crash"),
    }
    command = [sys.executable, "-m", "queasy", "worker", f"{Path(__file__)}:client"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--processes", "2", "--grace", "0"], env=environment, stderr=log
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def measure(scenario: Scenario, url: str, folder: Path, window: float) -> str:
    """One line of the table."""
    journal, guilty = Journal(folder / "journal"), scenario.guilty
    innocent = {id_ for _, id_ in scenario.jobs} - guilty
    with SyncClient(url, prefix=PREFIX) as client, worker(url, folder):
        client.queue("filler").dispatch("filler", id="filler")
        wait_until(lambda: journal.lines("start"), 30, "one process is kept busy")
        for queue, id_ in scenario.jobs:
            client.queue(queue).dispatch("poison" if id_ in guilty else "", id=id_)
        wait_until(lambda: len(journal.lines("start")) > len(scenario.jobs), 60, "all jobs run")
        (folder / "crash").touch()
        wait_until(lambda: journal.lines("die"), 5, "the process died")
        crash = journal.lines("die")[0].at

        def left() -> set[str]:
            return innocent - {line.id for line in journal.lines("end")}

        def failed() -> dict[str, int]:
            queues = [client.queue(queue) for queue in scenario.queues]
            return {job.id: job.stall_count for one in queues for job in one.jobs("failed")}

        problem = ""
        try:
            wait_until(lambda: not left() and failed().keys() >= guilty, window, "all have ended")
        except TimeoutError:
            problem = f"{len(left())} innocent left after {window:g} s; "
        given_up = failed()
    ends = sorted(line.at - crash for line in journal.lines("end") if line.id in innocent)
    dies = journal.lines("die")
    starts = [line.id for line in journal.lines("start")]
    runs = max(starts.count(id_) for id_ in innocent)
    half = f"{ends[len(innocent) // 2]:.1f} s" if len(ends) > len(innocent) // 2 else "-"
    stalls = ", ".join(str(given_up.get(id_, "-")) for id_ in sorted(guilty))
    wrong = sorted(innocent & given_up.keys())
    return (
        f"| {scenario.name} | {len(scenario.jobs)} | {scenario.poisons} | {half} "
        f"| {problem}{f'{ends[-1]:.1f} s' if ends else '-'} | {runs} "
        f"| {len({line.pid for line in dies})} | {dies[-1].at - crash:.1f} s | {stalls} "
        f"| {len(wrong)} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suspects", description=__doc__)
    parser.add_argument("--window", type=float, default=200.0, help="seconds after the crash")
    parser.add_argument("--only", default="", help="the name of one scenario")
    parser.add_argument("--poisons", type=int, default=0, help="only scenarios with so many")
    options = parser.parse_args()
    print(
        "| jobs | in flight | poisons | half of the innocent ended | all | most runs of one "
        "| deaths | last death | stalls of the poisons | innocent given up |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|---|---:|"
    )
    for scenario in SCENARIOS:
        wanted = options.only in ("", scenario.name)
        if wanted and options.poisons in (0, scenario.poisons):
            with tempfile.TemporaryDirectory() as folder:
                server = ensure(Path(folder) / "server")
                print(measure(scenario, server, Path(folder), options.window), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
