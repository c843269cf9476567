"""A handler that blocks the event loop of its worker does not delay other jobs."""

from pathlib import Path

from queasy import SyncClient
from tests.servers import wait_until
from tests.worker.fleet import Fleet

# Far above the time of a wake-up; far below the interval of the safety poll, which is about half a
# minute for a worker of so many queues.
WOKEN = 10.0
ROUNDS = 6


def test_job_does_not_wait_for_a_worker_that_a_handler_blocks(
    fleet: Fleet, sync_client: SyncClient, tmp_path: Path
) -> None:
    """Bug: the blocked worker was woken, could not react, and the idle worker slept on."""
    fleet.serve(processes=2)
    over, waits = tmp_path / "over", sync_client.queue("waits")
    crowd = [sync_client.queue(f"crowd-{number}") for number in range(ROUNDS)]
    for queue in (waits, *crowd):
        wait_until(lambda queue=queue: queue.counts().waiters == 2, "both are waiters")
    waits.dispatch({"until": str(over)}, id="blocks")
    (start,) = fleet.journal.wait_for("start", id="blocks")
    for queue in crowd:
        wait_until(
            lambda queue=queue: queue.counts().waiters == 1,
            "only the idle one is a waiter",
        )
        queue.dispatch("quick", id=queue.name)
        (end,) = fleet.journal.wait_for("end", id=queue.name, seconds=WOKEN)
        assert end["pid"] != start["pid"]
    over.touch()
    fleet.journal.wait_for("end", id="blocks")
    for queue in (waits, *crowd):
        wait_until(lambda queue=queue: queue.counts().waiters == 2, "both are waiters again", WOKEN)
