"""A worker, a producer and a pull consumer on one server, and what each of them saw.

Journals outside of the server record the runs. A test brings the server into some state meanwhile;
at the end, `_settle` asserts that accepted jobs ran once and refused jobs did not run.
"""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from queasy import QueasyError, ServerError, SyncClient, Unanswered
from queasy.store.commands import ListState
from queasy.sync import SyncLease
from tests.conftest import audit_all
from tests.servers import Server, ServerKind, wait_until, why_absent
from tests.worker.fleet import Fleet, Running, fleet_on

PACE = 0.01
TIMEOUT = 0.5  # of a call: after this time it raises


@pytest.fixture(
    scope="module",
    params=[ServerKind.VALKEY, pytest.param(ServerKind.REDIS, marks=pytest.mark.chaos)],
)
def kind(request: pytest.FixtureRequest) -> ServerKind:
    """Valkey; Redis only in long runs, since these tests are mostly about clients."""
    if reason := why_absent(request.param):
        pytest.skip(reason)
    return request.param


LEFT: tuple[ListState, ...] = ("waiting", "active")


class Traffic:
    """Jobs for handlers go to the queue `plain`, those for the consumer to `pulled`."""

    def __init__(self, server: Server, url: str, prefix: str, fleet: Fleet) -> None:
        self.server = server
        self.prefix = prefix
        self.journal = fleet.journal
        self.worker: Running = fleet.serve("--queue", "plain", "--queue", "waits", processes=1)
        self.children = self.worker.children()
        self.accepted: list[tuple[float, str, str]] = []
        self.refused: list[tuple[str, ServerError]] = []
        self.unsure: list[tuple[str, ServerError]] = []
        self.pulled: list[tuple[str, bool | None]] = []
        """Each with the result of `complete`; None if its answer was lost."""
        self.pull_errors: list[QueasyError] = []
        self.failures: list[BaseException] = []
        self._url = url
        self._over = threading.Event()
        self._too_late = threading.Event()
        self._numbers = itertools.count()
        self._run = ""
        self._threads: list[threading.Thread] = []

    def client(self, timeout: float = TIMEOUT) -> SyncClient:
        return SyncClient(self._url, prefix=self.prefix, timeout=timeout)

    # Start and end

    @contextmanager
    def flowing(self, run: str) -> Generator[None]:
        """Runs a producer and a consumer during the block; then checks every job."""
        self._run = run
        self._over.clear()
        self._too_late.clear()
        for log in (self.accepted, self.refused, self.unsure, self.pulled, self.pull_errors):
            log.clear()
        self._begin(self._produce)
        self._begin(self._consume)
        try:
            self.wait_for_work()
            yield
            self.wait_for_work()
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join(60)
            self._too_late.set()  # no thread survives into the next test
            for thread in self._threads:
                thread.join()
            self._threads.clear()
        assert self.failures == []
        self._settle()

    def _begin(self, what: Callable[[], None]) -> None:
        def run() -> None:
            try:
                what()
            except BaseException as problem:
                self.failures.append(problem)

        thread = threading.Thread(target=run)
        thread.start()
        self._threads.append(thread)

    def wait_for_work(self, seconds: float = 15.0) -> None:
        """Waits until jobs accepted from now on have run, in the worker and in the consumer."""
        now = time.monotonic()

        def ran() -> bool:
            if self.failures or self.worker.process.poll() is not None:
                raise AssertionError(f"{self.failures} {self.worker.log[-3000:]}")
            new = {id_ for at, _, id_ in self.accepted if at > now}
            return bool(new & self._ended()) and bool(new & {id_ for id_, _ in self.pulled})

        wait_until(ran, "work goes on", seconds)

    def wait_for_refusals(self, kind: type[ServerError], words: str, count: int = 2) -> None:
        def refused() -> bool:
            said = [error for _, error in self.refused if type(error) is kind]
            return len([error for error in said if words in str(error)]) >= count

        try:
            wait_until(refused, f"{count} dispatches are refused: {words}", 15.0)
        except TimeoutError:
            raise AssertionError(Counter(repr(error)[:300] for _, error in self.refused)) from None

    # Producer and consumer

    def _produce(self) -> None:
        with self.client() as client:
            while not self._over.wait(PACE):
                number = next(self._numbers)
                queue, id_ = ("plain", "pulled")[number % 2], f"{self._run}-{number}"
                try:
                    client.queue(queue).dispatch("quick", id=id_)
                except Unanswered as problem:
                    self.unsure.append((id_, problem))
                except ServerError as problem:
                    self.refused.append((id_, problem))
                else:
                    self.accepted.append((time.monotonic(), queue, id_))

    def _consume(self) -> None:
        with self.client() as client:
            queue = client.queue("pulled")
            while not self._over.is_set() or (self._owed() and not self._too_late.is_set()):
                try:
                    lease = queue.lease(timeout=0.1, seconds=120)
                except ServerError as problem:
                    self.pull_errors.append(problem)
                    time.sleep(PACE)
                    continue
                if lease is not None:
                    self.pulled.append((lease.job.id, self._complete(lease)))

    def _owed(self) -> bool:
        mine = {id_ for _, queue, id_ in self.accepted if queue == "pulled"}
        return not mine <= {id_ for id_, _ in self.pulled}

    def _complete(self, lease: SyncLease) -> bool | None:
        while not self._too_late.is_set():
            try:
                return lease.complete()
            except Unanswered:  # unknown: a loading server takes longer than a call
                if not self._holds(lease):
                    return None
            except ServerError as problem:  # the lease is still held
                self.pull_errors.append(problem)
                time.sleep(PACE)
        return None

    def _holds(self, lease: SyncLease) -> bool:
        while not self._too_late.is_set():
            try:
                with self.client() as client:
                    job = client.queue("pulled").get(lease.job.id)
            except ServerError:
                time.sleep(PACE)
            else:
                return job is not None and job.token == lease.job.token
        return False

    # Results

    def _ended(self) -> set[str]:
        return {line["id"] for line in self.journal.lines("end")}

    def _settle(self) -> None:
        with self.client(timeout=10) as client:
            queues = [client.queue(name) for name in ("plain", "waits", "pulled")]
            idle = lambda: all(not (c := q.counts()).waiting and not c.active for q in queues)  # noqa: E731
            try:
                wait_until(idle, "nothing is left", 30.0)
            except TimeoutError:
                left = [job for q in queues for state in LEFT for job in q.jobs(state)]
                raise AssertionError(f"left: {left} {self.unsure} {self.pull_errors}") from None
        starts = [line for line in self.journal.lines("start") if self._is_ours(line["id"])]
        ends = [line for line in self.journal.lines("end") if self._is_ours(line["id"])]
        ran = Counter(line["id"] for line in starts) + Counter(id_ for id_, _ in self.pulled)
        twice = [id_ for id_, count in ran.items() if count > 1]
        assert not twice, f"ran twice: {twice}"
        assert {line["id"] for line in starts} == {line["id"] for line in ends}
        assert {(line["stalls"], line["retries"], line["timeouts"]) for line in starts} == {
            (0, 0, 0)
        }
        assert {done for _, done in self.pulled} <= {True, None}
        accepted = {id_ for _, _, id_ in self.accepted}
        assert accepted <= set(ran), f"lost: {accepted - set(ran)}"
        written = {id_ for id_, _ in self.refused} & set(ran)
        assert not written, f"refused, but ran: {written}"
        assert self.worker.children() == self.children, self.worker.log[-3000:]

    def _is_ours(self, id_: str) -> bool:
        return id_.startswith(f"{self._run}-")


@contextmanager
def traffic_on(server: Server, url: str, prefix: str, folder: Path) -> Generator[Traffic]:
    with fleet_on(url, prefix, folder) as fleet:
        traffic = Traffic(server, url, prefix, fleet)
        yield traffic
        assert traffic.worker.stop() == 0
    audit_all(server, prefix)
