"""Cancelling a running job: its handler is interrupted or killed, and no other job suffers."""

import time
from collections.abc import Iterator

import pytest

from queasy import Dispatch, SyncClient
from queasy.sync import SyncQueue
from tests.servers import Server, wait_until
from tests.worker.fleet import Fleet, Played, Together, alive, totals, wait_until_gone

together = Together()
SERVED = ("--queue", "plain", "--queue", "waits")


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, server: Server) -> Iterator[Played]:
    with together.playing(request, server) as playing:
        yield playing


def cancel(queue: SyncQueue) -> None:
    """Cancels the job, and waits until it is gone."""
    start = time.monotonic()
    assert queue.cancel("job", running=True)
    wait_until(lambda: queue.get("job") is None, "it is gone")
    print(f"gone {time.monotonic() - start:.2f} s after the call")


def assert_cancelled(fleet: Fleet, queue: SyncQueue) -> None:
    """Asserts that the job neither finished nor failed nor was retried."""
    assert len(fleet.journal.lines("start", id="job")) == 1
    assert not fleet.journal.lines("end", id="job")
    assert not fleet.journal.lines("gave up")
    counted = totals(queue)
    assert counted["cancelled"] == 1
    assert not {"retried", "stalled", "timed_out", "failed"} & counted.keys()
    assert queue.counts().waiting == queue.counts().failed == 0


def start_neighbours(fleet: Fleet, client: SyncClient, seconds: float) -> list[str]:
    for name in ("plain", "waits"):
        client.queue(name).dispatch_many([Dispatch({"sleep": seconds}, id=f"{name}-neighbour")])
    ids = ["plain-neighbour", "waits-neighbour"]
    for id_ in ids:
        fleet.journal.wait_for("start", id=id_)
    return ids


def test_cancelled_async_handler_is_interrupted_within_half_a_second(
    fleet: Fleet, sync_client: SyncClient
) -> None:
    worker = fleet.serve(processes=1)
    waits = sync_client.queue("waits")
    waits.dispatch({"sleep": 60}, id="job")
    fleet.journal.wait_for("start", id="job")
    asked_at = time.monotonic()
    cancel(waits)
    (line,) = fleet.journal.wait_for("cancelled", id="job")
    print(f"interrupted after {line['at'] - asked_at:.3f} s")
    assert line["at"] - asked_at < 0.5
    assert line["asked"]
    assert worker.children() == [line["pid"]]
    assert worker.stop() == 0
    assert_cancelled(fleet, waits)


@together
def test_a_cancelled_python_loop_is_interrupted(fleet: Fleet, client: SyncClient) -> None:
    worker = fleet.serve(*SERVED, processes=1)
    children = worker.children()
    plain = client.queue("plain")
    plain.dispatch({"spin": 60}, id="job")
    fleet.journal.wait_for("start", id="job")
    cancel(plain)
    assert worker.children() == children
    assert not worker.events("process_killing") + worker.events("process_draining")
    assert worker.stop() == 0
    assert_cancelled(fleet, plain)


@together
def test_a_cancelled_run_that_cannot_be_interrupted_is_killed_when_its_neighbours_ended(
    fleet: Fleet, client: SyncClient
) -> None:
    worker = fleet.serve(*SERVED, processes=1)
    plain = client.queue("plain")
    neighbours = start_neighbours(fleet, client, 3)
    plain.dispatch({"sleep": 60}, id="job")
    (start,) = fleet.journal.wait_for("start", id="job")
    cancel(plain)
    assert not alive(start["pid"])
    for id_ in neighbours:
        (end,) = fleet.journal.wait_for("end", id=id_)
        assert end["pid"] == start["pid"]
        assert len(fleet.journal.lines("start", id=id_)) == 1
    assert worker.stop() == 0
    assert_cancelled(fleet, plain)


@together
def test_a_cancelled_run_that_holds_the_gil_is_killed_and_its_neighbours_end_elsewhere(
    fleet: Fleet, client: SyncClient
) -> None:
    worker = fleet.serve(*SERVED, processes=1)
    plain = client.queue("plain")
    neighbours = start_neighbours(fleet, client, 1)
    plain.dispatch({"gil": 60}, id="job")
    (start,) = fleet.journal.wait_for("start", id="job")
    cancel(plain)
    wait_until_gone([start["pid"]], 30)
    for id_ in neighbours:
        (end,) = fleet.journal.wait_for("end", id=id_)
        assert end["pid"] != start["pid"]
        assert end["stalls"] == end["timeouts"] == end["retries"] == 0
    assert worker.stop() == 0
    assert_cancelled(fleet, plain)


def test_cancel_with_a_lost_message_arrives_with_the_next_heartbeat(
    fleet: Fleet, server: Server, sync_client: SyncClient
) -> None:
    # No capacity for another job: only the heartbeat calls the server for this queue.
    worker = fleet.serve("--queue", "waits", "--capacity", "10", processes=1)
    waits = sync_client.queue("waits")
    waits.dispatch({"sleep": 60}, id="job")
    fleet.journal.wait_for("start", id="job")
    assert server.call("CLIENT", "KILL", "TYPE", "pubsub") >= 1
    cancel(waits)
    (line,) = fleet.journal.wait_for("cancelled", id="job")
    assert line["asked"]
    assert worker.stop() == 0
    assert_cancelled(fleet, waits)
