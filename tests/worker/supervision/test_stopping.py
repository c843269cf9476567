"""Stopping, and failing to start: exit codes, jobs and messages."""

import itertools
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from queasy import SyncClient
from queasy.sync import SyncQueue
from tests.servers import Server, free_port, wait_until
from tests.worker.fleet import ON_ONE_SERVER, Fleet, Running

pytestmark = ON_ONE_SERVER
SOON = 8.0  # far below the default grace of 30 s, and the length of a sleeping job


def wait_for_event(worker: Running, what: str, count: int = 1) -> None:
    wait_until(lambda: len(worker.events(what)) >= count, f"{what!r} is in the log")


def leased(queue: SyncQueue, count: int) -> list[tuple[str, int, int, int]]:
    """The next jobs in order, with their counts."""
    jobs = []
    for _ in range(count):
        lease = queue.lease(60, timeout=0)
        assert lease is not None
        job = lease.job
        jobs.append((job.id, job.retry_count, job.stall_count, job.timeout_count))
        lease.complete()
    return jobs


@pytest.mark.parametrize("name", ["plain", "waits"])
def test_sigterm_lets_running_jobs_end_and_starts_none(
    fleet: Fleet, sync_client: SyncClient, name: str
) -> None:
    worker = fleet.serve(processes=1)
    queue = sync_client.queue(name)
    queue.dispatch_many([{"sleep": 1}] * 5)
    fleet.journal.wait_for("start", 5)
    worker.signal(signal.SIGTERM)
    wait_for_event(worker, "supervisor_stopping")
    queue.dispatch({"sleep": 0}, id="late")
    assert worker.process.wait(SOON) == 0
    assert len(fleet.journal.lines("end")) == 5
    assert fleet.journal.lines("cancelled") == []
    assert fleet.journal.lines("start", id="late") == []
    counts = queue.counts()
    assert (counts.due, counts.active) == (1, 0)


@pytest.mark.parametrize("name", ["plain", "waits"])
def test_jobs_running_after_the_grace_go_to_the_front_of_the_queue(
    fleet: Fleet, sync_client: SyncClient, name: str
) -> None:
    worker = fleet.serve("--grace", "0.3", processes=1)
    queue = sync_client.queue(name)
    for id_ in ("one", "two"):
        queue.dispatch({"sleep": 30}, id=id_)
    fleet.journal.wait_for("start", 2)
    worker.signal(signal.SIGTERM)
    wait_for_event(worker, "supervisor_stopping")
    queue.dispatch({"sleep": 0}, id="late")
    assert worker.process.wait(SOON) == 0
    assert fleet.journal.lines("end") == []
    assert queue.counts().active == 0
    first, second, third = leased(queue, 3)
    assert {first, second} == {("one", 0, 0, 0), ("two", 0, 0, 0)}
    assert third == ("late", 0, 0, 0)


@pytest.mark.parametrize("name", ["plain", "waits"])
def test_second_signal_releases_jobs_at_once(
    fleet: Fleet, sync_client: SyncClient, name: str
) -> None:
    worker = fleet.serve("--grace", "30", processes=2)
    queue = sync_client.queue(name)
    queue.dispatch({"sleep": 30}, id="one")
    fleet.journal.wait_for("start")
    worker.signal(signal.SIGTERM)
    wait_for_event(worker, "supervisor_stopping")
    assert queue.counts().active == 1
    worker.signal(signal.SIGTERM)
    assert worker.process.wait(SOON) == 0
    assert leased(queue, 1) == [("one", 0, 0, 0)]


@pytest.mark.parametrize("processes", [0, 1])
def test_repeated_signals_end_a_worker_cleanly(fleet: Fleet, processes: int) -> None:
    worker = fleet.start("--processes", str(processes))
    wait_for_event(worker, "process_serving" if processes else "worker_started")
    deadline = time.monotonic() + SOON
    while worker.process.poll() is None and time.monotonic() < deadline:
        worker.signal(signal.SIGTERM)
        time.sleep(0.01)  # so that signals arrive at every stage of the stop
    assert worker.process.wait(SOON) == 0


