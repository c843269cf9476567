"""The server is killed, or loses the end of its append-only file, as in a power cut.

What a file that was cut short holds is the state after some call: never half of one.
"""

import math
import os
import random
import shutil
import subprocess
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis

from queasy import SyncClient
from queasy.errors import QueasyError
from queasy.job import Job, JobError
from queasy.options import JobOptions
from queasy.outcome import Broken, Cancel, Fail, Finish, Outcome, Release, Retry, TimedOut
from queasy.store.command import Command
from queasy.store.records import DispatchItem, Ending, when_arg
from tests.servers import Server, ServerKind, find_binary, start_server, wait_until
from tests.store.harness import Dump, Harness, load

T = TypeVar("T")

# With everysec a server may answer before it writes, while an earlier write is synced: the length
# of the file would not tell what is in it. What a file holds is the same in any mode.
WRITES_AT_ONCE = {"appendonly": True, "appendfsync": "no"}

WHY = JobError(type="Boom", message="it broke")


@pytest.fixture
def seed() -> int:
    """Printed with a failure; QUEASY_SEED takes the same way again."""
    seed = int(os.environ.get("QUEASY_SEED", random.SystemRandom().randrange(2**32)))
    print(f"QUEASY_SEED={seed}")
    return seed


def file_of(server: Server) -> Path:
    """The append-only file that is written to."""
    folder = server.directory / "appendonlydir"
    (file,) = folder.glob("*.incr.aof")
    return file


# The state of a file that was cut short


class Noted(Harness):
    """A harness that says when a call was answered."""

    def __init__(self, connection: redis.Redis, answered: Callable[[], None]) -> None:
        super().__init__(connection)
        self.answered = answered

    def call(self, command: Command[T]) -> T:
        reply = super().call(command)
        self.answered()
        return reply


