"""A network partition: one worker cannot reach a server that others still reach."""

from queasy import SyncClient
from queasy.worker.lease_times import DEFAULT_TIMES
from tests.proxy.program import start_proxy
from tests.servers import Server
from tests.worker.fleet import ON_ONE_SERVER, Fleet, wait_until_gone

LEASE = DEFAULT_TIMES.lease

pytestmark = ON_ONE_SERVER


def test_partitioned_worker_is_frozen_before_others_get_the_jobs(
    fleet: Fleet, server: Server, sync_client: SyncClient
) -> None:
    """Bug: its runs overlapped with those of another worker for as long as the network was down."""
    plain, waits = sync_client.queue("plain"), sync_client.queue("waits")
    with start_proxy(server.port, seed=0) as proxy:
        fleet.environment["TEST_URL"] = proxy.url
        alone = fleet.serve("--queue", "plain", "--queue", "waits", processes=1)
        fleet.environment["TEST_URL"] = server.url
        plain.dispatch({"first": {"tick": 60, "deaf": True}, "then": {}}, id="ticks")
        waits.dispatch({"first": {"sleep": LEASE + 1}, "then": {}}, id="sleeps")
        fleet.journal.wait_for("start", 2)
        fleet.serve("--queue", "plain", "--queue", "waits", processes=1)
        (pid,) = alone.children()
        proxy.tell("stall 30")

        _, again = fleet.journal.wait_for("start", 2, id="sleeps")
        _, later = fleet.journal.wait_for("start", 2, id="ticks")
        proxy.tell("calm")  # whatever it sent before arrives now
        wait_until_gone([pid], 30)
        last = fleet.journal.lines(pid=pid)[-1]
        assert last["event"] == "tick"
        assert last["at"] < min(again["at"], later["at"])
        assert alone.events("process_frozen")
        fleet.journal.wait_for("end", 2)
        assert alone.stop() == 0
