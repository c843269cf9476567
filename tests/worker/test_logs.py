"""The log of a worker: one line for each event, and no secrets."""

import fcntl
import json
import logging
import os
import re
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from queasy import Dispatch, JobOptions, SyncClient
from queasy.worker.logs import MAX_WAITING_BYTES, UnblockedHandler
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
    _fill(writing)
    first = worker.children()
    os.kill(first[0], signal.SIGKILL)  # which writes a line to the log
    wait_until(lambda: len(set(worker.children()) - set(first)) == 1, "another process replaces it")
    os.close(writing)
    os.close(reading)
    worker.kill()


@ON_ONE_SERVER
def test_worker_with_unread_stderr_runs_its_jobs_and_ends(
    fleet: Fleet, sync_client: SyncClient
) -> None:
    """Bug: raising handlers filled the pipe, both children blocked, and SIGTERM ended nothing."""
    reading, writing = os.pipe()
    worker = fleet.start("--processes", "2", "--queue", "plain", output=writing)
    os.close(writing)
    wait_until(lambda: len(sync_client.workers(["plain"])) == 2, "both workers serve")
    plain = sync_client.queue("plain")
    children = worker.children()
    failing = Dispatch({"raise": "x" * 3000}, options=JobOptions(max_retries=0))
    plain.dispatch_many([failing] * 600)
    fleet.journal.wait_for("gave up", 600)
    assert worker.children() == children
    assert worker.stop(10) == 0
    os.close(reading)


def test_supervisor_that_cannot_start_ends_although_stderr_is_unread(fleet: Fleet) -> None:
    """Bug: its last line, which says why, waited for a reader of the full pipe."""
    reading, writing = os.pipe()
    _fill(writing)
    worker = fleet.start("--processes", "1", app="tests.worker:nothing", output=writing)
    os.close(writing)
    assert worker.process.wait(20) == 1
    os.close(reading)


def test_lines_beyond_the_limit_are_dropped_and_counted() -> None:
    reading, writing = os.pipe()
    handler = UnblockedHandler(writing)
    logger = logging.Logger("test")
    logger.addHandler(handler)
    lines = MAX_WAITING_BYTES // 1000 + 200
    for number in range(lines):
        logger.info("%d %s", number, "x" * 1000)
    with ThreadPoolExecutor() as pool:
        read = pool.submit(_read_all, reading)
        handler.close()
        os.close(writing)
        *written, last = read.result().splitlines()
    os.close(reading)
    assert [int(line.split()[0]) for line in written] == list(range(len(written)))
    assert last == f"log_lines_suppressed what='log not read' count={lines - len(written)}"
    assert 0 < len(written) < lines


def test_line_that_cannot_be_formatted_is_logged_as_such() -> None:
    reading, writing = os.pipe()
    handler = UnblockedHandler(writing)
    logger = logging.Logger("test")
    logger.addHandler(handler)
    logger.info("%d", "no number")
    handler.close()
    os.close(writing)
    assert _read_all(reading).endswith("logged a line that cannot be formatted: TypeError\n")
    os.close(reading)


def test_log_over_a_full_socket_does_not_block() -> None:
    """systemd makes stderr a socket."""
    reading, writing = socket.socketpair()
    handler = UnblockedHandler(writing.fileno())
    for _ in range(2000):
        handler.handle(logging.makeLogRecord({"msg": "x" * 1000}))
    assert reading.recv(1000)
    reading.close()  # ends the thread that waits for room
    handler.close()
    writing.close()


def _fill(pipe: int) -> None:
    os.set_blocking(pipe, False)
    with suppress(BlockingIOError):
        while True:
            os.write(pipe, b"x")
    os.set_blocking(pipe, True)


def _read_all(pipe: int) -> str:
    parts: list[bytes] = []
    while part := os.read(pipe, 2**16):
        parts.append(part)
    return b"".join(parts).decode()
