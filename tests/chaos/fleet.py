"""The processes of a run: workers, producers and consumers. Each is replaced when it dies."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

from tests.servers import wait_until
from tests.worker.fleet import ROOT, alive, children_of, wait_until_gone

Role = Literal["worker", "producer", "consumer"]
"""A `worker` is a supervisor with its worker processes."""
PROCESSES_PER_WORKER = 2
APP = "tests.chaos.app:client"
CANNOT_START = f"queasy: {APP}: ".encode()


@dataclass
class Member:
    """One process."""

    role: Role
    process: "subprocess.Popen[bytes]"
    log: Path
    index: int
    """Its number within its role. Its replacement gets the same, and the same proxy."""
    stop_requested: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid

    def children(self) -> list[int]:
        """The processes that run handlers, if this is a supervisor."""
        return [pid for pid in children_of(self.pid) if alive(pid)]

    @property
    def has_exited(self) -> bool:
        return self.process.poll() is not None


@dataclass(frozen=True)
class Size:
    """Number of processes of each role, and dispatches per second of a producer."""

    workers: int = 2
    producers: int = 3
    consumers: int = 2
    rate: float = 120.0


class Fleet:
    """All processes of a run, on one server, with one folder for their histories."""

    def __init__(self, urls: Mapping[Role, Sequence[str]], folder: Path, random: Random, size: Size,
                 environment: Mapping[str, str] | None = None) -> None:  # fmt: skip
        self._folder = folder
        self._urls = urls
        self._random = random
        self._rate = size.rate
        self._environment = environment or {}
        self._started = 0
        self.members: list[Member] = []
        self.exits: list[str] = []
        """Workers that exited although they were neither stopped nor killed."""
        self.stopped: set[Role] = set()
        """Roles that were stopped: their processes are not replaced any more."""
        counts: dict[Role, int] = {
            "worker": size.workers, "consumer": size.consumers, "producer": size.producers,
        }  # fmt: skip
        for role, count in counts.items():
            for index in range(count):
                self._start(role, index)

    def of(self, role: Role) -> list[Member]:
        return [member for member in self.members if member.role == role]

    def _start(self, role: Role, index: int) -> None:
        self._started += 1
        log = self._folder / f"{role}-{self._started}.log"
        url = self._urls[role][index % len(self._urls[role])]
        environment = {
            **os.environ,
            "CHAOS_URL": url,
            "CHAOS_PREFIX": "chaos",
            "CHAOS_FOLDER": str(self._folder),
            "QUEASY_HOST": f"{role}-{index}",
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            **self._environment,
        }
        with log.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", *self._command(role, self._started)], cwd=ROOT,
                env=environment, stdout=file, stderr=file, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        self.members.append(Member(role, process, log, index))

    def _command(self, role: Role, number: int) -> list[str]:
        seed = str(self._random.random())
        kind = "sync" if number % 3 == 0 else "async"
        match role:
            case "worker":
                words = ["queasy", "worker", APP, "--processes", str(PROCESSES_PER_WORKER),
                         "--grace", "20", "--log-format", "json", "--log-level", "debug",
                         "--log-errors", "type"]  # fmt: skip
                return [*words, "--max-jobs", "300"] if number % 2 else words
            case "producer":
                return ["tests.chaos.producer", str(number), seed, str(self._rate), kind]
            case "consumer":
                return ["tests.chaos.consumer", seed, kind]

    def replace_dead(self) -> None:
        """Start another process for each that died, unless its role was stopped."""
        for member in [member for member in self.members if member.has_exited]:
            self.members.remove(member)
            if member.role == "worker" and not self._may_exit(member):
                self.exits.append(f"worker {member.pid} exited with {member.process.returncode}")
            if member.role not in self.stopped:
                self._start(member.role, member.index)

    def _may_exit(self, member: Member) -> bool:
        """Whether it was stopped or killed, or could not use the server when it started."""
        code = member.process.returncode
        if code == 1:
            return member.log.read_bytes().splitlines()[-1].startswith(CANNOT_START)
        # SIGTERM ends a process that has not installed its signal handlers yet.
        return code == -signal.SIGKILL or (code in (0, -signal.SIGTERM) and member.stop_requested)

    def pids(self) -> Iterator[int]:
        for member in self.members:
            yield member.pid
            yield from member.children()

    def stop(self, role: Role, seconds: float = 60.0) -> list[str]:
        """Stop all processes of a role with SIGTERM, as an operator would. Returns problems."""
        self.stopped.add(role)
        members = self.of(role)
        pids = [pid for member in members for pid in (member.pid, *member.children())]
        for member in members:
            member.process.send_signal(signal.SIGTERM)
        problems = [problem for member in members for problem in _wait_for_exit(member, seconds)]
        self.members = [member for member in self.members if member.role != role]
        try:
            wait_until_gone(pids, 5.0)
        except TimeoutError:
            left = [pid for pid in pids if alive(pid)]
            problems.append(f"processes of a {role} are left: {left}")
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return problems

    def kill(self) -> None:
        """Kill whatever is left."""
        pids = list(self.pids())
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
        for member in self.members:
            member.process.wait()
        self.members = []
        wait_until(lambda: not any(map(alive, pids)), "all processes are gone")


def _wait_for_exit(member: Member, seconds: float) -> list[str]:
    """Wait until a process that got SIGTERM has exited; kill it after `seconds`."""
    try:
        code = member.process.wait(seconds)
    except subprocess.TimeoutExpired:
        member.process.kill()
        member.process.wait()
        return [f"{member.role} {member.pid} did not exit within {seconds:g} s of SIGTERM"]
    if code and member.role == "worker":
        return [f"worker {member.pid} exited with {code} after SIGTERM"]
    return []