class History:
    """Calls of every kind, and after each the length of the file and all that is in the server."""

    def __init__(self, server: Server, connection: redis.Redis, rng: random.Random) -> None:
        self.h = Noted(connection, self.note)
        self._rng, self._file = rng, file_of(server)
        self._jobs: list[Job] = []
        self.lengths: list[int] = []
        self.dumps: list[Dump] = []
        self.times: list[float] = []
        self.note()

    def note(self) -> None:
        self.lengths.append(self._file.stat().st_size)
        self.dumps.append(self.h.dump())
        self.times.append(self.h.time)

    def before(self, offset: int) -> int:
        """The last call that is in the file as a whole."""
        return bisect_right(self.lengths, offset) - 1

    def write(self, calls: int) -> None:
        moves: list[Callable[[], Any]] = [
            self.dispatch, self.dispatch, self.dispatch, self.take, self.take, self.settle,
            self.settle, self.settle_and_take, self.cancel, self.configure, self.care, self.records,
            self.sweep,
        ]  # fmt: skip
        for _ in range(calls):
            self.h.later(self._rng.choice((0, 0.001, 0.5, 2)))
            self._rng.choice(moves)()
        used = {stat.kind for stat in self.h.call(self.h.commands.stats())}
        missing = {
            "dispatched", "updated", "blocked", "dequeued", "finished", "retried", "timed_out",
            "failed", "released", "cancelled", "broken", "stalled", "requeued",
        } - used  # fmt: skip
        assert not missing, f"this history has none of {missing}: make it longer"

    def ids(self) -> list[str]:
        return [f"j{self._rng.randrange(40)}" for _ in range(self._rng.randint(1, 6))]

    def dispatch(self) -> None:
        rng = self._rng
        items = [
            DispatchItem(
                id_, rng.randbytes(rng.choice((0, 10, 300))),
                when_arg(None, rng.choice((None, None, 1.0, 30.0))),
                rng.choice(("", "1t10", "0l00", "1e10", "0f01")),
            )
            for id_ in self.ids()
        ]  # fmt: skip
        self.h.call(self.h.commands.dispatch(items))

    def take(self) -> None:
        client = self._rng.choice(("c1", "c2", ""))
        if client:
            self.h.call(self.h.commands.register(client, 9))
        request = f"r{self._rng.random()}" if client else ""
        limit = self._rng.randint(1, 9)
        self._jobs += self.h.dequeue(client, lease=9, limit=limit, request=request).jobs

    def endings(self) -> list[Ending]:
        outcomes: list[Outcome] = [
            Finish(), Finish(), Retry(WHY), TimedOut(), Fail(WHY), Release(), Cancel(), Broken(WHY),
        ]  # fmt: skip
        self._rng.shuffle(self._jobs)
        some, self._jobs = self._jobs[:5], self._jobs[5:]
        return [Ending(job.id, job.token, self._rng.choice(outcomes)) for job in some]

    def settle(self) -> None:
        if endings := self.endings():
            self.h.call(self.h.commands.settle(endings))

    def settle_and_take(self) -> None:
        """Ends leases, sweeps and takes, in one call: several writes of each."""
        self.h.call(self.h.commands.register("c3", 5))
        more = {"request": f"r{self._rng.random()}", "endings": self.endings()}
        self._jobs += self.h.dequeue("c3", lease=5, limit=5, **more).jobs

    def cancel(self) -> None:
        self.h.cancel(*self.ids(), running=self._rng.random() < 0.5)

    def configure(self) -> None:
        limits = JobOptions(max_retries=self._rng.randint(0, 3), max_stalls=self._rng.randint(1, 2))
        self.h.call(
            self.h.commands.configure(
                limits=limits, fail_handler=True, failed_limit=self._rng.randint(3, 9)
            )
        )

    def care(self) -> None:
        client = self._rng.choice(("c1", "c2", "c3"))
        match self._rng.randrange(3):
            case 0:
                self.h.bump(client, lease=9)
            case 1:
                self.h.call(self.h.commands.evict(client, "stall"))
            case _:
                self.h.call(self.h.commands.evict(client, "release"))

    def sweep(self) -> None:
        for _ in range(3):
            self.h.later(4)
            self.h.dispatch("heard")
        self.h.sweep()

    def records(self) -> None:
        kind = self._rng.choice(("failed", "broken"))
        ids = [job.id for job in self.h.records(kind)] or ["nobody"]
        if self._rng.random() < 0.8:
            self.h.call(self.h.commands.requeue(kind, ids[:3]))
        else:
            self.h.call(self.h.commands.drop(kind, ids[:1]))


class Cuts:
    """A server whose file is cut short at will, again and again."""

    def __init__(self, server: Server, folder: Path) -> None:
        self._server, self._file = server, file_of(server)
        self._whole = folder / "whole"
        server.kill()
        shutil.copytree(self._file.parent, self._whole)

    def load(self, length: int) -> None:
        self._server.kill()
        shutil.rmtree(self._file.parent)
        shutil.copytree(self._whole, self._file.parent)
        os.truncate(self._file, length)
        self._server.start()


def works_on(h: Harness) -> None:
    """Whatever is left: what is held can be ended, what is due is taken, and there is no wedge."""
    h.call(h.commands.configure(paused=False, limits=JobOptions(max_stalls=9)))
    assert h.dispatch("fresh") == "created"
    for _ in range(4):  # every lease runs out
        h.later(8)
        h.dispatch("heard")
    while h.sweep():
        pass
    ran: list[str] = []
    while jobs := h.take(limit=100):
        assert all(h.end(job, Finish()) == "finished" for job in jobs)
        ran += [job.id for job in jobs]
    assert {"fresh", "heard"} <= set(ran)
    counts = h.call(h.commands.counts())
    assert (counts.due, counts.active, counts.blocked) == (0, 0, 0)


