"""A power cut leaves the embedded server's file without its end: it starts, and says so."""

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


def cut(folder: Path, missing: int) -> None:
    """The last bytes of the file were not synced."""
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


def starts_and_says_so(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without the last call, and nothing that is accepted then is ever undone."""
    dispatch(folder, "whole")
    dispatch(folder, "lost")
    kill(folder)
    cut(folder, missing=50)  # inside a command inside the last call
    with caplog.at_level(logging.WARNING, "queasy"):
        assert ids(folder) == {"whole"}
    assert "the end of the data" in caplog.text

    dispatch(folder, "after")
    kill(folder)
    caplog.clear()
    assert ids(folder) == {"whole", "after"}
    assert "the end of the data" not in caplog.text


def test_an_embedded_server_whose_file_was_cut_short_starts_and_says_so(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    starts_and_says_so(folder, caplog)


@pytest.mark.usefixtures("no_wheel")
def test_what_an_embedded_redis_accepts_after_a_cut_is_not_undone_by_the_next_start(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if reason := why_absent(ServerKind.REDIS):
        pytest.skip(reason)
    starts_and_says_so(folder, caplog)
