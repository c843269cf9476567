"""The processes of one measurement: producers and a worker, and the files they report into."""

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.bench_server import CORES, BenchServer
from benchmarks.harness.environment import PEERS

RUN_TIMEOUT = float(os.environ.get("BENCH_RUN_TIMEOUT", "60"))  # seconds for one run
STOP_TIMEOUT = 3.0  # seconds between SIGTERM and SIGKILL of a worker


class RunFailed(Exception):
    """A worker or producer failed or was too slow. The message ends with its output."""


@dataclass(frozen=True)
class Tally:
    """What the handlers of all processes have counted so far. Times are `time.monotonic()`."""

    jobs: int
    first: float
    """Start of the first job."""
    last: float
    """End of the last job."""

    @property
    def speed(self) -> float:
        """Jobs per second."""
        return self.jobs / max(self.last - self.first, 1e-9)


class Bench:
    """A competitor's processes, on one server, with one folder for their reports."""

    def __init__(
        self,
        name: str,
        command: Callable[..., list[str]],
        environment: Mapping[str, str],
        server: BenchServer,
        folder: Path,
        pinned: bool,
    ) -> None:
        self.name, self.server, self.folder = name, server, folder
        self._command = command
        self._environment = {
            **environment, "BENCH_URL": server.url, "BENCH_FOLDER": str(folder),
        }  # fmt: skip
        # Every core but the server's. Child processes inherit it.
        cores = ",".join(map(str, CORES[1:]))
        self._prefix = ["taskset", "-c", cores] if pinned and len(CORES) > 1 else []

    def _spawn(self, command: list[str], output: Any, errors: Any) -> Any:
        return subprocess.Popen(
            [*self._prefix, *command],
            env=self._environment,
            cwd=PEERS,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )

    def produce(self, *arguments: object) -> dict[str, Any]:
        """Run a verb of the competitor's script to its end. Returns the JSON it printed."""
        return self._run(self._command(*arguments))

    def run_python(self, *arguments: object) -> dict[str, Any]:
        """Run Python with the code of this competitor. Returns the JSON it printed."""
        return self._run([sys.executable, *map(str, arguments)])

    def _run(self, command: list[str]) -> dict[str, Any]:
        process = self._spawn(command, subprocess.PIPE, subprocess.PIPE)
        try:
            printed, errors = process.communicate(timeout=RUN_TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            printed, errors = process.communicate()
        if process.returncode:
            raise RunFailed(f"{self.name}: {' '.join(command)}: {errors.decode()[-2000:]}")
        return json.loads(printed.decode().splitlines()[-1])

    @contextmanager
    def worker(self, processes: int, kind: str) -> Generator[Any]:
        """Run the competitor's worker while the block runs. Yields its process."""
        with (self.folder / "log").open("wb") as log:
            process = self._spawn(self._command("worker", processes, kind), log, log)
        try:
            yield process
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT)
            with suppress(ProcessLookupError):  # its orphans, or the worker itself
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

    def wait_for_jobs(self, jobs: int, process: Any) -> Tally:
        """Wait until the worker `process` has run this many jobs."""
        self._wait(lambda: self.tally().jobs, jobs, process)
        return self.tally()

    def _wait(self, done: Callable[[], int], jobs: int, process: Any) -> None:
        deadline = time.monotonic() + RUN_TIMEOUT
        while done() < jobs:
            if process.poll() is not None or time.monotonic() > deadline:
                log = (self.folder / "log").read_text(errors="replace")[-2000:]
                raise RunFailed(f"{self.name} did {done()} of {jobs} jobs:\n{log}")
            time.sleep(0.01)

    def measure_pickups(self, jobs: int, process: Any) -> list[float]:
        """Send jobs one at a time, with pauses. Returns the latency of each, in seconds."""
        seen = len(self._latencies())
        self.produce("pickup", jobs)
        self._wait(lambda: len(self._latencies()) - seen, jobs, process)
        return self._latencies()[seen:]

    def warm_up(self, process: Any) -> None:
        """Wait until the worker has run a first job, which is not counted, and is idle again."""
        self.measure_pickups(1, process)
        time.sleep(0.5)

    def _latencies(self) -> list[float]:
        lines = [path.read_text().split() for path in self.folder.glob("pickup-*")]
        return [float(seconds) for found in lines for seconds in found]