def cut_at_random(kind: ServerKind, folder: Path, seed: int, calls: int, cuts: int) -> None:
    rng = random.Random(seed)
    with start_server(kind, auto_aof_rewrite_percentage=0, **WRITES_AT_ONCE) as server:
        with server.client(decode_responses=False) as connection:
            load(connection)
            history = History(server, connection, rng)
            history.write(calls)
        h = history.h
        h.answered = lambda: None
        cut = Cuts(server, folder)
        # Anywhere; and inside calls, of which the long ones have most bytes.
        low, high = history.lengths[0], history.lengths[-1]
        offsets = [0, low, high, *(rng.randint(low, high) for _ in range(cuts - 3))]
        inside = 0
        for offset in offsets:
            cut.load(offset)
            with server.client(decode_responses=False) as connection:
                h.redis = connection
                at = history.before(offset)
                where = f"cut at {offset}, seed {seed}"
                inside += at >= 0 and history.lengths[at] < offset
                if at >= 0:
                    assert h.dump() == history.dumps[at], f"not the state after a call: {where}"
                h.time = history.times[max(0, at)]
                load(connection)
                h.audit()
                works_on(h)
                h.audit()
        assert inside > cuts / 3, "most cuts should be inside of calls"


def test_a_file_cut_short_holds_whole_calls_and_the_queue_works_on(
    kind: ServerKind, tmp_path: Path, seed: int
) -> None:
    cut_at_random(kind, tmp_path, seed, calls=350, cuts=15)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_files_cut_short_at_hundreds_of_places_hold_whole_calls(
    kind: ServerKind, tmp_path: Path, seed: int
) -> None:
    cut_at_random(kind, tmp_path, seed, calls=600, cuts=200)


# Killed under load


