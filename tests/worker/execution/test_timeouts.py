"""Runs past their timeout are interrupted, and at last killed; other runs do not suffer."""

import time
from collections.abc import Iterator

import pytest

from queasy import Dispatch, JobOptions, SyncClient
from queasy.worker.lease_times import DEFAULT_TIMES
from tests.servers import Server, wait_until
from tests.worker.fleet import (
    ON_ONE_SERVER,
    Fleet,
    Played,
    Together,
    alive,
    totals,
    wait_until_gone,
)

LEASE = DEFAULT_TIMES.lease

pytestmark = ON_ONE_SERVER
together = Together()


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, server: Server) -> Iterator[Played]:
    with together.playing(request, server) as playing:
        yield playing


def start_neighbours(fleet: Fleet, client: SyncClient, seconds: float) -> list[str]:
    """Starts plain and async jobs; returns their ids when all run."""
    for name in ("plain", "waits"):
        data = {"sleep": seconds}
        client.queue(name).dispatch_many([Dispatch(data, id=f"{name}-{n}") for n in range(3)])
    ids = [f"{name}-{n}" for name in ("plain", "waits") for n in range(3)]
    for id_ in ids:
        fleet.journal.wait_for("start", id=id_)
    return ids


def assert_undisturbed(fleet: Fleet, ids: list[str], child: int) -> None:
    """Asserts that each ran once, from start to end, in this process."""
    for id_ in ids:
        (end,) = fleet.journal.wait_for("end", id=id_)
        (start,) = fleet.journal.lines("start", id=id_)
        assert start["pid"] == end["pid"] == child


def test_process_with_a_handler_that_holds_the_gil_is_killed_two_seconds_after_a_timeout(
    fleet: Fleet, sync_client: SyncClient
) -> None:
    """No thread of the process can say which run it is, so that all become suspects."""
    worker = fleet.serve(processes=1)
    neighbours = start_neighbours(fleet, sync_client, 3)
    timed = sync_client.queue("timed")
    timed.dispatch({"first": {"gil": 30}}, id="job")
    (start,) = fleet.journal.wait_for("start", id="job")
    child = start["pid"]
    assert worker.children() == [child]
    wait_until_gone([child], 30)
    took = time.monotonic() - start["at"]
    print(f"dead {took:.2f} s after its start")
    assert took < 4

    for id_ in ["job", *neighbours]:
        (end,) = fleet.journal.wait_for("end", id=id_)
        first, second = fleet.journal.lines("start", id=id_)
        assert first["pid"] == child != second["pid"] == end["pid"]
        assert second["stalls"] == second["timeouts"] == second["retries"] == 0
    assert worker.stop() == 0
    for name in ("plain", "waits"):
        counted = totals(sync_client.queue(name))
        assert counted["finished"] == 3
        assert counted["stalled"] == 3
        assert not {"timed_out", "failed"} & counted.keys()
    assert totals(timed)["stalled"] == totals(timed)["finished"] == 1


@together
def test_a_job_may_hold_the_gil_for_longer_than_the_lease(fleet: Fleet, client: SyncClient) -> None:
    fleet.serve("--queue", "plain", processes=2)
    plain = client.queue("plain")
    plain.dispatch({"gil": 18}, id="job")
    (end,) = fleet.journal.wait_for("end", id="job")
    (start,) = fleet.journal.lines("start", id="job")
    assert end["at"] - start["at"] > LEASE + 4
    wait_until(lambda: plain.get("job") is None, "it is finished")
    counted = totals(plain)
    assert counted["finished"] == counted["dequeued"] == 1
    assert "stalled" not in counted


