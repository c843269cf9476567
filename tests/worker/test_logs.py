"""What a worker writes: one line for each thing that happens, and nothing that is secret."""

import json
import re

from queasy import JobOptions, SyncClient
from tests.servers import wait_until
from tests.worker.fleet import Fleet

SECRET = "hunter2"


def test_what_becomes_of_a_job_is_said_in_the_words_of_the_server(
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


def test_who_minds_sees_no_message_of_an_error(fleet: Fleet, sync_client: SyncClient) -> None:
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


def test_a_blocked_event_loop_is_told_of(fleet: Fleet, sync_client: SyncClient) -> None:
    worker = fleet.serve("--queue", "waits", processes=1)
    sync_client.queue("waits").dispatch({"spin": 1.5}, id="blocks")
    wait_until(lambda: bool(worker.events("event_loop_blocked")), "it is told")
    assert "jobs=blocks" in worker.events("event_loop_blocked")[0]
    assert worker.stop() == 0
