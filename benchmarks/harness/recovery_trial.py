"""One fleet of `benchmarks.recovery`: hosts of real processes on a server of their own.

In each round one host is lost: killed with all its processes, or frozen with its connections open.
The measure is when the jobs that it held, and those dispatched around the fault, run on another
host. If all other hosts are full, the measure is when the jobs wait in the queue again.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import RunFailed
from benchmarks.harness.recovery_shape import FULL, WAITING, Duty, Round, Shape
from benchmarks.ours.recovery_app import PREFIX, gate, own_queues, queue_name
from queasy import Dispatch, SyncClient

ROOT = Path(__file__).parents[2]
APP = ROOT / "benchmarks" / "ours" / "recovery_app.py"
PATIENCE = 60.0
TICK = 0.1
SHORT = "short"  # the data of jobs that end at once
AFTER_THAW = 3.0  # seconds in which a thawed host may report what must be refused

stopping = threading.Event()  # when set, trials end at once and kill what they started


@dataclass
class Measured:
    """One fault. Times are in seconds after it, or after the dispatch if that came later."""

    fault: str
    fleet: str
    queues: int
    number: int
    round: int
    lost: int = 0  # jobs that ran on the host
    worst: float = 0.0  # until the last job ran elsewhere, or waited again if all others are full
    late: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Start:
    job: str
    token: int
    host: str
    at: float
    ended: bool


class Host:
    """The processes that share one QUEASY_HOST, and are lost together."""

    def __init__(self, name: str, duty: Duty, processes: int, environment: dict[str, str]) -> None:
        self.name, self.duty, self.processes = name, duty, processes
        self.client_prefix = f"h{zlib.crc32(name.encode()):08x}-"
        self.own_queues = own_queues(name, 11 if duty == "backlogged" else 1)
        self._environment = {
            **environment,
            "QUEASY_HOST": name,
            "BENCH_OWN_QUEUES": str(len(self.own_queues)),
        }
        self._log = Path(environment["BENCH_FOLDER"]) / f"log-{name}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def has_room(self) -> bool:
        return self.duty in ("idle", "asleep", "consumers")

    def start(self, targets: list[str]) -> None:
        command = ["-m", "queasy", "worker", f"{APP}:client", "--processes", str(self.processes)]
        if self.duty == "elsewhere":
            command += ["--queue", *self.own_queues]
        elif self.duty == "consumers":
            command = ["-m", "benchmarks.ours.recovery_app", *targets]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, *command], cwd=ROOT, env=self._environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def serves(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RunFailed(f"host {self.name} ended: {self.log()}")
        if self.duty == "consumers":
            return "consuming" in self.log()
        return self.log().count("process_serving") >= self.processes

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def pids(self) -> list[int]:
        """The supervisor and its children."""
        if self._process is None:
            return []
        pid = self._process.pid
        with suppress(OSError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            return [pid, *map(int, children)]
        return [pid]

    def signal(self, number: signal.Signals) -> None:
        """Sends all its processes a signal, in one moment."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()


