"""A server that is away for a while: nobody restarts, and nothing is lost, repeated or counted."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from queasy import SyncClient
from tests.conftest import audit_all
from tests.servers import Server, ServerKind, start_server, wait_until, why_absent
from tests.worker.fleet import Fleet, fleet_on

AWAY = 20.0  # seconds: longer than a lease
RESUME = 5.0
PREFIX = "outage"


@pytest.fixture
def own_server() -> Iterator[Server]:
    """One server, one kind: what is shown is the patience of workers, and it takes long."""
    if reason := why_absent(ServerKind.VALKEY):
        pytest.skip(reason)
    with start_server(ServerKind.VALKEY, appendonly=True) as running:
        yield running


@pytest.fixture
def own_fleet(own_server: Server, tmp_path: Path) -> Iterator[Fleet]:
    with fleet_on(own_server.url, PREFIX, tmp_path) as running:
        yield running


def test_workers_ride_out_a_server_that_is_away_for_twenty_seconds(
    own_server: Server, own_fleet: Fleet
) -> None:
    journal = own_fleet.journal
    several = own_fleet.serve("--queue", "plain", "--queue", "waits", processes=2)
    single = own_fleet.serve("--queue", "whole", processes=1)
    with SyncClient(own_server.url, prefix=PREFIX) as client:
        names = ("plain", "waits", "whole")
        queues = {name: client.queue(name) for name in names}
        for name in ("plain", "waits"):
            for number in range(3):
                queues[name].dispatch({"sleep": 4}, id=f"{name}-during-{number}")
                queues[name].dispatch({"sleep": AWAY + 2}, id=f"{name}-across-{number}")
            queues[name].dispatch("quick", id=f"{name}-scheduled", delay=AWAY / 2)
        queues["whole"].dispatch({"sleep": 4}, id="whole-during-0")
        journal.wait_for("start", 13)
        queues["whole"].dispatch_many([{"sleep": 0.1}] * 5)  # they wait behind it
        waiting = {job.id for job in queues["whole"].jobs("waiting")}
        assert len(waiting) == 5
        pids = {worker.pid: worker.children() for worker in (several, single)}

    own_server.stop()
    journal.wait_for("end", 7)  # all of them ended while nobody could be told
    away_since = time.monotonic()
    wait_until(lambda: time.monotonic() - away_since > AWAY - 4, "the server was away long enough")
    assert len(journal.lines("start")) == 13
    own_server.start()
    back = time.monotonic()

    with SyncClient(own_server.url, prefix=PREFIX) as client:
        queues = {name: client.queue(name) for name in names}
        for name in names:
            queues[name].dispatch("quick", id=f"{name}-afterwards")
        everything = 13 + 2 + 5 + 3
        journal.wait_for("end", everything)
        starts = journal.lines("start")
        resumed = {
            name: min(s["at"] for s in starts if s["queue"] == name and s["at"] > back) - back
            for name in names
        }
        print("\n  resumed after", {name: f"{after:.2f} s" for name, after in resumed.items()})
        assert max(resumed.values()) < RESUME
        wait_until(lambda: all(not q.counts().active for q in queues.values()), "all is settled")
        assert {worker.pid: worker.children() for worker in (several, single)} == pids
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        starts, ends = journal.lines("start"), journal.lines("end")
        assert len(starts) == len(ends) == everything
        assert len({line["id"] for line in ends}) == everything
        assert waiting <= {line["id"] for line in ends}
        assert {(line["stalls"], line["retries"]) for line in starts} == {(0, 0)}
        for queue in queues.values():
            assert [stat for stat in queue.stats() if stat.kind == "stalled"] == []
            counts = queue.counts()
            assert (counts.due, counts.active, counts.failed) == (0, 0, 0)
        assert several.stop() == single.stop() == 0
    audit_all(own_server, PREFIX)
