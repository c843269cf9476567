"""A run: its server, its crew, what is done to them, and what is left when it is over."""

import heapq
import itertools
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
from tests.chaos.checker import Aftermath
from tests.chaos.crew import Crew
from tests.chaos.disk import Disk
from tests.chaos.history import Fault, Pen, now
from tests.chaos.load import QUEUES
from tests.chaos.stages import Stage
from tests.proxy.program import ProxyProgram
from tests.servers import Server, wait_until
from tests.worker.fleet import alive, is_stopped

PREFIX = "chaos"
# After the last fault, everything has ended: a dead worker's leases (13 s), twice ten seconds
# of grace for a server that was away, backoffs; and suspects of 20 s each, one after another.
PATIENCE = 240.0
# Of those whose supervisor was killed, and of connections whose owner is gone.
GONE_IN = 5.0


@dataclass
class World:
    """Everything a fault can be done to."""

    random: Random
    folder: Path
    stage: Stage
    crew: Crew
    pen: Pen
    networks: Sequence[ProxyProgram] = ()
    """First one for each worker, if workers take the long way; then one for all others."""
    away: bool = False
    """We have killed or frozen the server just now."""
    cut_off_until: float = 0.0
    """One of those networks, while the others are fine."""
    struck_until: float = 0.0
    """Any of them, or anything else that ends by itself."""
    forgiven: list[tuple[float, float]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    disk: Disk = field(init=False)
    problems: list[str] = field(default_factory=list)
    """Processes and connections that are left of what should be gone."""
    _doomed: list[tuple[float, Sequence[int]]] = field(default_factory=list)
    _undoing: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: "itertools.count[int]" = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.disk = Disk(self.server)

    @property
    def server(self) -> Server:
        return self.stage.server

    def note(self, kind: str, *pids: int, at: float | None = None, until: float = 0.0) -> None:
        self.counts[kind] += 1
        self.struck_until = max(self.struck_until, until)
        self.pen(Fault(now() if at is None else at, kind, pids, until))

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Undoes a fault in a while; at the end of the run in any case."""
        heapq.heappush(self._undoing, (now() + seconds, next(self._order), action))

    def insist(self, seconds: float, action: Callable[[], None]) -> None:
        """The same by the server's help: again and again, however busy or dead it is just then. One
        that we froze ourselves is not asked: it would be frozen until it answers.
        """

        def attempt() -> None:
            if not self.away:
                with suppress(QueasyError, redis.RedisError, OSError):
                    return action()
            time.sleep(0.02)
            return self.insist(0.1, action)

        self.later(seconds, attempt)

    def undo(self, *, all_of_them: bool = False) -> None:
        """What is due now; not what is put off meanwhile, or this might never end."""
        due = now()
        while self._undoing and (all_of_them or self._undoing[0][0] <= due):
            heapq.heappop(self._undoing)[2]()

    def expect_gone(self, pids: Sequence[int]) -> None:
        """They are to be gone in a while, and are looked at then."""
        self._doomed.append((now() + GONE_IN, pids))

    def turn(self) -> None:
        """What there is to be done all the time."""
        self.undo()
        self.crew.revive()
        self.disk.look()
        doomed, self._doomed = self._doomed, []
        for by, pids in doomed:
            left = [pid for pid in pids if alive(pid)]
            if any(map(is_stopped, left)):  # by us, before it could ask to die with its parent
                self.expect_gone(left)  # from when it goes on
            elif left and now() < by:
                self._doomed.append((by, left))
            elif left:
                self.problems.append(f"processes of a supervisor that was killed are left: {left}")

    def harm(self, faults: Mapping[Callable[["World"], None], float], rate: float,
             seconds: float) -> None:  # fmt: skip
        """Does what the scene is about, at random moments, for so long."""
        end = now() + seconds
        next_at = now() + 2.0
        while now() < end:
            self.turn()
            if now() >= next_at:
                (fault,) = self.random.choices(list(faults), list(faults.values()))
                fault(self)
                next_at = now() + self.random.expovariate(rate)
            time.sleep(max(0.0, min(0.05, next_at - now())))
        self.undo(all_of_them=True)
        self.crew.revive()

    # The end

    def finish(self, *, durable: bool) -> tuple[Aftermath, float]:
        """Lets everything end that can; what is left then, and how long it took."""
        self.problems += self.crew.stop("producer")
        began = now()
        with self._client() as client:
            queues = [client.queue(name) for name in QUEUES]
            everything = queues + [queue.fail_queue for queue in queues]
            remaining = self._drain(everything)
            took = now() - began
            self._wait_for_the_network()
            self.problems += self.crew.stop("consumer") + self.crew.stop("worker")
            self.problems += self.crew.exits
            failed = [job.data["n"] for queue in queues for job in queue.jobs("failed")]
            audit = [f"{queue.name}: {line}" for queue in everything for line in queue.audit()]
        while self._doomed:
            self.turn()
            time.sleep(0.05)
        self._look_for_connections()
        aftermath = Aftermath(failed, remaining, audit, self.problems, self.forgiven, durable)
        return aftermath, took

    def _wait_for_the_network(self) -> None:
        """Others may have done everything while somebody was cut off, who cannot even leave yet."""
        while now() < self.struck_until:
            self.turn()
            time.sleep(0.05)

    def _look_for_connections(self) -> None:
        """Nobody is connected any more but who asks; servers of a group are, to each other."""
        if self.stage.group is not None:
            return
        try:
            wait_until(lambda: len(self._connections()) <= 1, "only ours is left", GONE_IN)
        except TimeoutError:
            self.problems += [f"connection left: {line}" for line in self._connections()[:-1]]

    def _connections(self) -> list[str]:
        return self.server.call("CLIENT", "LIST").splitlines()

    def _drain(self, queues: list[SyncQueue]) -> list[str]:
        deadline = now() + PATIENCE
        while now() < deadline:
            self.turn()
            with suppress(QueasyError):
                busy = [queue for queue in queues if _waits(queue)]
                if not busy:
                    return []
            time.sleep(0.2)
        return [
            f"{queue.name}: {job.state} {job.id}"
            for queue in queues
            for state in ("waiting", "active", "blocked")
            for job in queue.jobs(state)
        ]

    @contextmanager
    def _client(self) -> Generator[SyncClient]:
        with SyncClient(self.stage.url, prefix=PREFIX) as client:
            yield client


def _waits(queue: SyncQueue) -> bool:
    counts = queue.counts()
    return bool(counts.due or counts.scheduled or counts.active or counts.blocked)
