"""The system under test: its servers, its processes, and the faults that are in effect."""

import heapq
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import redis

from queasy import QueasyError, SyncClient
from queasy.sync import SyncQueue
from tests.chaos.disk import Disk
from tests.chaos.fleet import Fleet
from tests.chaos.history import Fault, HistoryWriter, now
from tests.chaos.topologies import Topology
from tests.chaos.verdict import FinalState
from tests.chaos.workload import QUEUES
from tests.proxy.program import ProxyProgram
from tests.servers import Server, wait_until
from tests.worker.fleet import alive, is_stopped

PREFIX = "chaos"
# Every job ends within this time after the last fault: the leases of a dead worker (13 s), twice
# ten seconds of grace after an outage, backoffs, and suspects of 20 s each, one after another.
DRAIN_TIMEOUT = 240.0
# For the children of a supervisor that was killed, and for connections of processes that exited.
EXIT_TIMEOUT = 5.0
PROGRESS_EVERY = 20.0

InjectFault = Callable[["System"], None]


@dataclass
class System:
    """Everything that a fault can affect."""

    random: Random
    folder: Path
    topology: Topology
    fleet: Fleet
    write: HistoryWriter
    proxies: Sequence[ProxyProgram] = ()
    """One for each worker, if the workers use proxies, and one for all other processes."""
    name: str = ""
    """The name of its scene."""
    server_away: bool = False
    """The server is killed or frozen at the moment."""
    partitioned_until: float = 0.0
    """A worker cannot reach the server until then."""
    path_fails_until: dict[int, float] = field(default_factory=dict)
    """By the index of a worker: when its path to the server may fail again."""
    inject_until: float = 0.0
    """No fault is injected from then on."""
    faults_until: float = 0.0
    """The last fault that ends by itself ends then."""
    excused: list[tuple[float, float]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    disk: Disk = field(init=False)
    problems: list[str] = field(default_factory=list)
    """Processes and connections that exist although they should not."""
    _expected_exits: list[tuple[float, Sequence[int]]] = field(default_factory=list)
    _scheduled: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: "itertools.count[int]" = field(default_factory=itertools.count)
    _last_progress: float = field(default_factory=now)

    def __post_init__(self) -> None:
        self.disk = Disk(self.server)

    @property
    def server(self) -> Server:
        return self.topology.server

    def record(self, kind: str, *pids: int, at: float | None = None, until: float = 0.0) -> None:
        """Write a fault to the history."""
        self.counts[kind] += 1
        self.faults_until = max(self.faults_until, until)
        self.write(Fault(now() if at is None else at, kind, pids, until))

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Call `action` after some seconds, at the latest when the faults end."""
        heapq.heappush(self._scheduled, (now() + seconds, next(self._order), action))

    def retry_later(self, seconds: float, action: Callable[[], None]) -> None:
        """The same for an action that needs the server: it is repeated until the server answers.

        While this program keeps the server frozen it is not called: the call would block the thaw.
        """

        def attempt() -> None:
            if not self.server_away:
                with suppress(QueasyError, redis.RedisError, OSError):
                    return action()
            time.sleep(0.02)
            return self.retry_later(0.1, action)

        self.later(seconds, attempt)

    def run_scheduled(self, *, all_of_them: bool = False) -> None:
        """Run the actions that are due, but not those that are scheduled meanwhile."""
        due = now()
        while self._scheduled and (all_of_them or self._scheduled[0][0] <= due):
            heapq.heappop(self._scheduled)[2]()

    def expect_exit(self, pids: Sequence[int]) -> None:
        """Report these processes as a problem if they exist after `EXIT_TIMEOUT`."""
        self._expected_exits.append((now() + EXIT_TIMEOUT, pids))

    def maintain(self) -> None:
        """Do what is due: undo faults, replace dead processes, check expected exits."""
        self.run_scheduled()
        self.fleet.replace_dead()
        self.disk.sample()
        expected, self._expected_exits = self._expected_exits, []
        for deadline, pids in expected:
            left = [pid for pid in pids if alive(pid)]
            if any(map(is_stopped, left)):  # frozen by us before it could exit with its parent
                self.expect_exit(left)  # the time starts when it is thawed
            elif left and now() < deadline:
                self._expected_exits.append((deadline, left))
            elif left:
                self.problems.append(f"processes of a killed supervisor are left: {left}")

    def inject(
        self,
        faults: Mapping[InjectFault, float],
        rate: float,
        seconds: float,
        most: float = math.inf,
    ) -> None:
        """Inject faults at random times, `rate` per second on average, for so many seconds, or
        until there were `most`.
        """
        self.inject_until = end = now() + seconds
        next_at = now() + 2.0
        while now() < end and self.faults < most:
            self.maintain()
            left = f"{most - self.faults}" if most < math.inf else f"{end - now():.0f} s of faults"
            self._print_progress(f"{left} left")
            if now() >= next_at:
                (fault,) = self.random.choices(list(faults), list(faults.values()))
                fault(self)
                next_at = now() + self.random.expovariate(rate)
            time.sleep(max(0.0, min(0.05, next_at - now())))
        self.run_scheduled(all_of_them=True)
        self.fleet.replace_dead()

    @property
    def faults(self) -> int:
        """How many faults were injected so far."""
        return sum(self.counts.values())

    def _print_progress(self, left: str) -> None:
        if now() - self._last_progress > PROGRESS_EVERY:
            self._last_progress = now()
            print(f"  {self.name}: {self.faults} faults so far, {left}", flush=True)

    # The end of a run

    def finish(self, *, durable: bool) -> tuple[FinalState, float]:
        """Stop the producers and wait until all jobs have ended.

        Returns the state after that, and the seconds that it took.
        """
        self.problems += self.fleet.stop("producer")
        began = now()
        with self._client() as client:
            queues = [client.queue(name) for name in QUEUES]
            all_queues = queues + [queue.fail_queue for queue in queues]
            remaining = self._drain(all_queues)
            seconds = now() - began
            self._wait_for_faults_to_end()
            self.problems += self.fleet.stop("consumer") + self.fleet.stop("worker")
            self.problems += self.fleet.exits
            failed = [job.data["n"] for queue in queues for job in queue.jobs("failed")]
            audit = [f"{queue.name}: {line}" for queue in all_queues for line in queue.audit()]
        while self._expected_exits:
            self.maintain()
            time.sleep(0.05)
        self._check_connections()
        final = FinalState(failed, remaining, audit, self.problems, self.excused, durable)
        return final, seconds

    def _wait_for_faults_to_end(self) -> None:
        """A partitioned worker cannot stop yet, although others have run all jobs."""
        while now() < self.faults_until:
            self.maintain()
            time.sleep(0.05)

    def _check_connections(self) -> None:
        """Only our own connection may be left. Servers of a group are connected to each other."""
        if self.topology.group is not None:
            return
        try:
            wait_until(lambda: len(self._connections()) <= 1, "only ours is left", EXIT_TIMEOUT)
        except TimeoutError:
            self.problems += [f"connection left: {line}" for line in self._connections()[:-1]]

    def _connections(self) -> list[str]:
        return self.server.call("CLIENT", "LIST").splitlines()

    def _drain(self, queues: list[SyncQueue]) -> list[str]:
        """Wait until no job is left. Returns those left after `DRAIN_TIMEOUT`."""
        deadline = now() + DRAIN_TIMEOUT
        while now() < deadline:
            self.maintain()
            with suppress(QueasyError):
                left = sum(map(_unfinished, queues))
                if not left:
                    return []
                self._print_progress(f"{left} jobs left to drain")
            time.sleep(0.2)
        return [
            f"{queue.name}: {job.state} {job.id}"
            for queue in queues
            for state in ("waiting", "active", "blocked")
            for job in queue.jobs(state)
        ]

    @contextmanager
    def _client(self) -> Generator[SyncClient]:
        with SyncClient(self.topology.url, prefix=PREFIX) as client:
            yield client


def _unfinished(queue: SyncQueue) -> int:
    counts = queue.counts()
    return counts.due + counts.scheduled + counts.active + counts.blocked
