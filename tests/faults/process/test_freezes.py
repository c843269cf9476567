"""Processes that freeze for longer than the lease, and then resume.

Their jobs run elsewhere, their outcomes are rejected, and they recover by themselves.
"""

import os
import signal
from collections.abc import Iterator

import pytest

from queasy import SyncClient
from queasy.sync import SyncQueue
from queasy.worker.lease_times import DEFAULT_TIMES
from tests.servers import Server, wait_until
from tests.worker.fleet import (
    ON_ONE_SERVER,
    Fleet,
    Played,
    Running,
    Together,
    alive,
    totals,
    wait_until_gone,
)

BUMP_EVERY = DEFAULT_TIMES.bump_every
LEASE = DEFAULT_TIMES.lease

pytestmark = ON_ONE_SERVER
together = Together()
OWN = ("--queue", "plain", "--queue", "small")  # only the frozen worker serves `small`
LAST_WORDS = "leases are not kept: killing all runs"
SHARED = ("--queue", "plain")


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, server: Server) -> Iterator[Played]:
    with together.playing(request, server) as playing:
        yield playing


def wait_until_renewal_is_near(queue: SyncQueue) -> None:
    """Waits for the worst moment of a freeze: the rest of the lease is shortest."""
    near = LEASE - BUMP_EVERY + 0.2

    def left() -> float:
        return min((c.expires_in for c in queue.clients() if c.leases), default=LEASE)

    wait_until(lambda: left() < near, "the next heartbeat is due")


def assert_serves_again(fleet: Fleet, client: SyncClient, worker: Running) -> None:
    client.queue("small").dispatch(None, id="later")
    (end,) = fleet.journal.wait_for("end", id="later")
    assert end["pid"] in [worker.pid, *worker.children()]


@together
def test_frozen_worker_is_replaced_and_its_job_runs_elsewhere(
    fleet: Fleet, client: SyncClient
) -> None:
    worker = fleet.serve(*SHARED, processes=2)
    plain = client.queue("plain")
    plain.dispatch({"first": {"sleep": 60}}, id="job")
    (start,) = fleet.journal.wait_for("start", id="job")
    os.kill(start["pid"], signal.SIGSTOP)
    (end,) = fleet.journal.wait_for("end", id="job")
    assert end["pid"] != start["pid"]
    assert end["stalls"] == 1
    worker.wait_until_serving(3)
    assert not alive(start["pid"])
    assert len(worker.children()) == 2
    (death,) = worker.events("process_died")
    assert "why=sigstop" in death
    assert worker.stop() == 0
    assert totals(plain)["finished"] == totals(plain)["stalled"] == 1


@together
def test_workers_of_a_frozen_supervisor_end_before_their_lease(
    fleet: Fleet, client: SyncClient
) -> None:
    # No capacity for another job: otherwise its own poll could reveal the lost lease.
    worker = fleet.serve(*OWN, "--capacity", "10", processes=1)
    plain = client.queue("plain")
    # The handler ignores interrupts: otherwise the run might end before the process is killed.
    plain.dispatch({"first": {"tick": 60, "deaf": True}}, id="job")
    (first,) = fleet.journal.wait_for("start", id="job")
    other = fleet.serve(*SHARED, processes=1)
    wait_until_renewal_is_near(plain)
    worker.signal(signal.SIGSTOP)
    (end,) = fleet.journal.wait_for("end", id="job")
    assert [end["pid"]] == other.children()
    wait_until_gone([first["pid"]], 30)
    (_, second) = fleet.journal.lines("start", id="job")
    last = fleet.journal.lines("tick", id="job", pid=first["pid"])[-1]

    worker.signal(signal.SIGCONT)
    assert_serves_again(fleet, client, worker)
    assert worker.stop() == 0
    assert totals(plain)["finished"] == totals(plain)["stalled"] == 1
    overlap = last["at"] - second["at"]
    print(f"the first run ended {-overlap:.2f} s before the second started")
    assert overlap < 0


@together
def test_outcome_of_a_worker_frozen_with_its_supervisor_is_rejected(
    fleet: Fleet, client: SyncClient
) -> None:
    worker = fleet.serve(*OWN, processes=1)
    plain = client.queue("plain")
    plain.dispatch({"first": {"sleep": 3}, "then": {"sleep": 3}}, id="job")
    (first,) = fleet.journal.wait_for("start", id="job")
    for pid in (first["pid"], worker.pid):
        os.kill(pid, signal.SIGSTOP)
    other = fleet.serve(*SHARED, processes=1)
    (second,) = fleet.journal.wait_for("start", id="job", stalls=1)
    assert [second["pid"]] == other.children()

    # The first run ends while the second goes on, before its supervisor can prevent it.
    os.kill(first["pid"], signal.SIGCONT)
    # Or its own poll reveals the lost lease, and the process ends before its run does.
    ended = lambda: fleet.journal.lines("end", id="job", pid=first["pid"])  # noqa: E731
    wait_until(lambda: bool(ended()) or not alive(first["pid"]), "its run is over")
    os.kill(worker.pid, signal.SIGCONT)
    # The server rejects the outcome, or a poll before it. Or, if its event loop is late for both,
    # the process notices by itself that its lease was not kept.
    told = lambda: (  # noqa: E731
        worker.events("outcome_refused")
        or worker.events("worker_declared_dead")
        or LAST_WORDS in worker.log
    )
    wait_until(lambda: bool(told()), "its outcome is rejected")
    wait_until_gone([first["pid"]], 30)
    assert_serves_again(fleet, client, worker)
    fleet.journal.wait_for("end", id="job", pid=second["pid"])
    wait_until(lambda: plain.get("job") is None, "it is finished")
    assert worker.stop() == other.stop() == 0
    counted = totals(plain)
    assert counted["finished"] == counted["stalled"] == 1
    assert counted["dequeued"] == 2
    assert not other.events("outcome_refused")


@together
def test_frozen_inline_worker_comes_back_under_a_new_id(fleet: Fleet, client: SyncClient) -> None:
    worker = fleet.serve(*OWN, processes=0)
    plain = client.queue("plain")
    plain.dispatch({"first": {"sleep": 3}}, id="job")
    (start,) = fleet.journal.wait_for("start", id="job")
    assert start["pid"] == worker.pid
    (before,) = (c.id for c in plain.clients() if c.leases)
    worker.signal(signal.SIGSTOP)
    other = fleet.serve(*SHARED, processes=1)
    (end,) = fleet.journal.wait_for("end", id="job")
    assert [end["pid"]] == other.children()
    wait_until(lambda: plain.get("job") is None, "it is finished")

    worker.signal(signal.SIGCONT)
    wait_until(lambda: bool(worker.events("worker_declared_dead")), "it is declared dead")
    assert before in worker.events("worker_declared_dead")[0]
    assert_serves_again(fleet, client, worker)
    assert before not in [c.id for c in plain.clients()]
    assert len(worker.events("worker_started")) == 2
    assert worker.stop() == 0
    counted = totals(plain)
    assert counted["finished"] == counted["stalled"] == 1
