"""The log of a worker: one line for each event, and no secrets."""

import fcntl
import json
import os
import re
import signal
from contextlib import suppress

from queasy import JobOptions, SyncClient
from tests.servers import wait_until
from tests.worker.fleet import ON_ONE_SERVER, Fleet

SECRET = "hunter2"


def test_log_reports_retry_and_failure_without_the_error_message(
    fleet: Fleet, sync_client: SyncClient
) -> None:
    worker = fleet.serve("--queue", "plain", processes=1)
    plain = sync_client.queue("plain")
    plain.dispatch({"raise": SECRET}, id="job", options=JobOptions(max_retries=1, min_backoff=0.1))
    wait_until(lambda: bool(worker.events("job_failed")), "it is given up")
    assert len(worker.events("job_retried")) == 1
    assert worker.stop() == 0
    assert worker.log.count(f"RuntimeError: {SECRET}") == 2, "with the handler's tracebacks"
    events = re.findall(r"^.* queasy\.worker: .*$", worker.log, re.M)
    assert not [line for line in events if SECRET in line]


def test_log_errors_type_hides_error_messages(fleet: Fleet, sync_client: SyncClient) -> None:
    worker = fleet.start(
        "--queue", "plain", "--log-errors", "type", "--log-format", "json", "--processes", "1"
    )
    plain = sync_client.queue("plain")
    plain.dispatch({"raise": SECRET, "password": SECRET}, options=JobOptions(max_retries=0))
    wait_until(lambda: "job_failed" in worker.log, "it is given up")
    (job,) = plain.jobs("failed")
    assert worker.stop() == 0
    assert SECRET not in worker.log
    lines = [json.loads(line) for line in worker.log.splitlines()]
    (line,) = [line for line in lines if line["event"] == "job_failed"]
    assert line["level"] == "warning"
    assert (line["queue"], line["job"], line["error"]) == ("plain", job.id, "RuntimeError")
    (serving,) = [line for line in lines if line["event"] == "process_serving"]
    assert serving["pid"] != serving["process"] == worker.pid


def test_blocked_event_loop_is_logged_with_its_jobs(fleet: Fleet, sync_client: SyncClient) -> None:
    worker = fleet.serve("--queue", "waits", processes=1)
    sync_client.queue("waits").dispatch({"spin": 1.5}, id="blocks")
    wait_until(lambda: bool(worker.events("event_loop_blocked")), "it is logged")
    assert "jobs=blocks" in worker.events("event_loop_blocked")[0]
    assert worker.stop() == 0


@ON_ONE_SERVER
def test_supervisor_goes_on_when_its_log_pipe_is_full(
    fleet: Fleet, sync_client: SyncClient
) -> None:
    """Bug: it blocked while writing its log, and the leases of its workers expired."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    worker = fleet.start("--processes", "2", "--queue", "waits", output=writing)
    wait_until(lambda: len(sync_client.workers(["waits"])) == 2, "both workers serve")
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"x")
    os.set_blocking(writing, True)
    first = worker.children()
    os.kill(first[0], signal.SIGKILL)  # which writes a line to the log
    wait_until(lambda: len(set(worker.children()) - set(first)) == 1, "another process replaces it")
    os.close(writing)
    os.close(reading)
    worker.kill()
