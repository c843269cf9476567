"""A whole host dies or freezes: its jobs run on another host in bounded time."""

import os
import signal
import time
from collections.abc import Iterator

import pytest
import redis

from queasy import SyncClient
from queasy.worker.lease_times import DEFAULT_TIMES
from tests.servers import Server, wait_until
from tests.worker.fleet import ON_ONE_SERVER, Fleet, Played, Running, Together
from tests.worker.idling import QUEUES

LEASE = DEFAULT_TIMES.lease

pytestmark = ON_ONE_SERVER
together = Together()

CROWD = [name for name in QUEUES if name.startswith("crowd-")]
# A dead host's jobs return within one lease and this many seconds.
GRACE = 10.0
# An idle worker with few queues had a lease of 29 seconds, and has one of 21.
LONGEST_IDLE_LEASE = 32.0


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, server: Server) -> Iterator[Played]:
    with together.playing(request, server) as playing:
        yield playing


def _two_hosts(fleet: Fleet) -> tuple[Running, Running]:
    """Two hosts whose workers all sleep for longer than a dead host's jobs may take to return: they
    serve so many queues that each polls only once a minute.
    """
    hosts = (
        _start_host(fleet, "one", *QUEUES, processes=4),
        _start_host(fleet, "two", *QUEUES, processes=4),
    )
    prefix = fleet.environment["TEST_PREFIX"]
    with redis.Redis.from_url(fleet.environment["TEST_URL"]) as connection:
        for name in CROWD:
            key = f"{prefix}:{{{name}}}:waiters"

            def asleep(key: str = key) -> bool:
                after = (time.time() + LEASE + GRACE + 5) * 1000
                return connection.zcount(key, after, "+inf") == 8

            wait_until(asleep, "all workers sleep for long", 60)
    return hosts


def _start_host(fleet: Fleet, host: str, *queues: str, processes: int = 1) -> Running:
    fleet.environment["QUEASY_HOST"] = host
    options = [word for name in queues for word in ("--queue", name)]
    return fleet.serve(*options, processes=processes)


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
def test_jobs_of_a_killed_supervisor_start_in_another_one_of_the_same_host_in_time(
    fleet: Fleet, client: SyncClient
) -> None:
    """Bug: the two workers that keep the time were both of the supervisor that died. The other one
    polled after half a minute, and that silence counted as an outage: jobs waited 41 s.
    """
    names = ["waits", *CROWD[:9]]
    one, two = (_start_host(fleet, "same", *names, processes=3) for _ in range(2))
    client.queue("waits").dispatch({"first": {"sleep": 90}, "then": {}}, id="lost")
    pid = fleet.journal.wait_for("start", 1, id="lost")[0]["pid"]
    dead, other = (one, two) if pid in one.children() else (two, one)
    dead.kill()
    killed_at = time.monotonic()
    again = fleet.journal.wait_for("start", 2, id="lost", seconds=LEASE + GRACE)[1]
    assert again["at"] - killed_at < LEASE + GRACE
    assert again["pid"] in other.children()
    assert other.stop() == 0


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


@together
def test_a_job_handed_to_an_idle_worker_of_a_frozen_host_starts_elsewhere_in_time(
    fleet: Fleet, client: SyncClient
) -> None:
    """Bug: the lease of an idle worker lasted half a minute, and the job waited that long."""
    queue = client.queue("waits")
    frozen = _start_host(fleet, "one", "waits")
    queue.dispatch({})
    fleet.journal.wait_for("end", 1)
    other = _start_host(fleet, "two", "waits")
    _signal_host(frozen, signal.SIGSTOP)
    sent_at = time.monotonic()
    queue.dispatch({}, id="handed off")
    assert queue.counts().active == 1, "a worker that cannot run has it"
    start = fleet.journal.wait_for("start", 1, id="handed off", seconds=40)[0]
    assert start["at"] - sent_at < LEASE + GRACE
    assert start["pid"] in other.children()
    _signal_host(frozen, signal.SIGKILL)
    assert other.stop() == 0


@together
def test_full_workers_with_a_backlog_return_the_jobs_of_a_dead_host(
    fleet: Fleet, client: SyncClient
) -> None:
    """Bug: a full worker that left room for eight starved queues looked at no other queue."""
    full = _start_host(fleet, "one", "whole", "waits", *CROWD)
    client.queue("whole").dispatch({"sleep": 60})
    fleet.journal.wait_for("start", 1)
    for name in CROWD:
        client.queue(name).dispatch({})
    dead = _start_host(fleet, "two", "waits")
    queue = client.queue("waits")
    queue.dispatch({"first": {"sleep": 90}, "then": {}}, id="lost")
    fleet.journal.wait_for("start", 1, id="lost")
    _signal_host(dead, signal.SIGKILL)
    wait_until(lambda: queue.counts().due == 1, "the job waits again", LEASE + GRACE)
    assert not full.events("process_ended")
    assert full.process.poll() is None
    _signal_host(full, signal.SIGKILL)


@together
def test_full_worker_beside_a_job_that_does_not_fit_stays_alive(
    fleet: Fleet, client: SyncClient
) -> None:
    """Bug: it asked for that job again and again, without heartbeats: its lease ran out, the other
    worker swept it, and its process was replaced with all its runs.
    """
    full = _start_host(fleet, "one", "whole", "high")
    client.queue("whole").dispatch({"sleep": 60})
    fleet.journal.wait_for("start", 1)
    other = _start_host(fleet, "two", "high")
    for _ in range(8):  # twice as many as fit
        client.queue("high").dispatch({"sleep": 60})
    fleet.journal.wait_for("start", 5)
    time.sleep(LONGEST_IDLE_LEASE)
    assert not full.events("worker_declared_dead")
    assert len(fleet.journal.lines("start")) == 5
    for host in (full, other):
        _signal_host(host, signal.SIGKILL)
