"""Processes that die: their jobs run elsewhere at once, and other jobs do not suffer."""

import os
import signal
import time
from contextlib import suppress

import pytest

from queasy import JobOptions, SyncClient
from tests.worker.fleet import ON_ONE_SERVER, Fleet, totals, wait_until_gone


def test_jobs_of_a_killed_worker_run_elsewhere_within_a_second(
    fleet: Fleet, sync_client: SyncClient
) -> None:
    worker = fleet.serve(processes=2)
    waits = sync_client.queue("waits")
    waits.dispatch({"first": {"sleep": 60}}, id="job")
    (start,) = fleet.journal.wait_for("start", id="job")
    os.kill(start["pid"], signal.SIGKILL)
    first, second = fleet.journal.wait_for("start", 2, id="job", seconds=1)
    assert second["pid"] != first["pid"]
    assert second["stalls"] == 1
    assert second["token"] > first["token"]
    fleet.journal.wait_for("end", id="job")
    assert worker.stop() == 0
    assert waits.counts().active == 0
    assert totals(waits)["finished"] == 1


@ON_ONE_SERVER
def test_workers_of_a_killed_supervisor_end_within_two_seconds(
    fleet: Fleet, sync_client: SyncClient
) -> None:
    worker = fleet.serve(processes=2)
    waits = sync_client.queue("waits")
    waits.dispatch_many([{"sleep": 30}] * 4)
    fleet.journal.wait_for("start", 4)
    children = worker.children()
    assert len(children) == 2
    worker.kill()
    wait_until_gone(children, 2)
    # No process is left to return the jobs: the leases expire after 13 seconds. The new worker
    # polls meanwhile, so that the silence is not taken for an outage, which would add 10 seconds.
    fleet.serve(processes=1)
    fleet.journal.wait_for("start", 8, seconds=20)
    assert all(line["stalls"] == 1 for line in fleet.journal.lines("start")[4:])


@ON_ONE_SERVER
@pytest.mark.parametrize("end", ["killed by its supervisor", "killed from outside"])
def test_subprocess_of_a_handler_ends_with_its_worker(
    fleet: Fleet, sync_client: SyncClient, end: str
) -> None:
    fleet.serve("--queue", "plain", processes=1)
    timeout = 0.2 if end == "killed by its supervisor" else 60
    options = JobOptions(timeout=timeout, max_timeouts=1, max_stalls=1)
    sync_client.queue("plain").dispatch({"spawn": 300}, id="job", options=options)
    (line,) = fleet.journal.wait_for("spawned", id="job")
    if end == "killed from outside":
        os.kill(line["pid"], signal.SIGKILL)
    start = time.monotonic()
    wait_until_gone([line["pid"], line["spawned"]], 30)
    print(f"gone after {time.monotonic() - start:.2f} s")
    fleet.journal.wait_for("gave up", id="job")


@ON_ONE_SERVER
@pytest.mark.parametrize("more", [{}, {"busy": True}], ids=["waiting", "busy"])
def test_subprocess_of_a_handler_ends_when_the_supervisor_is_killed(
    fleet: Fleet, sync_client: SyncClient, more: dict[str, bool]
) -> None:
    """Bug: the kernel killed the worker, and the subprocess went on. Only a worker that was not
    busy could kill it first.
    """
    worker = fleet.serve("--queue", "plain", processes=2)
    sync_client.queue("plain").dispatch({"spawn": 300, **more}, id="job")
    (line,) = fleet.journal.wait_for("spawned", id="job")
    try:
        worker.kill()
        wait_until_gone([line["pid"], line["spawned"]], 5)
    finally:
        with suppress(ProcessLookupError):
            os.kill(line["spawned"], signal.SIGKILL)


@ON_ONE_SERVER
def test_death_of_a_worker_is_noticed_although_its_subprocess_keeps_its_files(
    fleet: Fleet, sync_client: SyncClient
) -> None:
    fleet.serve("--queue", "plain", processes=2)
    plain = sync_client.queue("plain")
    plain.dispatch({"first": {"spawn": 300, "leaky": True}}, id="job")
    (line,) = fleet.journal.wait_for("spawned", id="job")
    try:
        os.kill(line["pid"], signal.SIGKILL)
        fleet.journal.wait_for("start", 2, id="job", seconds=1)
        wait_until_gone([line["spawned"]], 30)
    finally:
        with suppress(ProcessLookupError):
            os.kill(line["spawned"], signal.SIGKILL)
