"""Async handlers that do not let the event loop turn: no other job pays for it, nor does a job that
has ended.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from queasy import SyncClient
from queasy.worker.liveness.inflight_table import InflightTable
from queasy.worker.plan import LEASE
from queasy.worker.supervision import watchdog as watch
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


class Child(SimpleNamespace):
    """Of a supervisor, as `watch` sees it."""

    pid, client, planned = 1, "c", SimpleNamespace(queues=["q"])
    killed: str | None = None

    def __init__(self) -> None:
        super().__init__(table=InflightTable(1, 1), cancels={}, dumb_since=None, drain_by=0.0)

    def kill(self, why: str) -> None:
        self.killed = why


def look(child: Any, now: float) -> None:
    watch.look_at_runs(child, now, 30.0)


@pytest.mark.parametrize("reports", [True, False])
def test_a_process_has_time_to_report_what_held_it_up(reports: bool) -> None:
    """It was killed between the end of a run that had blocked it for longer than a lease and the
    next turn of its event loop; and the job, which was done, ran again.
    """
    child, now = Child(), 1000.0
    child.table.beat(now)
    child.table.attend(0, 1)
    slot = child.table.start(0, "a", 1, now, 2000.0)
    look(child, now + LEASE + 5)
    child.table.end(slot)
    look(child, now + LEASE + 5.1)
    look(child, now + LEASE + 6)
    assert child.killed is None
    if reports:
        child.table.beat(now + LEASE + 6.5)
        look(child, now + LEASE + 6.6)
    look(child, now + 2 * LEASE + 6.6)
    assert child.killed == (None if reports else "dumb")
