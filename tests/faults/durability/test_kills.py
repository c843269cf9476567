"""The server is killed, or its power cut, under load: what it promised to keep is kept."""

import math
import os
import random
import subprocess
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from queasy import SyncClient
from queasy.errors import QueasyError
from tests.faults.aof import file_of
from tests.servers import Server, ServerKind, find_binary, start_server, wait_until


class Load:
    """Producers and consumers in threads, which record every answer and retry for ever."""

    def __init__(self, server: Server, file: Path) -> None:
        self._server, self._file = server, file
        self._over = threading.Event()
        self.accepted: dict[str, tuple[float, float]] = {}
        """When each dispatch was acknowledged, and the length of the file at that time."""
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
                    self.refused += 1  # the server was down, or the lease lost

    def _produce(self, client: SyncClient, id_: str) -> None:
        life = self.lives
        client.queue("q").dispatch({"n": id_}, id=id_)
        size = self._file.stat().st_size
        # If the server was killed meanwhile, this may be the size of a truncated file.
        self.accepted[id_] = (time.monotonic(), size if self.lives == life else math.inf)

    def _consume(self, client: SyncClient, _: str) -> None:
        lease = client.queue("q").lease(seconds=2, timeout=0.3)
        if lease:
            self.tokens.append((time.monotonic(), lease.job.token))
            self.ran.add(lease.job.id)
            lease.complete()


def drain(server: Server, load: Load) -> None:
    """Runs every job that is left, including those with expired leases."""
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
    """Audits the queue before it is drained."""
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
                if fsync == "everysec":  # the server may answer two seconds before it writes
                    accepted, now = list(load.accepted.items()), time.monotonic()
                    lost |= {id_ for id_, (at, _) in accepted if at > now - 3}
                highest = max((token for _, token in load.tokens), default=0)
                seen = len(load.tokens)
                if power_cut:
                    lost |= cut_power(server, file, load, rng)
                server.start()
                wait_until(lambda seen=seen: len(load.tokens) > seen + 5, "jobs run again")
                fresh = [
                    token for _, token in load.tokens[seen + 2 :]
                ]  # the two consumers may hold a job from before
                assert min(fresh) > highest, f"tokens went back, seed {seed}"
        audited(server)
        drain(server, load)
        if fsync != "always":  # recorded after a kill, perhaps answered before it
            lost |= {id_ for id_, (_, size) in load.accepted.items() if size == math.inf}
        missing = set(load.accepted) - load.ran
        assert missing <= lost, f"{len(missing - lost)} accepted jobs are lost, seed {seed}"
        tokens_grow(load)


def cut_power(server: Server, file: Path, load: Load, rng: random.Random) -> set[str]:
    """Truncates some of the last two seconds, as if never synced; returns ids that may be lost."""
    now, length = time.monotonic(), file.stat().st_size
    accepted = list(load.accepted.items())
    synced = [size for _, (at, size) in accepted if at < now - 2 and size <= length]
    kept = rng.randint(int(max(synced, default=0)), length)
    os.truncate(file, kept)
    if server.kind is ServerKind.REDIS:
        mend(server, file)
    return {id_ for id_, (_, size) in accepted if size > kept}


def mend(server: Server, file: Path) -> None:
    """Repairs the file, as docs/guides/deployment.md requires. Redis 7.0 would cut only the last
    command of an open transaction and append later writes to the rest of it; the next start undoes
    them.
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


def test_power_cut_loses_at_most_the_last_two_seconds(kind: ServerKind, seed: int) -> None:
    killed_under_load(kind, seed, 3, "no", power_cut=True)


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fsync", ["always", "everysec"])
def test_forty_kills_of_the_server_lose_no_more_than_they_may(
    kind: ServerKind, seed: int, fsync: str
) -> None:
    killed_under_load(kind, seed, 40, fsync)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_forty_power_cuts_lose_at_most_the_last_two_seconds_each(
    kind: ServerKind, seed: int
) -> None:
    killed_under_load(kind, seed, 40, "no", power_cut=True)


def test_lease_survives_a_kill_of_the_server(kind: ServerKind) -> None:
    with (
        start_server(kind, appendonly=True, appendfsync="always") as server,
        SyncClient(server.url) as client,
    ):
        queue = client.queue("q")
        queue.dispatch({"n": 1}, id="a")
        lease = queue.lease(seconds=30)
        queue.dispatch({"n": 2}, id="a")  # blocked until the lease ends
        server.kill()
        server.start()
        assert queue.lease(timeout=0) is None, "the job is still leased"
        assert lease.extend(30)
        assert lease.complete()
        again = queue.lease(timeout=0)
        assert again
        assert again.job.data == {"n": 2}
        assert again.job.token > lease.job.token
        assert again.complete()
        assert queue.audit() == []
