"""Real workers for tests: `queasy worker` in processes of its own, and the journal of its jobs."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from queasy import SyncClient
from queasy.sync import SyncQueue
from tests.conftest import audit_all
from tests.servers import Server, wait_until

ROOT = Path(__file__).parents[2]
APP = "tests.worker.app:client"
# For slow tests of processes, which do not depend on the kind of server.
ON_ONE_SERVER = pytest.mark.parametrize("kind", ["any"], indirect=True)


class Journal:
    """The lines that the handlers of tests.worker.app wrote."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def lines(self, event: str | None = None, **fields: Any) -> list[dict[str, Any]]:
        """The matching lines; a line that is half written is left out."""
        raw = self.path.read_bytes().split(b"\n")[:-1]
        found = [json.loads(line) for line in raw]
        wanted = {**({"event": event} if event else {}), **fields}
        return [line for line in found if wanted.items() <= line.items()]

    def wait_for(
        self, event: str, count: int = 1, *, seconds: float = 30.0, **fields: Any
    ) -> list[dict[str, Any]]:
        """Waits until `count` lines match; returns them."""
        what = f"{count} x {event} {fields} in the journal"
        wait_until(lambda: len(self.lines(event, **fields)) >= count, what, seconds)
        return self.lines(event, **fields)


class Running:
    """One `queasy worker`."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def events(self, what: str) -> list[str]:
        """The lines of its log with this event."""
        return re.findall(rf"^.*queasy\.worker: {re.escape(what)}(?: .*)?$", self.log, re.M)

    def wait_until_serving(self, children: int, seconds: float = 30.0) -> "Running":
        wait_until(
            lambda: (
                self.process.poll() is not None
                or len(self.events("process_serving")) >= children
                or (not children and bool(self.events("worker_started")))
            ),
            f"{children} children serve",
            seconds,
        )
        assert self.process.poll() is None, self.log
        return self

    def children(self) -> list[int]:
        """The process ids of its live children."""
        return [pid for pid in children_of(self.pid) if alive(pid)]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self, seconds: float = 60.0) -> int:
        """Stops it as an operator does; returns its exit code."""
        self.signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def children_of(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    with suppress(OSError):
        return [int(word) for word in path.read_text().split()]
    return []


def alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    return state_of(pid) not in (b"", b"Z")


def is_stopped(pid: int) -> bool:
    return state_of(pid) == b"T"


def state_of(pid: int) -> bytes:
    """The kernel's letter for the state of a process; empty if it does not exist."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    return b""


def wait_until_gone(pids: Iterable[int], seconds: float) -> None:
    pids = list(pids)
    wait_until(lambda: not any(map(alive, pids)), f"processes {pids} are gone", seconds)


class Fleet:
    """Starts workers on one server, under one prefix, and kills those left at the end."""

    def __init__(self, url: str, prefix: str, folder: Path) -> None:
        self.journal = Journal(folder / "journal")
        self._folder = folder
        self.environment = {
            **os.environ,
            "TEST_URL": url,
            "TEST_PREFIX": prefix,
            "TEST_JOURNAL": str(self.journal.path),
            "PYTHONWARNINGS": "error",
        }
        self._running: list[Running] = []

    def start(
        self, *options: str, app: str = APP, folder: Path = ROOT, output: int | None = None
    ) -> Running:
        """`queasy worker` with these options; does not wait for it. It writes to its log, or to
        the file descriptor `output`.
        """
        log = self._folder / f"worker-{len(self._running)}.log"
        with log.open("wb") as file:
            output = file.fileno() if output is None else output
            process = subprocess.Popen(
                [sys.executable, "-m", "queasy", "worker", app, *options],
                cwd=folder, env=self.environment, stdout=output, stderr=output,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        running = Running(process, log)
        self._running.append(running)
        return running

    def serve(
        self, *options: str, processes: int = 2, app: str = APP, folder: Path = ROOT
    ) -> Running:
        """Starts a worker, and waits until all its processes serve."""
        running = self.start("--processes", str(processes), *options, app=app, folder=folder)
        return running.wait_until_serving(processes)

    def logs(self) -> str:
        """The logs of its workers."""
        return "\n".join(f"--- {r.process.args!r}\n{r.log}" for r in self._running)

    def end(self) -> None:
        for running in self._running:
            children = running.children()
            if running.process.poll() is None:
                running.signal(signal.SIGCONT)
                running.kill()
            for pid in children:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)  # including subprocesses of its handlers


@contextmanager
def fleet_on(url: str, prefix: str, folder: Path) -> Generator[Fleet]:
    fleet = Fleet(url, prefix, folder)
    try:
        yield fleet
    finally:
        fleet.end()


def elapsed(action: Callable[[], object]) -> float:
    start = time.monotonic()
    action()
    return time.monotonic() - start


def totals(queue: SyncQueue) -> dict[str, int]:
    """The counters of a queue, of all time."""
    return {stat.kind: stat.count for stat in queue.stats() if stat.minute is None}


Scene = Callable[[Fleet, SyncClient], None]
Played = dict[str, "Future[None]"]


class Together:
    """Runs the tests of a module that mostly wait in parallel, each with a fleet and a prefix of
    its own. The first test takes as long as the longest; the others take no time.
    """

    def __init__(self) -> None:
        self._scenes: dict[str, Scene] = {}

    def __call__(self, scene: Scene) -> Callable[[Played], None]:
        self._scenes[scene.__name__] = scene

        def test(played: Played) -> None:
            played[scene.__name__].result()

        return test

    def of(self, **cases: Any) -> Callable[[Callable[[Fleet, SyncClient, Any], None]], Any]:
        """A test with several cases."""

        def decorate(scene: Callable[[Fleet, SyncClient, Any], None]) -> Any:
            for name, case in cases.items():
                self._scenes[f"{scene.__name__}-{name}"] = partial(scene, case=case)

            @pytest.mark.parametrize("case", cases)
            def test(played: Played, case: str) -> None:
                played[f"{scene.__name__}-{case}"].result()

            return test

        return decorate

    @contextmanager
    def playing(self, request: pytest.FixtureRequest, server: Server) -> Generator[Played]:
        """Runs the scenes of the selected tests."""
        folders: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
        asked = tuple(item.originalname for item in request.session.items)  # type: ignore[attr-defined]
        scenes = {n: scene for n, scene in self._scenes.items() if n.partition("-")[0] in asked}
        with ThreadPoolExecutor(len(scenes)) as pool:
            yield {
                name: pool.submit(_play, scene, server, folders.mktemp("fleet"))
                for name, scene in scenes.items()
            }


def _play(scene: Scene, server: Server, folder: Path) -> None:
    prefix = f"t{os.getpid()}-{folder.name}"
    with (
        SyncClient(server.url, prefix=prefix) as client,
        fleet_on(server.url, prefix, folder) as fleet,
    ):
        try:
            scene(fleet, client)
        except BaseException as problem:
            problem.add_note(fleet.logs())
            raise
    audit_all(server, prefix)