@together
def test_an_async_handler_past_its_timeout_is_cancelled_and_nothing_else_happens(
    fleet: Fleet, client: SyncClient
) -> None:
    worker = fleet.serve("--queue", "plain", "--queue", "waits", processes=1)
    (child,) = worker.children()
    neighbours = start_neighbours(fleet, client, 4)
    data, options = {"first": {"sleep": 30}}, JobOptions(timeout=0.5)
    client.queue("waits").dispatch(data, id="job", options=options)
    (cancelled,) = fleet.journal.wait_for("cancelled", id="job")
    assert not cancelled["asked"]
    (end,) = fleet.journal.wait_for("end", id="job")
    assert end["timeouts"] == 1
    assert end["pid"] == cancelled["pid"] == child
    assert_undisturbed(fleet, neighbours, child)
    assert worker.children() == [child]
    assert not worker.events("process_killing") + worker.events("process_draining")


@together
def test_a_python_loop_past_its_timeout_is_interrupted_and_nothing_else_happens(
    fleet: Fleet, client: SyncClient
) -> None:
    worker = fleet.serve("--queue", "plain", "--queue", "waits", processes=1)
    (child,) = worker.children()
    neighbours = start_neighbours(fleet, client, 4)
    data, options = {"first": {"spin": 30}}, JobOptions(timeout=0.5)
    client.queue("plain").dispatch(data, id="job", options=options)
    (end,) = fleet.journal.wait_for("end", id="job")
    assert end["timeouts"] == 1
    assert end["pid"] == child
    assert_undisturbed(fleet, neighbours, child)
    assert worker.children() == [child]
    assert not worker.events("process_killing") + worker.events("process_draining")


@together
def test_worker_with_an_uninterruptible_run_is_drained_then_killed(
    fleet: Fleet, client: SyncClient
) -> None:
    worker = fleet.serve(processes=1)
    (child,) = worker.children()
    neighbours = start_neighbours(fleet, client, 6)
    timed = client.queue("timed")
    data, options = {"first": {"sleep": 60}}, JobOptions(timeout=0.5)
    timed.dispatch(data, id="job", options=options)
    wait_until(lambda: bool(worker.events("process_draining")), "it is drained")
    # Another process serves while the neighbours end in this one.
    client.queue("small").dispatch(None, id="later")
    (later,) = fleet.journal.wait_for("end", id="later")
    assert later["pid"] != child
    assert alive(child)
    assert_undisturbed(fleet, neighbours, child)
    (again,) = fleet.journal.wait_for("start", id="job", timeouts=1)
    assert again["pid"] == later["pid"]
    assert not alive(child)
    fleet.journal.wait_for("end", id="job", timeouts=1)
    assert worker.stop() == 0
    assert totals(timed)["timed_out"] == totals(timed)["finished"] == 1


@together.of(interrupted={"spin": 60}, killed={"sleep": 60})
def test_job_that_times_out_too_often_fails(
    fleet: Fleet, client: SyncClient, case: dict[str, int]
) -> None:
    worker = fleet.serve("--queue", "timed", processes=1)
    timed = client.queue("timed")
    timed.dispatch(case, id="job", options=JobOptions(timeout=0.3, max_timeouts=3))
    (given_up,) = fleet.journal.wait_for("gave up", id="job")
    assert given_up["kind"] == "timeout"
    assert given_up["timeouts"] == 3
    starts = fleet.journal.lines("start", id="job")
    assert [line["timeouts"] for line in starts] == [0, 1, 2]
    assert [line["stalls"] for line in starts] == [0, 0, 0]
    assert worker.stop() == 0
    assert len(fleet.journal.lines("gave up")) == 1
    assert totals(timed.fail_queue)["finished"] == 1
    assert [job.id for job in timed.jobs("failed")] == ["job"]


def test_process_name_that_is_not_utf8_does_not_stop_the_watchdog(
    fleet: Fleet, sync_client: SyncClient
) -> None:
    """Bug: the watchdog could not read it, and stopped checking timeouts."""
    worker = fleet.serve("--queue", "timed", processes=1)
    sync_client.queue("timed").dispatch({"first": {"rename": True}, "then": {}}, id="odd")
    (start, again) = fleet.journal.wait_for("start", 2, id="odd")
    assert again["timeouts"] == 1
    assert again["pid"] != start["pid"]
    assert worker.stop() == 0
