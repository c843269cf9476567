"""A whole host dies or freezes: its jobs run on another host in bounded time."""

import os
import signal
import time
from collections.abc import Iterator

import pytest
import redis

from queasy import SyncClient
from queasy.worker.plan import LEASE
from tests.servers import Server, wait_until
from tests.worker.fleet import ON_ONE_SERVER, Fleet, Played, Running, Together
from tests.worker.idling import QUEUES

pytestmark = ON_ONE_SERVER
together = Together()

CROWD = [name for name in QUEUES if name.startswith("crowd-")]
# A dead host's jobs return within one lease and this many seconds.
GRACE = 10.0


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, server: Server) -> Iterator[Played]:
    with together.playing(request, server) as playing:
        yield playing


def _serve(fleet: Fleet, host: str, processes: int) -> Running:
    """Workers of so many queues that each polls only once a minute."""
    fleet.environment["QUEASY_HOST"] = host
    options = [word for name in QUEUES for word in ("--queue", name)]
    return fleet.serve(*options, processes=processes)


def _two_hosts(fleet: Fleet) -> tuple[Running, Running]:
    """Two hosts whose workers all sleep for longer than a dead host's jobs may take to return."""
    hosts = _serve(fleet, "one", 4), _serve(fleet, "two", 4)
    prefix = fleet.environment["TEST_PREFIX"]
    with redis.Redis.from_url(fleet.environment["TEST_URL"]) as connection:
        for name in CROWD:
            key = f"{prefix}:{{{name}}}:waiters"

            def asleep(key: str = key) -> bool:
                after = (time.time() + LEASE + GRACE + 5) * 1000
                return connection.zcount(key, after, "+inf") == 8

            wait_until(asleep, "all workers sleep for long", 60)
    return hosts


def _signal_host(host: Running, number: signal.Signals) -> None:
    for pid in [*host.children(), host.pid]:
        os.kill(pid, number)


@together
def test_jobs_of_a_dead_host_start_on_another_host_within_a_lease_and_ten_seconds(
    fleet: Fleet, client: SyncClient
) -> None:
    """Bug: the waiter that was to notice was often on the dead host: jobs waited up to 67 s."""
    dead, other = _two_hosts(fleet)
    for name in CROWD:
        client.queue(name).dispatch({"first": {"sleep": 90}, "then": {}}, id=name)
    starts = fleet.journal.wait_for("start", len(CROWD))
    pids = dead.children()
    if not any(start["pid"] in pids for start in starts):
        dead, other, pids = other, dead, other.children()
    lost = [start["id"] for start in starts if start["pid"] in pids]
    killed_at = time.monotonic()
    _signal_host(dead, signal.SIGKILL)
    for id_ in lost:
        again = fleet.journal.wait_for("start", 2, id=id_, seconds=LEASE + GRACE)[1]
        assert again["pid"] in other.children()
        assert again["at"] - killed_at < LEASE + GRACE
    assert lost
    _signal_host(other, signal.SIGKILL)


@together
def test_jobs_do_not_wait_for_idle_workers_of_a_frozen_host(
    fleet: Fleet, client: SyncClient
) -> None:
    """Bug: the wake-up went to a worker that could not read it, and the job waited up to 56 s."""
    frozen, other = _two_hosts(fleet)
    _signal_host(frozen, signal.SIGSTOP)
    sent_at = time.monotonic()
    for name in CROWD:
        client.queue(name).dispatch({}, id=name)
    starts = fleet.journal.wait_for("start", len(CROWD))
    assert {start["pid"] for start in starts} <= set(other.children())
    assert max(start["at"] for start in starts) - sent_at < GRACE
    _signal_host(frozen, signal.SIGKILL)
    assert other.stop() == 0
