"""After a power failure the append-only file may lack its end. The server starts, and logs it."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path

import pytest

from queasy import SyncClient
from queasy.store.embedded.server import ensure
from tests.embedded.processes import data_file, nothing_runs, the_server, wait_for, wait_written
from tests.servers import ServerKind, why_absent


def kill(folder: Path) -> None:
    os.kill(the_server(folder), signal.SIGKILL)
    wait_for(lambda: nothing_runs(folder), "the server and its keeper to end")


def truncate(folder: Path, missing: int) -> None:
    """Remove the last bytes of the file, as if they had not been synced."""
    file = data_file(folder)
    os.truncate(file, file.stat().st_size - missing)


def ids(folder: Path) -> set[str]:
    with SyncClient(ensure(folder)) as client:
        queue = client.queue("q")
        assert queue.audit() == []
        return {job.id for job in queue.jobs()}


def dispatch(folder: Path, id_: str) -> None:
    with SyncClient(ensure(folder)) as client:
        client.queue("q").dispatch({"n": 1}, id=id_)
    wait_written(folder, id_)


def check_start_with_truncated_file(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Only the last call is lost, and no call accepted after that."""
    dispatch(folder, "whole")
    dispatch(folder, "lost")
    kill(folder)
    truncate(folder, missing=50)  # inside a command inside the last call
    with caplog.at_level(logging.WARNING, "queasy"):
        assert ids(folder) == {"whole"}
    assert "the end of the data" in caplog.text

    dispatch(folder, "after")
    kill(folder)
    caplog.clear()
    assert ids(folder) == {"whole", "after"}
    assert "the end of the data" not in caplog.text


def test_embedded_server_with_a_truncated_file_starts_and_logs_it(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check_start_with_truncated_file(folder, caplog)


@pytest.mark.usefixtures("no_wheel")
def test_jobs_accepted_by_redis_after_a_truncated_file_survive_the_next_start(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if reason := why_absent(ServerKind.REDIS):
        pytest.skip(reason)
    check_start_with_truncated_file(folder, caplog)