class Trial:
    def __init__(self, shape: Shape, seed: int, server: BenchServer, folder: Path) -> None:
        self.shape = shape
        self._dice = random.Random(f"{seed}:{shape.number}:choices")
        self._folder = folder
        self._client = SyncClient(server.url, prefix=PREFIX)
        environment = {
            **os.environ,
            "BENCH_URL": server.url,
            "BENCH_FOLDER": str(folder),
            "BENCH_QUEUES": str(shape.queues),
        }
        self._hosts = [
            Host(f"host-{n}", duty, shape.processes, environment)
            for n, duty in enumerate(shape.duties)
        ]
        picked = self._dice.sample(range(shape.queues), shape.targets)
        self._targets = [queue_name(number) for number in picked]
        self._queue_of: dict[str, str] = {}
        (folder / "journal").touch()

    # What happened

    def _starts(self) -> list[Start]:
        lines = (self._folder / "journal").read_text().split("\n")[:-1]
        words = [line.split() for line in lines]
        ended = {(job, token) for what, job, token, _, _ in words if what == "end"}
        return [
            Start(job, int(token), host, float(at), (job, token) in ended)
            for what, job, token, host, at in words
            if what == "start"
        ]

    def _until(self, condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(f"{host.name}: {host.log()[-200:]}" for host in self._hosts)
                raise RunFailed(f"expected within {seconds:g} s: {what}\n{logs}")
            self._pause(TICK)

    @staticmethod
    def _pause(seconds: float) -> None:
        if stopping.wait(seconds):
            raise RunFailed("stopped before its end")

    # The trial

    def run(self) -> list[Measured]:
        try:
            self._start_hosts()
            return [self._round(n, one) for n, one in enumerate(self.shape.rounds)]
        finally:
            for host in self._hosts:
                host.kill()
            self._client.close()

    def _start_hosts(self) -> None:
        workers = [host for host in self._hosts if host.duty != "consumers"]
        self._start(workers)
        for host in workers:
            gate(self._folder, host.name, SHORT).touch()
            if host.duty in ("asleep", *FULL):
                self._occupy(host)

    def _start(self, hosts: list[Host]) -> None:
        for host in hosts:
            host.start(self._targets)
        self._until(lambda: all(host.serves() for host in hosts), "hosts serve")

    def _occupy(self, host: Host) -> None:
        """Fills the host with long jobs; or lets it run short ones of a queue of its own."""
        jobs = [f"{host.name}-{n}" for n in range(host.processes)]
        if host.duty == "asleep":
            gate(self._folder, host.name, "own").touch()
        first, *others = host.own_queues
        for job in jobs:
            self._client.queue(first).dispatch("own", id=job)

        def occupied() -> bool:
            found = {start.job for start in self._starts() if start.ended or host.duty in FULL}
            return found >= set(jobs)

        self._until(occupied, f"{host.name} runs jobs of its own")
        for name in others:
            self._client.queue(name).dispatch("own")

    def _dispatch(self, what: str, jobs: int, at_once: bool = False) -> list[str]:
        first = len(self._queue_of)
        ids = [f"job-{first + n}" for n in range(jobs)]
        by_queue: dict[str, list[str]] = {}
        for one in ids:
            self._queue_of[one] = self._dice.choice(self._targets)
            by_queue.setdefault(self._queue_of[one], []).append(one)
        for name, some in by_queue.items():
            queue = self._client.queue(name)
            if at_once:
                queue.dispatch_many([Dispatch(what, id=one) for one in some])
            else:
                for one in some:
                    queue.dispatch(what, id=one)
        return ids

    def _run_short_jobs(self, jobs: int) -> None:
        ids = set(self._dispatch(SHORT, jobs))
        self._until(lambda: {s.job for s in self._starts() if s.ended} >= ids, "short jobs end")

    def _choose(self, one: Round, what: str) -> Host:
        """The host to lose. Dispatches jobs until it, or any, runs some of them."""
        hosts = [host for host in self._hosts if host.duty in WAITING]
        if not one.running:
            return self._dice.choice(hosts)
        for _ in range(20):
            ids = set(self._dispatch(what, one.running, one.at_once))
            self._until(lambda: {s.job for s in self._starts()} >= ids, "jobs start")  # noqa: B023
            running = {s.host for s in self._starts() if s.job in self._queue_of and not s.ended}
            busy = [host for host in hosts if host.name in running]
            if busy:
                return self._dice.choice(busy)
        raise RunFailed("expected that a host that can be lost runs one of the jobs")

    def _round(self, number: int, one: Round) -> Measured:
        what = f"round-{number}"
        shape = self.shape
        found = Measured(one.fault, shape.fleet, shape.queues, shape.number, number)
        self._run_short_jobs(one.short)
        victim = self._choose(one, what)
        consumers = [host for host in self._hosts if host.duty == "consumers"]
        self._start(consumers)  # only now: they would have taken all jobs
        self._pause(one.settling)
        before = self._dispatch(what, one.before)
        self._pause(self._dice.random() * 0.05)
        victim.signal(signal.SIGKILL if one.fault == "kill" else signal.SIGSTOP)
        at = time.monotonic()
        lost = [s.job for s in self._starts() if s.host == victim.name and not s.ended]
        found.lost = len(lost)
        due = dict.fromkeys([*before, *lost], at)
        self._hosts.remove(victim)
        for delay in one.after:
            self._pause(max(0.0, at + delay - time.monotonic()))
            due |= dict.fromkeys(self._dispatch(what, 1), time.monotonic())
        self._observe(found, victim, due)
        if one.fault == "freeze":
            self._thaw(found, victim, what, due)
        if victim not in self._hosts:
            victim.kill()
        self._finish(found, what)
        for host in consumers:
            host.kill()
        return found

    def _observe(self, found: Measured, victim: Host, due: dict[str, float]) -> None:
        """Waits until each job runs on another host, or waits again if none has room."""
        has_room = any(host.has_room for host in self._hosts)
        pending = dict(due)
        deadline = time.monotonic() + PATIENCE + 30
        while pending and time.monotonic() < deadline:
            back = {s.job: s.at for s in self._starts() if s.host != victim.name}
            if not has_room:
                for job in pending:
                    held = self._client.queue(self._queue_of[job]).get(job)
                    if held is None or not held.client.startswith(victim.client_prefix):
                        back.setdefault(job, time.monotonic())
            for job in back.keys() & pending.keys():
                seconds = back[job] - pending.pop(job)
                found.worst = max(found.worst, seconds)
                found.late.append(f"{seconds:.1f}")
            self._pause(TICK)
        if pending:
            found.worst = float("inf")
            states = [
                f"{job}: {self._client.queue(self._queue_of[job]).get(job)!r}" for job in pending
            ]
            found.problems.append(f"not back in time: {states}")

    def _thaw(self, found: Measured, victim: Host, what: str, jobs: Collection[str]) -> None:
        """The host goes on, its runs end, and whatever it reports must be refused."""
        held = {
            s.job: s.token
            for s in self._starts()
            if s.job in jobs and s.host != victim.name and not s.ended
        }
        gate(self._folder, victim.name, what).touch()
        victim.signal(signal.SIGCONT)
        self._pause(AFTER_THAW)
        for job, token in held.items():
            now = self._client.queue(self._queue_of[job]).get(job)
            if now is None or now.token != token:
                found.problems.append(f"{job}: a report of the thawed host changed it: {now!r}")
        if self.shape.rounds[found.round].returns:
            self._hosts.append(victim)

    def _finish(self, found: Measured, what: str) -> None:
        """All runs of the round end, each job once."""
        if not any(host.has_room for host in self._hosts):
            for host in self._hosts:
                gate(self._folder, host.name, "own").touch()
        for host in self._hosts:
            gate(self._folder, host.name, what).touch()
        names = set(self._queue_of.values())

        def is_over() -> bool:
            counts = [self._client.queue(name).counts() for name in names]
            return not any(count.waiting or count.active for count in counts)

        self._until(is_over, "all jobs end")
        finished = sum(
            stat.count
            for name in names
            for stat in self._client.queue(name).stats()
            if stat.kind == "finished" and stat.minute is None
        )
        if finished != len(self._queue_of):
            found.problems.append(f"{len(self._queue_of)} jobs, {finished} finished")
