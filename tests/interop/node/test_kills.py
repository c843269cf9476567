"""Holders die by SIGKILL while they run jobs: no job is lost, and none runs twice at once."""

import itertools
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.node.harness import NodeQueue
from tests.servers import Server, wait_until

ROOT = Path(__file__).parents[3]
JOBS, HOLDERS, KILLS = 120, 4, 12


class Holders:
    """Processes that hold jobs, half of them through our adapter."""

    def __init__(self, server: Server, q: NodeQueue, log: str) -> None:
        self._server, self._q, self._log = server, q, log
        self._kinds = itertools.cycle(("adapter", "functions"))
        self.alive: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        args = (next(self._kinds), self._server.admin_url, self._q.key, self._log)
        program = [sys.executable, "-m", "tests.interop.node.holder", *args]
        self.alive.append(subprocess.Popen(program, cwd=ROOT))

    def kill(self, holder: subprocess.Popen[bytes]) -> None:
        """Its runs count as over from here, also one that it notes before the signal arrives: that
        job stays its own until it expires.
        """
        self._q.redis.rpush(self._log, f"dead - {holder.pid}")
        holder.kill()
        holder.wait()
        self.alive.remove(holder)

    def kill_one_that_runs(self, chance: random.Random) -> None:
        running = {pid for pid, ids in self.running().items() if ids}
        found = [one for one in self.alive if str(one.pid) in running]
        if found:
            self.kill(chance.choice(found))
            self.start()

    def events(self) -> list[list[str]]:
        return [line.split() for line in self._q.redis.lrange(self._log, 0, -1)]

    def running(self) -> dict[str, set[str]]:
        """The ids that each process runs, after what it has noted; fails if two run the same."""
        runs: dict[str, set[str]] = {}
        dead: set[str] = set()
        for what, id_, pid in self.events():
            if what == "start" and pid not in dead:
                others = [other for other in runs if other != pid and id_ in runs[other]]
                assert not others, f"{id_} runs in {pid} and {others} at once"
                runs.setdefault(pid, set()).add(id_)
            elif what == "end":
                runs[pid].discard(id_)
            elif what == "dead":
                runs[pid] = set()
                dead.add(pid)
        return runs

    def ids(self, *whats: str) -> list[str]:
        """The ids of all events of these kinds."""
        return [id_ for what, id_, _ in self.events() if what in whats]


@pytest.fixture
def holders(server: Server, q: NodeQueue) -> Iterator[Holders]:
    log = f"{q.key}:holders-log"
    holders = Holders(server, q, log)
    yield holders
    for holder in holders.alive[:]:
        holders.kill(holder)
    q.redis.delete(log)


def test_killed_holders_lose_no_job_and_none_runs_twice_at_once(
    holders: Holders, q: NodeQueue, seed: int
) -> None:
    chance = random.Random(seed)
    for _ in range(HOLDERS):
        holders.start()
    for number in range(JOBS):
        q.dispatch(f"job-{number:03}", 0, str(number))
    killed = 0

    def kill_more() -> bool:
        nonlocal killed
        before = {one.pid for one in holders.alive}
        holders.kill_one_that_runs(chance)
        killed += {one.pid for one in holders.alive} != before
        return killed >= KILLS

    wait_until(kill_more, "the last holder is killed")
    wait_until(lambda: not (q.audit().scores or q.audit().active_jobs), "every job is done", 60)
    holders.running()
    done = holders.ids("done")
    assert len(done) == len(set(done))
    # A holder may be killed after it has finished a job, and before it notes that.
    assert len(done) >= JOBS - KILLS
    assert set(holders.ids("end")) == {f"job-{number:03}" for number in range(JOBS)}
    assert holders.ids("lost", "odd") == []
    starts = len(holders.ids("start"))
    assert JOBS < starts <= JOBS + KILLS
    print(f"{JOBS} jobs, {killed} holders killed while they ran one: {starts - JOBS} runs again")
