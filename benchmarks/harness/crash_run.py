"""One round of a crash: a system at work on a server of its own, SIGKILL, and what follows."""

from __future__ import annotations

import base64
import binascii
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor, RunFailed
from benchmarks.harness.crash_events import Outcome, finished, measure, parse, running
from benchmarks.harness.environment import PEERS, interpreter, script_metadata

JOBS = 20
AT_ONCE = 10  # jobs that each system runs at the same time
TRAFFIC = 5  # other jobs a second, before and after the kill: some systems recover on traffic
SETTLING = 5.0  # seconds for the processes of a pool to start
PARTIAL = 0.6  # seconds after the first start: by then at most this part of a job is done
AFTERWARDS = 3.0  # seconds to wait for second runs when all jobs have ended
PATIENCE = 60.0
TICK = 0.02
MARK = "CRASH_SYSTEM"  # the environment variable that all processes of a system inherit

PROCESS, HOST = "process", "host"

stopping = threading.Event()  # when set, rounds end at once and kill what they started


class System:
    """A queue system with its settings for crashes: the script `crash_x`."""

    def __init__(self, script: Path) -> None:
        self.script = script
        self.about: dict[str, str] = script_metadata(script)["tool"]["crash"]
        self._peer = Competitor(PEERS / script.name.replace("crash_", "with_"))
        self.name = self._peer.name
        self.packages: list[str] = self._peer.dependencies
        self.environment = self._peer.environment
        self._interpreter: list[str] = []

    def set_up(self) -> None:
        self._interpreter = interpreter(self._peer.script, self._peer.dependencies)

    def command(self, *arguments: object) -> list[str]:
        return [*self._interpreter, str(self.script), *map(str, arguments)]


def systems(names: list[str]) -> list[System]:
    """Queasy, and the peers with these names; every peer with `all`."""
    scripts = {
        script.stem.removeprefix("crash_"): script
        for script in sorted(PEERS.glob("crash_*"))
        if script.stem != "crash_kit"
    }
    chosen = [name for name in scripts if name != "queasy"] if "all" in names else names
    if unknown := set(chosen) - set(scripts):
        known = ", ".join(scripts)
        raise ValueError(f"expected peers among {known}, got {', '.join(sorted(unknown))}")
    return [System(scripts[name]) for name in ["queasy", *chosen]]


