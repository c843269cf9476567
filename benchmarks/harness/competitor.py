"""One who is measured: its script, its producers and its workers."""

import json
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.bench_server import CORES, BenchServer
from benchmarks.harness.environment import PEERS, head, interpreter

PATIENCE = float(os.environ.get("BENCH_PATIENCE", "60"))  # seconds for one run
SLOWEST = 3.0  # seconds a worker has to end by itself


class Gone(Exception):
    """A worker or producer that did not do what it was to do; with what it wrote."""


@dataclass(frozen=True)
class Tally:
    """What handlers noted until now, in all processes: by `time.monotonic()`."""

    jobs: int
    first: float
    last: float

    @property
    def speed(self) -> float:
        return self.jobs / max(self.last - self.first, 1e-9)


class Competitor:
    def __init__(self, script: Path, **environment: str) -> None:
        found = head(script)
        self.script = script
        self.about: dict[str, Any] = found["tool"]["bench"]
        self.name: str = self.about["name"]
        self.dependencies: list[str] = found["dependencies"]
        self._environment = environment
        self._interpreter: list[str] = []

    def variant(self, **environment: str) -> "Competitor":
        """The same with other settings."""
        other = Competitor(self.script, **environment)
        other.set_up()
        return other

    def set_up(self) -> None:
        self._interpreter = interpreter(self.script, self.dependencies)

    def can(self, workload: str) -> bool:
        return workload not in self.about.get("cannot", {})

    def jobs(self, scale: float) -> int:
        """How many make a drain of a few seconds."""
        return max(int(self.about["jobs"] * scale), 20)

    def enqueues(self, scale: float) -> int:
        return max(int(self.about.get("enqueues", 5000) * scale), 20)

    @contextmanager
    def at(self, server: BenchServer, pinned: bool = False) -> Generator["Bench"]:
        """A bench with an empty server and an empty folder; nothing is left of either."""
        folder = Path(tempfile.mkdtemp(prefix="queasy-bench-"))
        server.flush()
        server.pin(pinned)
        try:
            yield Bench(self, server, folder, pinned)
        finally:
            server.pin(False)
            server.flush()
            shutil.rmtree(folder, ignore_errors=True)

    def command(self, *arguments: object) -> list[str]:
        return [*self._interpreter, str(self.script), *map(str, arguments)]

    @property
    def environment(self) -> dict[str, str]:
        """Ours; but a peer has the packages of its own environment only."""
        ours = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return (ours if self.dependencies else dict(os.environ)) | self._environment


class Bench:
    """A competitor at work on a server."""

    def __init__(
        self, competitor: Competitor, server: BenchServer, folder: Path, pinned: bool
    ) -> None:
        self.competitor, self.server, self.folder = competitor, server, folder
        self._pinned = pinned and len(CORES) > 1
        self._environment = {
            **competitor.environment,
            "BENCH_URL": server.url,
            "BENCH_FOLDER": str(folder),
        }

    def _spawn(self, arguments: tuple[object, ...], output: Any, errors: Any) -> Any:
        # All but the server's core; inherited by whatever it starts.
        prefix = ["taskset", "-c", ",".join(map(str, CORES[1:]))] if self._pinned else []
        return subprocess.Popen(
            [*prefix, *self.competitor.command(*arguments)],
            env=self._environment,
            cwd=PEERS,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )

    def produce(self, *arguments: object) -> dict[str, Any]:
        """Runs a verb of the script to its end; what it printed."""
        process = self._spawn(arguments, subprocess.PIPE, subprocess.PIPE)
        try:
            printed, errors = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            printed, errors = process.communicate()
        if process.returncode:
            raise Gone(f"{self.competitor.name} {arguments}: {errors.decode()[-2000:]}")
        return json.loads(printed.decode().splitlines()[-1])

    @contextmanager
    def worker(self, processes: int, kind: str) -> Generator[Any]:
        """Its worker, while the block runs. Yields the process."""
        with (self.folder / "log").open("wb") as log:
            process = self._spawn(("worker", processes, kind), log, log)
        try:
            yield process
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(SLOWEST)
            with suppress(ProcessLookupError):  # those it has left behind, or itself
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def tally(self) -> Tally:
        found = [
            struct.unpack("3d", numbers)
            for path in self.folder.glob("tally-*")
            if len(numbers := path.read_bytes()) == 24 and struct.unpack("3d", numbers)[0]
        ]
        if not found:
            return Tally(0, 0.0, 0.0)
        jobs, first, last = zip(*found, strict=True)
        return Tally(int(sum(jobs)), min(first), max(last))

    def wait(self, jobs: int, process: Any) -> Tally:
        """Until so many are done."""
        self._until(lambda: self.tally().jobs, jobs, process)
        return self.tally()

    def _until(self, done: Callable[[], int], jobs: int, process: Any) -> None:
        deadline = time.monotonic() + PATIENCE
        while done() < jobs:
            if process.poll() is not None or time.monotonic() > deadline:
                log = (self.folder / "log").read_text(errors="replace")[-2000:]
                raise Gone(f"{self.competitor.name} did {done()} of {jobs} jobs:\n{log}")
            time.sleep(0.01)

    def stamped(self, jobs: int, process: Any) -> list[float]:
        """Sends so many now and then, and waits for them; seconds each was on its way."""
        seen = len(self.pickups())
        self.produce("pickup", jobs)
        self._until(lambda: len(self.pickups()) - seen, jobs, process)
        return self.pickups()[seen:]

    def warm(self, process: Any) -> None:
        """Until the worker has run a first job, which is not counted, and is idle again."""
        self.stamped(1, process)
        time.sleep(0.5)

    def pickups(self) -> list[float]:
        """Seconds each stamped job was on its way."""
        lines = [path.read_text().split() for path in self.folder.glob("pickup-*")]
        return [float(seconds) for found in lines for seconds in found]


def competitors(names: list[str]) -> list[Competitor]:
    """Queasy, and the peers of these names (of their files); all with `all`."""
    found = {script.stem.removeprefix("with_"): script for script in sorted(PEERS.glob("with_*"))}
    chosen = [name for name in found if name != "queasy"] if "all" in names else names
    if unknown := set(chosen) - set(found):
        raise ValueError(f"expected peers among {', '.join(found)}, got {', '.join(unknown)}")
    return [Competitor(found[name]) for name in ["queasy", *chosen]]
