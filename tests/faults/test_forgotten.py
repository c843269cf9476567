"""A server that comes back without its last writes: from a snapshot, from a replica that lagged
behind. Here the snapshot is taken at the very moment that matters.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from queasy import SyncClient
from tests.conftest import audit_all
from tests.servers import Server, ServerKind, start_server, wait_until
from tests.worker.fleet import ON_ONE_SERVER, Fleet, fleet_on

PREFIX = "forgotten"
pytestmark = ON_ONE_SERVER


@pytest.fixture
def forgetful(kind: ServerKind) -> Iterator[Server]:
    with start_server(kind) as server:
        yield server


@pytest.fixture
def own_fleet(forgetful: Server, tmp_path: Path) -> Iterator[Fleet]:
    with fleet_on(forgetful.url, PREFIX, tmp_path) as fleet:
        yield fleet


def go_back(server: Server) -> None:
    """To the last snapshot."""
    server.kill()
    server.start()


def test_a_job_whose_finish_was_forgotten_runs_again(forgetful: Server, own_fleet: Fleet) -> None:
    journal = own_fleet.journal
    worker = own_fleet.serve("--queue", "waits", processes=1)
    pids = worker.children()
    with SyncClient(forgetful.url, prefix=PREFIX) as client:
        queue = client.queue("waits")
        queue.dispatch({"sleep": 1}, id="a")
        queue.dispatch({"sleep": 3}, id="b")
        journal.wait_for("start", 2)
        forgetful.call("SAVE")
        journal.wait_for("end", id="a")
        wait_until(lambda: queue.counts().active == 1, "a is finished")
        go_back(forgetful)
        first, second = journal.wait_for("end", 2, id="a")
        wait_until(lambda: queue.counts().active == 0, "all is settled")
        assert first["token"] < second["token"]
        assert second["stalls"] == 0
        assert len(journal.lines("start", id="b")) == 1  # it went on, and was not repeated
        assert worker.children() == pids
    assert worker.stop() == 0
    audit_all(forgetful, PREFIX)


def test_a_run_whose_start_was_forgotten_is_asked_to_end(
    forgetful: Server, own_fleet: Fleet
) -> None:
    journal = own_fleet.journal
    worker = own_fleet.serve("--queue", "waits", processes=1)
    with SyncClient(forgetful.url, prefix=PREFIX) as client:
        queue = client.queue("waits")
        queue.pause()
        queue.dispatch({"sleep": 60}, id="a")
        forgetful.call("SAVE")
        queue.resume()
        journal.wait_for("start", id="a")
        go_back(forgetful)  # and nobody takes it: the queue is paused again
        journal.wait_for("cancelled", id="a")
        assert queue.counts().due == 1
        assert worker.stop() == 0
        queue.resume()
        lease = queue.lease(timeout=10)
        assert lease is not None
        assert lease.job.token > journal.lines("start", id="a")[0]["token"]
        assert lease.complete()
    audit_all(forgetful, PREFIX)
