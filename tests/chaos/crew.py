"""The processes of a run: workers, producers and consumers, each replaced when it dies."""

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
CHILDREN = 2
APP = "tests.chaos.app:client"
CANNOT_START = f"queasy: {APP}: ".encode()


@dataclass
class Member:
    """One process."""

    role: Role
    process: "subprocess.Popen[bytes]"
    log: Path
    place: int
    """Among those of its role; whoever replaces it takes its place, and its way to the server."""
    told: bool = False
    """To end."""

    @property
    def pid(self) -> int:
        return self.process.pid

    def children(self) -> list[int]:
        """Of a worker: those that run handlers."""
        return [pid for pid in children_of(self.pid) if alive(pid)]

    @property
    def gone(self) -> bool:
        return self.process.poll() is not None


@dataclass(frozen=True)
class Size:
    """How many of each, and how many jobs a second a producer dispatches."""

    workers: int = 2
    producers: int = 3
    consumers: int = 2
    rate: float = 120.0


class Crew:
    """Everybody who takes part, on one server, with one folder for all histories."""

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
        """Of workers that ended by themselves."""
        self.over: set[Role] = set()
        many: dict[Role, int] = {
            "worker": size.workers, "consumer": size.consumers, "producer": size.producers,
        }  # fmt: skip
        for role, count in many.items():
            for place in range(count):
                self._start(role, place)

    def of(self, role: Role) -> list[Member]:
        return [member for member in self.members if member.role == role]

    def _start(self, role: Role, place: int) -> None:
        self._started += 1
        number, seed = self._started, str(self._random.random())
        kind = "sync" if number % 3 == 0 else "async"
        match role:
            case "worker":
                words = ["queasy", "worker", APP, "--processes", str(CHILDREN),
                         "--grace", "20", "--log-format", "json", "--log-level", "debug",
                         "--log-errors", "type"]  # fmt: skip
                if number % 2:
                    words += ["--max-jobs", "300"]
            case "producer":
                words = ["tests.chaos.producer", str(number), seed, str(self._rate), kind]
            case "consumer":
                words = ["tests.chaos.consumer", seed, kind]
        environment = {
            **os.environ,
            "CHAOS_URL": self._urls[role][place % len(self._urls[role])],
            "CHAOS_PREFIX": "chaos",
            "CHAOS_FOLDER": str(self._folder),
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            **self._environment,
        }
        log = self._folder / f"{role}-{number}.log"
        with log.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", *words], cwd=ROOT, env=environment, stdout=file,
                stderr=file, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self.members.append(Member(role, process, log, place))

    def revive(self) -> None:
        """Another for each that died, while its role is not over."""
        for member in [member for member in self.members if member.gone]:
            self.members.remove(member)
            if member.role == "worker" and not self._may_end(member):
                self.exits.append(f"worker {member.pid} ended with {member.process.returncode}")
            if member.role not in self.over:
                self._start(member.role, member.place)

    def _may_end(self, member: Member) -> bool:
        """It was told to, or killed, or found no server fit to work on when it started."""
        code = member.process.returncode
        if code == 1:
            return member.log.read_bytes().splitlines()[-1].startswith(CANNOT_START)
        # Before Python can hear a signal there is nothing to stop either.
        return code == -signal.SIGKILL or (code in (0, -signal.SIGTERM) and member.told)

    def pids(self) -> Iterator[int]:
        for member in self.members:
            yield member.pid
            yield from member.children()

    def stop(self, role: Role, seconds: float = 60.0) -> list[str]:
        """Ends all of a role as an operator would; what went wrong with that."""
        self.over.add(role)
        problems: list[str] = []
        members = self.of(role)
        everyone = [pid for member in members for pid in (member.pid, *member.children())]
        for member in members:
            member.process.send_signal(signal.SIGTERM)
        for member in members:
            try:
                code = member.process.wait(seconds)
            except subprocess.TimeoutExpired:
                problems.append(f"{role} {member.pid} does not heed SIGTERM for {seconds:g} s")
                member.process.kill()
                member.process.wait()
                continue
            if code and role == "worker":
                problems.append(f"worker {member.pid} ended with {code} after SIGTERM")
        self.members = [member for member in self.members if member.role != role]
        try:
            wait_until_gone(everyone, 5.0)
        except TimeoutError:
            left = [pid for pid in everyone if alive(pid)]
            problems.append(f"processes of a {role} are left: {left}")
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return problems

    def end(self) -> None:
        """Whatever is left, at once."""
        pids = list(self.pids())
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
        for member in self.members:
            member.process.wait()
        self.members = []
        wait_until(lambda: not any(map(alive, pids)), "all processes are gone")
