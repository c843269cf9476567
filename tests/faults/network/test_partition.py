"""A network partition: one worker cannot reach a server that others still reach."""

from queasy import SyncClient
from tests.proxy.program import start_proxy
from tests.servers import Server
from tests.worker.fleet import ON_ONE_SERVER, Fleet

pytestmark = ON_ONE_SERVER


def test_partitioned_worker_ends_its_runs_before_others_get_the_jobs(
    fleet: Fleet, server: Server, sync_client: SyncClient
) -> None:
    """Bug: its runs overlapped with those of another worker for as long as the network was down."""
    plain, waits = sync_client.queue("plain"), sync_client.queue("waits")
    with start_proxy(server.port, seed=0) as proxy:
        fleet.environment["TEST_URL"] = proxy.url
        alone = fleet.serve("--queue", "plain", "--queue", "waits", processes=1)
        fleet.environment["TEST_URL"] = server.url
        plain.dispatch({"first": {"tick": 60}, "then": {}}, id="ticks")
        waits.dispatch({"first": {"sleep": 60}, "then": {}}, id="sleeps")
        fleet.journal.wait_for("start", 2)
        fleet.serve("--queue", "plain", "--queue", "waits", processes=1)
        (pid,) = alone.children()
        proxy.tell("stall 30")

        (cancelled,) = fleet.journal.wait_for("cancelled", id="sleeps")
        _, again = fleet.journal.wait_for("start", 2, id="sleeps")
        assert cancelled["at"] < again["at"]
        _, again = fleet.journal.wait_for("start", 2, id="ticks")
        ticks = [line for line in fleet.journal.lines("tick", id="ticks") if line["pid"] == pid]
        assert ticks[-1]["at"] < again["at"]
        assert alone.events("leases_unconfirmed")
        proxy.tell("calm")
        fleet.journal.wait_for("end", 2)
        assert alone.stop() == 0