@pytest.mark.parametrize("processes", [0, 1])
def test_signal_before_the_first_queue_is_served_stops_the_worker(
    fleet: Fleet, processes: int
) -> None:
    worker = fleet.start("--processes", str(processes))
    what = "supervisor_started" if processes else "worker_started"
    wait_for_event(worker, what)
    worker.signal(signal.SIGTERM)
    assert worker.process.wait(SOON) == 0


def test_job_started_as_the_signal_arrives_may_end(fleet: Fleet, sync_client: SyncClient) -> None:
    """Also a job that was being dequeued at that moment."""
    queue = sync_client.queue("waits")
    for attempt in range(6):
        worker = fleet.serve("--grace", "20", "--capacity", "10", processes=1)
        queue.dispatch_many([{"sleep": 0.002}] * 300)
        fleet.journal.wait_for("end", attempt * 10 + 10)
        assert worker.stop(SOON) == 0
        begun = {(line["id"], line["token"]) for line in fleet.journal.lines("start")}
        ended = {(line["id"], line["token"]) for line in fleet.journal.lines("end")}
        assert begun == ended, worker.log
    stalls = [stat for stat in queue.stats() if stat.kind == "stalled"]
    assert stalls == []


def test_process_replaced_after_max_jobs_loses_and_repeats_no_job(
    fleet: Fleet, sync_client: SyncClient
) -> None:
    worker = fleet.serve("--max-jobs", "20", processes=2)
    queue = sync_client.queue("waits")
    ids = [done.id for done in queue.dispatch_many([{"sleep": 0.01}] * 300)]
    lines = fleet.journal.wait_for("end", 300)
    assert sorted(line["id"] for line in lines) == sorted(ids)
    assert len(fleet.journal.lines("start")) == 300
    # By then both first processes are replaced, and their successors serve.
    wait_for_event(worker, "process_exited", 2)
    queue.dispatch({"sleep": 0}, id="more")
    (last,) = fleet.journal.wait_for("end", id="more")
    assert last["pid"] not in {line["pid"] for line in lines[:2]}
    assert worker.stop(SOON) == 0
    assert [stat for stat in queue.stats() if stat.kind == "stalled"] == []
    assert queue.counts().active == 0


# What cannot start


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "shop.py"


APP = """
import os
from queasy import Client
client = Client({url!r}, timeout=1)
{more}
"""


@pytest.mark.parametrize("processes", [0, 2])
def test_a_handler_that_cannot_be_imported_stops_the_worker_from_starting(
    fleet: Fleet, script: Path, processes: int, server: Server
) -> None:
    script.write_text(APP.format(url=server.url, more='client.queue("emails").handler("nope:f")'))
    worker = fleet.start("--processes", str(processes), app=f"{script}:client")
    assert worker.process.wait(SOON) not in (0, None)
    assert "nope" in worker.log
    assert "Traceback" not in worker.log


@pytest.mark.parametrize("processes", [0, 2])
def test_queue_without_a_handler_stops_the_worker_from_starting(
    fleet: Fleet, processes: int
) -> None:
    worker = fleet.start("--processes", str(processes), "--queue", "plain", "--queue", "emials")
    assert worker.process.wait(SOON) not in (0, None)
    assert re.search(r"no handler for emials; expected .*plain", worker.log), worker.log
    assert "Traceback" not in worker.log


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize(
    ("app", "says"),
    [
        ("tests.worker.nowhere:client", "module 'tests.worker.nowhere' was not found"),
        ("nowhere:client", "module 'nowhere' was not found"),
        ("tests.worker.nowhere.deep:client", "module 'tests.worker.nowhere.deep' was not found"),
        ("nowhere.py:client", "file 'nowhere.py' was not found"),
        ("tests.worker.app:absent", "'tests.worker.app' has no 'absent'; it has 'client'"),
        ("tests.worker.inline:client", "has no 'client'; it has no global that is a queasy.Client"),
        ("app", "expected module:client"),
    ],
)
def test_missing_application_stops_the_worker_from_starting(
    fleet: Fleet, app: str, says: str, processes: int
) -> None:
    worker = fleet.start("--processes", str(processes), app=app)
    assert worker.process.wait(SOON) not in (0, None)
    assert says in worker.log
    assert "Traceback" not in worker.log


