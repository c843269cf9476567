"""A server that lost the end of its append-only file, as in a power cut.

A truncated file holds the state after some call, never half of a call.
"""

import os
import random
import shutil
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis

from queasy.job import Job, JobError
from queasy.options import JobOptions
from queasy.outcomes import (
    Broken,
    Cancel,
    Died,
    Fail,
    Finish,
    Outcome,
    Release,
    RetryLater,
    TimedOut,
)
from queasy.store.command import Command
from queasy.store.records import DispatchItem, Ending, when_arg
from tests.faults.aof import file_of
from tests.servers import Server, ServerKind, start_server
from tests.store.harness import Dump, Harness, load

T = TypeVar("T")

# With everysec a server may answer before it writes, while it syncs an earlier write: then the
# length of the file does not show which calls it holds. Its content is the same in any mode.
WRITES_AT_ONCE = {"appendonly": True, "appendfsync": "no"}

WHY = JobError(type="Boom", message="it broke")


class Noted(Harness):
    """A harness that calls back after each answer."""

    def __init__(self, connection: redis.Redis, answered: Callable[[], None]) -> None:
        super().__init__(connection)
        self.answered = answered

    def call(self, command: Command[T]) -> T:
        reply = super().call(command)
        self.answered()
        return reply


class History:
    """Calls of every kind; after each, the length of the file and a dump of the server."""

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
        """The last call that the file holds completely."""
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
            Finish(), Finish(), RetryLater(WHY), TimedOut(), Fail(WHY), Release(), Cancel(),
            Broken(WHY),
        ]  # fmt: skip
        self._rng.shuffle(self._jobs)
        some, self._jobs = self._jobs[:5], self._jobs[5:]
        return [Ending(job.id, job.token, self._rng.choice(outcomes)) for job in some]

    def settle(self) -> None:
        if endings := self.endings():
            self.h.call(self.h.commands.settle(endings))

    def settle_and_take(self) -> None:
        """Ends leases, sweeps and dequeues in one call, with several writes each."""
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
                leases, _ = self.h.call(self.h.commands.leases(client, b"", 1000))
                deaths = [Ending(*lease, Died(len(leases))) for lease in leases]
                if deaths:
                    self.h.call(self.h.commands.settle(deaths))
            case _:
                self.h.call(self.h.commands.evict(client))

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
    """Restarts a server with its file truncated at any length."""

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
    """Leases can be ended, due jobs are dequeued, and the queue becomes empty."""
    h.call(h.commands.configure(paused=False, limits=JobOptions(max_stalls=9)))
    assert h.dispatch("fresh") == "created"
    h.dispatch("heard")
    h.later_with_calls(32)  # every lease expires
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
        # Random offsets: most are inside calls, since long calls have most of the bytes.
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


def test_truncated_append_only_file_holds_whole_calls_only(
    kind: ServerKind, tmp_path: Path, seed: int
) -> None:
    cut_at_random(kind, tmp_path, seed, calls=350, cuts=15)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_append_only_file_truncated_at_200_places_holds_whole_calls_only(
    kind: ServerKind, tmp_path: Path, seed: int
) -> None:
    cut_at_random(kind, tmp_path, seed, calls=600, cuts=200)
