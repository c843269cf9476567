"""Load for a group of servers: async and sync producers, pull consumers and workers. Results come
from journals of the runs, not from the server.
"""

import asyncio
import itertools
import json
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from queasy import Client, NotDurable, QueasyError, SyncClient
from queasy.options import Durability
from tests.servers import wait_until
from tests.worker.fleet import Fleet, fleet_on

WORKED = "waits"  # served by workers: tests.worker.app
PULLED = "pulled"
QUEUES = (WORKED, PULLED)
LEASE = 2.0
SUPERVISORS = 2
LOOK = 8.0  # interval of the safety poll
DURABILITIES: tuple[Durability, ...] = ("ack", "replicated")


@dataclass
class Runs:
    """What the journal shows."""

    ended: set[str]
    again: list[str]
    """Ids that were run more than once."""
    overlaps: list[tuple[str, int, int]]
    """An id, and the tokens of two of its runs that overlapped."""
    backwards: list[tuple[str, tuple[int, dict[str, float]], tuple[int, dict[str, float]]]]
    """Ids with a later run that had a lower token, and both runs."""


@dataclass
class Load:
    """Load that runs while a test injects faults."""

    url: str
    prefix: str
    fleet: Fleet
    accepted: dict[str, float] = field(default_factory=dict)
    """When the dispatch of each id returned. Ids begin with the durability requested."""
    strikes: list[tuple[float, float]] = field(default_factory=list)
    """Start and end of each injected fault."""
    unsure: Counter[str] = field(default_factory=Counter)
    """How many dispatches raised, by type of error."""
    surprises: list[BaseException] = field(default_factory=list)
    completed: Counter[str] = field(default_factory=Counter)
    """How often `complete` returned True, by job."""

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._drained = threading.Event()
        self._journal = os.open(self.fleet.journal.path, os.O_WRONLY | os.O_APPEND)
        self._producers = [self._thread(self._produce_sync), self._thread(self._produce_async)]
        self._consumers = [self._thread(self._pull_sync), self._thread(self._pull_async)]

    def _thread(self, target: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                target()
            except BaseException as problem:  # shown by `check`
                self.surprises.append(problem)

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        return thread

    # Producers

    def _produce_sync(self) -> None:
        with SyncClient(self.url, prefix=self.prefix) as client:
            queues = [client.queue(name) for name in QUEUES]
            number = 0
            while not self._over.is_set():
                number += 1
                queue, durability = queues[number % 2], DURABILITIES[number // 2 % 2]
                with self._noting(id_ := f"{durability}-sync-{number}"):
                    queue.dispatch({"sleep": 0.01}, id=id_, durability=durability)
                time.sleep(0.01)

    def _produce_async(self) -> None:
        asyncio.run(self._produce())

    async def _produce(self) -> None:
        async with Client(self.url, prefix=self.prefix) as client:
            queues = [client.queue(name) for name in QUEUES]

            async def one(number: int) -> None:
                queue, durability = queues[number % 2], DURABILITIES[number // 2 % 2]
                with self._noting(id_ := f"{durability}-async-{number}"):
                    await queue.dispatch({"sleep": 0.01}, id=id_, durability=durability)

            number = 0
            while not self._over.is_set():
                async with asyncio.TaskGroup() as group:
                    for _ in range(4):
                        number += 1
                        group.create_task(one(number))
                await asyncio.sleep(0.03)

    @contextmanager
    def _noting(self, id_: str) -> Generator[None]:
        try:
            yield
        except QueasyError as problem:
            self.unsure[type(problem).__name__] += 1
            if not isinstance(problem, NotDurable):
                time.sleep(0.01)
        else:
            self.accepted[id_] = time.monotonic()

    # Consumers

    def _note(self, event: str, id_: str, token: int) -> None:
        line = {"event": event, "queue": PULLED, "id": id_, "token": token, "pid": os.getpid(),
                "at": time.monotonic()}  # fmt: skip
        os.write(self._journal, json.dumps(line).encode() + b"\n")

    def _pull_sync(self) -> None:
        with SyncClient(self.url, prefix=self.prefix) as client:
            queue = client.queue(PULLED)
            while not self._drained.is_set():
                with suppress(QueasyError):
                    lease = queue.lease(LEASE, timeout=1)
                    if lease is not None:
                        self._note("start", lease.job.id, lease.job.token)
                        self._note("end", lease.job.id, lease.job.token)
                        self.completed[lease.job.id] += lease.complete()

    def _pull_async(self) -> None:
        asyncio.run(self._pull())

    async def _pull(self) -> None:
        async with Client(self.url, prefix=self.prefix) as client:
            queue = client.queue(PULLED)
            while not self._drained.is_set():
                with suppress(QueasyError):
                    lease = await queue.lease(LEASE, timeout=1)
                    if lease is not None:
                        self._note("start", lease.job.id, lease.job.token)
                        await asyncio.sleep(0.005)
                        self._note("end", lease.job.id, lease.job.token)
                        self.completed[lease.job.id] += await lease.complete()

    # Results

    @contextmanager
    def struck(self) -> Generator[None]:
        """Records the block as the time of a fault."""
        began = time.monotonic()
        yield
        self.strikes.append((began, time.monotonic()))

    def goes_on(self, jobs: int = 20, seconds: float = 20.0) -> float:
        """Waits until that many more jobs were accepted and ran in each queue; returns seconds."""
        began = time.monotonic()
        before = {name: len(self.fleet.journal.lines("end", queue=name)) for name in QUEUES}
        accepted = len(self.accepted)

        def going() -> bool:
            assert not self.surprises, self.surprises
            lines = Counter(line["queue"] for line in self.fleet.journal.lines("end"))
            return len(self.accepted) >= accepted + jobs and all(
                lines[name] >= before[name] + jobs for name in QUEUES
            )

        wait_until(going, f"the load goes on; so far {self}", seconds)
        return time.monotonic() - began

    def finish(self, seconds: float = 40.0) -> Runs:
        """Stops producing, waits until everything has run, and returns the runs."""
        self._over.set()
        for thread in self._producers:
            thread.join(seconds)
        with SyncClient(self.url, prefix=self.prefix) as client:
            queues = [client.queue(name) for name in QUEUES]
            try:
                wait_until(
                    lambda: all(q.counts().waiting + q.counts().active == 0 for q in queues),
                    "everything has run",
                    seconds,
                )
            except TimeoutError as late:
                left = {job.id: job for queue in queues for job in queue.jobs("active")}
                lines = [line for line in self.fleet.journal.lines() if line["id"] in left]
                counts = [(queue.name, queue.counts(), queue.clients()) for queue in queues]
                raise AssertionError(f"left: {left}, {counts}, {lines}") from late
            assert [problem for queue in queues for problem in queue.audit()] == []
        self.end()
        assert not self.surprises, self.surprises
        assert not any(thread.is_alive() for thread in self._producers + self._consumers)
        return self.runs()

    def end(self) -> None:
        self._over.set()
        self._drained.set()
        for thread in self._producers + self._consumers:
            thread.join(30)

    def runs(self) -> Runs:
        of: dict[str, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
        for line in self.fleet.journal.lines():
            of[line["id"]][line["token"]].setdefault(line["event"], line["at"])
        found = Runs(set(), [], [], [])
        for id_, runs in of.items():
            in_order = sorted(runs.items(), key=lambda run: run[1]["start"])
            if any("end" in run for _, run in in_order):
                found.ended.add(id_)
            if len(in_order) > 1:
                found.again.append(id_)
            for (token, run), (later, next_run) in itertools.pairwise(in_order):
                # A run that was interrupted, because its lease was lost, has ended as well.
                ended = run.get("end", run.get("cancelled", time.monotonic()))
                if next_run["start"] < ended:
                    found.overlaps.append((id_, token, later))
                if later <= token:
                    found.backwards.append((id_, (token, run), (later, next_run)))
        return found

    def check(self, runs: Runs, *, forgets: bool) -> None:
        """Asserts the promises. If a new primary may lack writes (`forgets`), a job dispatched with
        durability "ack" during a fault may be lost. A run that the new primary does not know may
        overlap with the next run of its job, which has a higher token; while there are two
        primaries, it may even begin after that.
        """
        lost = self.accepted.keys() - runs.ended
        assert not [id_ for id_ in lost if id_.startswith("replicated")]
        tokens = [run[0] for _, *both in runs.backwards for run in both]
        assert not tokens or forgets, runs.backwards
        assert all(self._struck_at(token) for token in tokens), runs.backwards
        assert forgets or (not lost and not runs.overlaps), (lost, runs)
        for id_ in lost:
            at = self.accepted[id_]
            assert any(began - 1 < at < ended for began, ended in self.strikes), (id_, at)
        assert set(self.completed.values()) <= {0, 1} or forgets

    def _struck_at(self, token: int) -> bool:
        """Whether this lease began during a fault: a token is a time in microseconds."""
        at = token / 1e6 - time.time() + time.monotonic()
        return any(began <= at <= ended for began, ended in self.strikes)

    def idle_workers_are_woken(self) -> None:
        """Dispatches more jobs, one by one, than workers would find by their safety polls."""
        with SyncClient(self.url, prefix=self.prefix) as client:
            queue = client.queue(WORKED)
            by = time.monotonic() + LOOK
            for number in range(2 * SUPERVISORS + 1):
                wait_until(lambda: queue.counts().waiters >= SUPERVISORS, "all workers wait")
                queue.dispatch(None, id=f"wake-{number}")
                left = by - time.monotonic()
                self.fleet.journal.wait_for("end", id=f"wake-{number}", seconds=left)
            wait_until(lambda: not queue.counts().active, "all is reported")

    def __str__(self) -> str:
        runs = self.runs()
        lost = Counter(id_.partition("-")[0] for id_ in self.accepted.keys() - runs.ended)
        return (
            f"{len(self.accepted)} accepted, {dict(self.unsure)} unsure, {dict(lost)} not run "
            f"(yet), {len(runs.again)} run again, {len(runs.overlaps)} at once"
        )


@contextmanager
def load_on(url: str, prefix: str, folder: Path) -> Generator[Load]:
    """Load after the first jobs have run in every queue."""
    with fleet_on(url, prefix, folder) as fleet:
        workers = [fleet.start("--queue", WORKED, "--processes", "1") for _ in range(SUPERVISORS)]
        for worker in workers:
            worker.wait_until_serving(1)
        load = Load(url, prefix, fleet)
        try:
            load.goes_on(5)
            yield load
        finally:
            load.end()