class Load:
    """Producers and consumers in threads, which note what they were told, and go on for ever."""

    def __init__(self, server: Server, file: Path) -> None:
        self._server, self._file = server, file
        self._over = threading.Event()
        self.accepted: dict[str, tuple[float, float]] = {}
        """When each dispatch was acknowledged, and how long the file was then."""
        self.lives = 0
        self.tokens: list[tuple[float, int]] = []
        self.ran: set[str] = set()
        self.refused = 0

    @contextmanager
    def running(self) -> Generator[None]:
        threads = [
            threading.Thread(target=self._guarded, args=(work, number))
            for number, work in enumerate((self._produce, self._consume) * 2)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def _guarded(self, work: Callable[[SyncClient, str], None], number: int) -> None:
        with SyncClient(self._server.url, prefix="load", timeout=20) as client:
            count = 0
            while not self._over.is_set():
                count += 1
                try:
                    work(client, f"{number}-{count}")
                except QueasyError:
                    self.refused += 1  # it was away, or what we held was lost: go on

    def _produce(self, client: SyncClient, id_: str) -> None:
        life = self.lives
        client.queue("q").dispatch({"n": id_}, id=id_)
        size = self._file.stat().st_size
        # When the server was killed meanwhile, that may be the size of a file that was cut.
        self.accepted[id_] = (time.monotonic(), size if self.lives == life else math.inf)

    def _consume(self, client: SyncClient, _: str) -> None:
        lease = client.queue("q").lease(seconds=2, timeout=0.3)
        if lease:
            self.tokens.append((time.monotonic(), lease.job.token))
            self.ran.add(lease.job.id)
            lease.complete()


def drain(server: Server, load: Load) -> None:
    """Everything that is left runs; what nobody ended any more comes back first."""
    with SyncClient(server.url, prefix="load") as client:
        queue = client.queue("q")
        while True:
            counts = queue.counts()
            if not counts.waiting and not counts.active:
                break
            lease = queue.lease(seconds=2, timeout=5)
            assert lease, f"wedged: {counts}"
            load.tokens.append((time.monotonic(), lease.job.token))
            load.ran.add(lease.job.id)
            lease.complete()
        assert queue.audit() == []


def audited(server: Server) -> None:
    """While nobody else uses it: at any moment, not only at the end."""
    with SyncClient(server.url, prefix="load") as client:
        assert client.queue("q").audit() == []


def tokens_grow(load: Load) -> None:
    numbers = [token for _, token in load.tokens]
    assert len(numbers) == len(set(numbers)), "a token was given out twice"


def killed_under_load(
    kind: ServerKind, seed: int, kills: int, fsync: str, *, power_cut: bool = False
) -> None:
    rng = random.Random(seed)
    with start_server(
        kind, appendonly=True, appendfsync=fsync, auto_aof_rewrite_percentage=0
    ) as server:
        file = file_of(server)
        load = Load(server, file)
        lost: set[str] = set()
        with load.running():
            for _ in range(kills):
                goal = len(load.accepted) + rng.randint(20, 120)
                wait_until(lambda goal=goal: len(load.accepted) >= goal, f"{goal} are accepted")
                load.lives += 1
                server.kill()
                if fsync == "everysec":  # it may answer two seconds before it writes
                    accepted, now = list(load.accepted.items()), time.monotonic()
                    lost |= {id_ for id_, (at, _) in accepted if at > now - 3}
                highest = max((token for _, token in load.tokens), default=0)
                seen = len(load.tokens)
                if power_cut:
                    lost |= cut_power(server, file, load, rng)
                server.start()
                wait_until(lambda seen=seen: len(load.tokens) > seen + 5, "jobs run again")
                fresh = [token for _, token in load.tokens[seen + 2 :]]  # two took one before
                assert min(fresh) > highest, f"tokens went back, seed {seed}"
        audited(server)
        drain(server, load)
        if (
            fsync != "always"
        ):  # noted after a kill, answered perhaps before it: also of the last one
            lost |= {id_ for id_, (_, size) in load.accepted.items() if size == math.inf}
        missing = set(load.accepted) - load.ran
        assert missing <= lost, f"{len(missing - lost)} accepted jobs are lost, seed {seed}"
        tokens_grow(load)


def cut_power(server: Server, file: Path, load: Load, rng: random.Random) -> set[str]:
    """Cuts off some of the last two seconds, as if they were not synced. What may be lost."""
    now, length = time.monotonic(), file.stat().st_size
    accepted = list(load.accepted.items())
    synced = [size for _, (at, size) in accepted if at < now - 2 and size <= length]
    kept = rng.randint(int(max(synced, default=0)), length)
    os.truncate(file, kept)
    if server.kind is ServerKind.REDIS:
        mend(server, file)
    return {id_ for id_, (_, size) in accepted if size > kept}


def mend(server: Server, file: Path) -> None:
    """As docs/lifecycle.md asks for. Redis 7.0 would cut only the last command of an open
    transaction, and append to the rest of it what it accepts next, which the next start undoes.
    (Valkey 9.1 does not: https://github.com/valkey-io/valkey/pull/4342.)
    """
    manifest = file.parent / "appendonly.aof.manifest"
    command = ["redis-check-aof", "--fix", str(manifest)]
    binary = find_binary(server.kind)
    subprocess.run(command, executable=binary, input=b"y\n", stdout=subprocess.DEVNULL, check=True)


def test_no_accepted_job_is_lost_when_a_server_that_always_syncs_is_killed(
    kind: ServerKind, seed: int
) -> None:
    killed_under_load(kind, seed, 2, "always")


def test_a_power_cut_loses_the_last_two_seconds_at_most_and_wedges_nothing(
    kind: ServerKind, seed: int
) -> None:
    killed_under_load(kind, seed, 3, "no", power_cut=True)


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fsync", ["always", "everysec"])
def test_servers_killed_again_and_again_lose_no_more_than_they_may(
    kind: ServerKind, seed: int, fsync: str
) -> None:
    killed_under_load(kind, seed, 40, fsync)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_power_cuts_again_and_again_wedge_nothing(kind: ServerKind, seed: int) -> None:
    killed_under_load(kind, seed, 40, "no", power_cut=True)


def test_a_lease_outlives_a_kill_of_the_server(kind: ServerKind) -> None:
    with (
        start_server(kind, appendonly=True, appendfsync="always") as server,
        SyncClient(server.url) as client,
    ):
        queue = client.queue("q")
        queue.dispatch({"n": 1}, id="a")
        lease = queue.lease(seconds=30)
        queue.dispatch({"n": 2}, id="a")  # held behind it
        server.kill()
        server.start()
        assert queue.lease(timeout=0) is None, "it is still leased"
        assert lease.extend(30)
        assert lease.complete()
        again = queue.lease(timeout=0)
        assert again
        assert again.job.data == {"n": 2}
        assert again.job.token > lease.job.token
        assert again.complete()
        assert queue.audit() == []
