"""An async handler that blocks the event loop does not delay jobs of other queues."""

from pathlib import Path

from queasy import SyncClient
from tests.servers import wait_until
from tests.worker.fleet import Fleet

# Seconds. Without a wake-up, a worker with this many queues polls each about twice a minute. A
# worker that is woken does not take seconds.
WAKE_UP_LIMIT = 10.0
ROUNDS = 6


def test_jobs_are_not_left_to_a_worker_with_a_blocked_event_loop(
    fleet: Fleet, sync_client: SyncClient, tmp_path: Path
) -> None:
    """Bug: the wake-up went to the blocked worker, which did not read it. The other one slept."""
    fleet.serve(processes=2)
    unblock, waits = tmp_path / "unblock", sync_client.queue("waits")
    crowd = [sync_client.queue(f"crowd-{number}") for number in range(ROUNDS)]
    for queue in (waits, *crowd):
        wait_until(lambda queue=queue: queue.counts().waiters == 2, "both workers are waiters")
    waits.dispatch({"until": str(unblock)}, id="blocks")
    (start,) = fleet.journal.wait_for("start", id="blocks")
    for queue in crowd:
        wait_until(
            lambda queue=queue: queue.counts().waiters == 1,
            "the blocked worker is not a waiter any more",
        )
        queue.dispatch("quick", id=queue.name)
        (end,) = fleet.journal.wait_for("end", id=queue.name, seconds=WAKE_UP_LIMIT)
        assert end["pid"] != start["pid"]
    unblock.touch()
    fleet.journal.wait_for("end", id="blocks")
    for queue in (waits, *crowd):
        wait_until(
            lambda queue=queue: queue.counts().waiters == 2, "both are waiters again", WAKE_UP_LIMIT
        )
