"""A queue is damaged while a worker runs its jobs: nothing confirms their leases any more."""

from queasy import SyncClient
from queasy.worker.lease_times import DEFAULT_TIMES
from tests.servers import Server, wait_until
from tests.worker.fleet import ON_ONE_SERVER, Fleet, wait_until_gone

LEASE = DEFAULT_TIMES.lease

pytestmark = ON_ONE_SERVER


def test_process_with_runs_of_a_damaged_queue_does_not_stay_frozen(
    fleet: Fleet, server: Server, prefix: str, sync_client: SyncClient
) -> None:
    """Bug: an error about damaged keys counted as proof that no other client could get the job."""
    damaged, healthy = sync_client.queue("plain"), sync_client.queue("waits")
    worker = fleet.serve("--queue", "plain", "--queue", "waits", processes=1)
    damaged.dispatch({"tick": 100}, id="damaged")
    healthy.dispatch({"sleep": LEASE + 2}, id="healthy")
    start, _ = fleet.journal.wait_for("start", 2)
    server.call("SET", f"{prefix}:{{plain}}:cancels", "junk")

    wait_until_gone([start["pid"]], LEASE)
    wait_until(lambda: worker.events("process_died"), "the supervisor has logged it")
    assert "why=lost" in worker.events("process_died")[0]
    (end,) = fleet.journal.wait_for("end", id="healthy")
    assert (end["stalls"], end["pid"]) == (0, *worker.children())
    assert worker.stop() == 0
    server.call("DEL", *server.call("KEYS", f"{prefix}:{{plain}}:*"))