class Fleet:
    """The processes of one system: the one that was started, and all that came from it."""

    def __init__(self, system: System, server: BenchServer, folder: Path) -> None:
        self._system, self._folder = system, folder
        self._environment = {
            **system.environment,
            "BENCH_URL": server.url,
            "BENCH_FOLDER": str(folder),
        }
        self._log = (folder / "log").open("ab")
        self._top = self._spawn_worker()

    def _spawn(self, arguments: tuple[object, ...], **environment: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._system.command(*arguments),
            env=self._environment | environment,
            cwd=PEERS,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def _spawn_worker(self) -> subprocess.Popen[bytes]:
        return self._spawn(("worker",), **{MARK: str(self._folder)})

    def restart_if_over(self) -> bool:
        """Starts the system again if its first process has ended, as a service manager does."""
        if self._top.poll() is None:
            return False
        self._top = self._spawn_worker()
        return True

    def pids(self) -> list[int]:
        """All processes of the system, the first one first."""
        mark = f"{MARK}={self._folder}".encode()
        found: list[int] = []
        for process in Path("/proc").iterdir():
            with suppress(OSError):
                if process.name.isdigit() and mark in (process / "environ").read_bytes():
                    found.append(int(process.name))
        return sorted(found, key=lambda pid: (pid != self._top.pid, pid))

    def kill_all(self) -> list[int]:
        """Kills every process of the system, and those that were started meanwhile."""
        killed: list[int] = []
        while pids := self.pids():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed += pids
            self._top.poll()  # a process that was not waited for would stay in the list
            time.sleep(0.01)
        return killed

    def produce(self, *arguments: object) -> None:
        """Runs a verb of the script to its end."""
        process = self._spawn(arguments)
        try:
            status = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        if status:
            raise RunFailed(f"{self._system.name} {arguments}: {self.log()}")

    @contextmanager
    def traffic(self, seconds: float) -> Generator[None]:
        process = self._spawn(("traffic", seconds, TRAFFIC))
        try:
            yield
        finally:
            process.kill()
            process.wait()

    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")[-2000:]

    def close(self) -> None:
        self.kill_all()
        self._top.wait()
        self._log.close()


def crash(system: System, scenario: str, server: BenchServer, window: float) -> Outcome:
    """One round: the jobs start, the worker process or the whole system is killed, and all is
    observed until every job has ended, or until the window ends.
    """
    folder = Path(tempfile.mkdtemp(prefix="queasy-crash-"))
    events = folder / "events"
    events.touch()
    server.flush()
    fleet = Fleet(system, server, folder)
    try:
        _warm_up(fleet, events)
        with fleet.traffic(window + 2 * PATIENCE):
            return _interrupt(fleet, scenario, server, window, events)
    finally:
        fleet.close()
        server.flush()
        shutil.rmtree(folder, ignore_errors=True)


def _warm_up(fleet: Fleet, events: Path) -> None:
    """Until the system has run a first job, and its other processes have started."""
    fleet.produce("send", "warm", 1)
    _until(lambda: finished(parse(events.read_text(), {"warm-00"})), "a first job ends", fleet)
    stopping.wait(SETTLING)


def _until(condition: Callable[[], Any], what: str, fleet: Fleet) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        _check_stopping()
        if time.monotonic() > deadline:
            raise RunFailed(f"expected within {PATIENCE:g} s: {what}\n{fleet.log()}")
        time.sleep(TICK)


def _check_stopping() -> None:
    if stopping.is_set():
        raise RunFailed("stopped before its end")


def _interrupt(
    fleet: Fleet, scenario: str, server: BenchServer, window: float, events: Path
) -> Outcome:
    prefix = f"job-{os.urandom(4).hex()}"  # found again in what the server stores
    jobs = {f"{prefix}-{number:02}" for number in range(JOBS)}
    fleet.produce("send", prefix, JOBS)

    def runs() -> list[Any]:
        return parse(events.read_text(), jobs)

    def have_started() -> bool:
        found = running(runs())
        if len(found) >= AT_ONCE:
            return True
        return bool(found) and time.monotonic() - found[0].started > PARTIAL

    _until(have_started, "jobs start", fleet)
    at = time.monotonic()
    if scenario == HOST:
        killed = fleet.kill_all()
    else:
        killed = sorted({run.pid for run in running(runs())})
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
    _observe(fleet, lambda: finished(runs()) == jobs, at + window)
    fleet.kill_all()  # a worker that moves a job during the search could hide it
    return measure(runs(), jobs, killed, at, kept_jobs(server, jobs))


def _observe(fleet: Fleet, is_over: Callable[[], bool], deadline: float) -> None:
    while time.monotonic() < deadline:
        _check_stopping()
        fleet.restart_if_over()
        if is_over():
            time.sleep(AFTERWARDS)
            return
        time.sleep(TICK)


def kept_jobs(server: BenchServer, jobs: Collection[str]) -> set[str]:
    """Those of the jobs that occur, by their ids, in anything that the server stores."""
    stored = b"\n".join(text for value in _values(server) for text in _readings(value))
    return {job for job in jobs if job.encode() in stored}


def _values(server: BenchServer) -> Iterator[bytes]:
    """Every value on the server, in parts."""
    client: Any = server.redis
    readers: dict[bytes, Callable[[bytes], Any]] = {
        b"string": client.get,
        b"hash": client.hgetall,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"set": client.smembers,
        b"zset": lambda key: client.zrange(key, 0, -1),
        b"stream": client.xrange,
        b"none": lambda key: None,  # the key has expired since the scan saw it
    }
    for key in client.scan_iter():
        yield from _parts(readers[client.type(key)](key))


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _parts(part)
    elif isinstance(value, list | tuple | set):
        for part in value:
            yield from _parts(part)


def _readings(value: bytes) -> Iterator[bytes]:
    """A value as it is, decompressed (RQ compresses), and with its base64 decoded (Celery)."""
    yield value
    with suppress(zlib.error):
        yield zlib.decompress(value)
    for word in re.findall(rb"[A-Za-z0-9+/]{24,}={0,2}", value):
        with suppress(binascii.Error):
            yield base64.b64decode(word)
