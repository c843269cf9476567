"""How many processes a supervisor has, and how many jobs a process runs."""

import time
from collections import Counter

import pytest

from queasy import Dispatch, JobOptions, SyncClient
from tests.worker.fleet import ON_ONE_SERVER, Fleet

pytestmark = ON_ONE_SERVER


def test_stuck_runs_beside_long_ones_leave_at_most_two_children_for_each_process(
    fleet: Fleet, sync_client: SyncClient
) -> None:
    """Bug: each child with a stuck run was replaced, and drained for the grace time beside its
    long runs. `--processes 2` had 24 children.
    """
    worker = fleet.serve(
        "--queue", "timed", "--queue", "plain", "--capacity", "20", "--grace", "60", processes=2
    )
    sync_client.queue("plain").dispatch_many([{"sleep": 30}] * 20)
    stuck = Dispatch({"native": 120}, options=JobOptions(max_timeouts=0))
    sync_client.queue("timed").dispatch_many([stuck] * 8)
    # The long runs may have taken all room before the stuck ones came: those begin 30 s later then.
    most, give_up_at = 0, time.monotonic() + 100
    while len(fleet.journal.lines("gave up")) < 5 and time.monotonic() < give_up_at:
        most = max(most, len(worker.children()))
        time.sleep(0.05)
    assert most == 4
    assert len(fleet.journal.lines("gave up")) >= 5, "no child waits until its grace time is over"


@pytest.mark.parametrize(("most", "jobs"), [(1, 8), (25, 300)])
def test_process_runs_at_most_max_jobs(
    fleet: Fleet, sync_client: SyncClient, most: int, jobs: int
) -> None:
    """Bug: a process took jobs until its replacement served. With `--max-jobs 1` one process ran
    262 of 300 jobs.
    """
    queues = [sync_client.queue(name) for name in ("waits", "small", "crowd-0")]
    for queue in queues:
        queue.dispatch_many([None] * (jobs // 2))
    names = [word for queue in queues for word in ("--queue", queue.name)]
    worker = fleet.serve("--max-jobs", str(most), *names)
    for queue in queues:  # some of them are handed off
        queue.dispatch_many([None] * (jobs // 2))
    lines = fleet.journal.wait_for("end", 3 * jobs, seconds=60)
    runs = Counter(line["pid"] for line in fleet.journal.lines("start"))
    assert max(runs.values()) <= most
    assert len({line["id"] for line in lines}) == len(lines) == sum(runs.values())
    assert worker.stop(10) == 0
    assert sum(queue.counts().active for queue in queues) == 0