@pytest.mark.parametrize(
    "app", ["nowhere:client", "tests.worker.nowhere:client", "nowhere.py:client", "app"]
)
def test_module_that_does_not_exist_is_refused_before_a_process_starts(
    fleet: Fleet, app: str
) -> None:
    worker = fleet.start("--processes", "2", app=app)
    assert worker.process.wait(SOON) == 1
    assert len(worker.log.splitlines()) == 1, worker.log


def test_package_that_adds_folders_to_its_path_is_imported(
    fleet: Fleet, tmp_path: Path, server: Server
) -> None:
    """Only an import can say where the modules of such a package are."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "elsewhere").mkdir()
    path = f"__path__.append({str(tmp_path / 'elsewhere')!r})\n"
    (tmp_path / "shop" / "__init__.py").write_text(path)
    more = 'client.queue("emails").handler(print)'
    (tmp_path / "elsewhere" / "jobs.py").write_text(APP.format(url=server.url, more=more))
    worker = fleet.serve(processes=1, app="shop.jobs:client", folder=tmp_path)
    assert worker.stop() == 0


@pytest.mark.parametrize("processes", [0, 2])
def test_application_without_handlers_is_named_and_asked_for_their_import(
    fleet: Fleet, script: Path, processes: int, server: Server
) -> None:
    script.write_text(APP.format(url=server.url, more=""))
    worker = fleet.start("--processes", str(processes), app=f"{script}:client")
    assert worker.process.wait(SOON) == 1
    says = f"queasy: {script}:client: no queue has a handler: was the module imported"
    assert worker.log.splitlines()[-1].startswith(says)


@pytest.mark.parametrize("command", ["workers", "health"])
def test_command_about_workers_needs_an_application_with_handlers(
    script: Path, server: Server, command: str
) -> None:
    """Bug: it said that no workers run, because it did not know which queues to ask about."""
    script.write_text(APP.format(url=server.url, more=""))
    listed = subprocess.run(
        [sys.executable, "-m", "queasy", command, f"{script}:client"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert listed.returncode == 1
    says = f"queasy: {script}:client: no queue has a handler: was the module imported"
    assert listed.stderr.startswith(says)


@pytest.mark.parametrize("processes", [0, 2])
def test_unreachable_server_stops_the_worker_from_starting(
    fleet: Fleet, script: Path, processes: int
) -> None:
    port = free_port()
    more = 'client.queue("emails").handler(print)'
    script.write_text(APP.format(url=f"redis://127.0.0.1:{port}", more=more))
    worker = fleet.start("--processes", str(processes), app=f"{script}:client")
    assert worker.process.wait(SOON) not in (0, None)
    assert f"127.0.0.1:{port}" in worker.log
    assert "Traceback" not in worker.log


def test_processes_that_crash_at_start_are_restarted_with_backoff(
    fleet: Fleet, script: Path, server: Server, tmp_path: Path
) -> None:
    births = tmp_path / "births"
    births.touch()
    crash = f"""
import time
with open({str(births)!r}, "a") as file:
    print(time.monotonic(), file=file)
os._exit(3)
"""
    script.write_text(APP.format(url=server.url, more=crash))
    worker = fleet.start("--processes", "1", app=f"{script}:client")
    wait_until(lambda: births.read_text().count("\n") >= 4, "it has crashed four times")
    times = [float(line) for line in births.read_text().split()]
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert pauses[2] > pauses[0]
    assert "exit code 3" in worker.log
    wait_for_event(worker, "process_died", 4)
    # It now waits two seconds or more before a restart; a stop must not wait for that.
    worker.signal(signal.SIGTERM)
    assert worker.process.wait(1.5) == 0
