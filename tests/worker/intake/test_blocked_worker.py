"""Async handlers that block the event loop: no other job is delayed by them."""

from pathlib import Path

from queasy import SyncClient
from tests.servers import wait_until
from tests.worker.fleet import Fleet

# A worker of so many queues looks by itself at each about once in half a minute; who is woken
# does not take seconds.
WOKEN = 10.0
ROUNDS = 6


def test_jobs_are_not_left_to_a_worker_that_a_handler_holds_up(
    fleet: Fleet, sync_client: SyncClient, tmp_path: Path
) -> None:
    """It was woken, did not hear it, and the other one slept on."""
    fleet.serve(processes=2)
    over, waits = tmp_path / "over", sync_client.queue("waits")
    crowd = [sync_client.queue(f"crowd-{number}") for number in range(ROUNDS)]
    for queue in (waits, *crowd):
        wait_until(lambda queue=queue: queue.counts().waiters == 2, "both wait")
    waits.dispatch({"until": str(over)}, id="blocks")
    (start,) = fleet.journal.wait_for("start", id="blocks")
    for queue in crowd:
        wait_until(lambda queue=queue: queue.counts().waiters == 1, "one waits no more")
        queue.dispatch("quick", id=queue.name)
        (end,) = fleet.journal.wait_for("end", id=queue.name, seconds=WOKEN)
        assert end["pid"] != start["pid"]
    over.touch()
    fleet.journal.wait_for("end", id="blocks")
    for queue in (waits, *crowd):
        wait_until(lambda queue=queue: queue.counts().waiters == 2, "both wait again", WOKEN)
