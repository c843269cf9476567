"""Variants of the drain.

- handlers with `size=1`, and the CPU time of the supervisor during that drain;
- `SyncClient.dispatch_many`;
- enqueue and drain on a server that writes an append-only file, as the documents recommend. Every
  other workload runs without persistence.
"""

import os
import time
from pathlib import Path

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor

TICKS = os.sysconf("SC_CLK_TCK")


def run(
    competitor: Competitor, server: BenchServer, *, pinned: bool, scale: float
) -> dict[str, float]:
    jobs = competitor.jobs(scale)
    with competitor.variant(BENCH_SIZE="1").on(server, pinned) as bench:
        enqueued = bench.produce("bulk", "noop", jobs, 100)
        with bench.worker(1, "drain") as worker:
            bench.wait_for_jobs(1, worker)
            used, since = cpu(worker.pid), time.monotonic()
            tally = bench.wait_for_jobs(enqueued["jobs"], worker)
            share = (cpu(worker.pid) - used) / (time.monotonic() - since)
    with competitor.on(server, pinned) as bench:
        sync = jobs / bench.produce("sync", "noop", jobs, 100)["seconds"]
    found = {"drain size 1": tally.speed, "supervisor": share * 100, "bulk sync": sync}
    with competitor.on(server, pinned) as bench, server.persistent():
        enqueued = bench.produce("bulk", "noop", jobs, 100)
        with bench.worker(1, "drain") as worker:
            persistent = bench.wait_for_jobs(enqueued["jobs"], worker)
    return {
        **found,
        "bulk aof": enqueued["jobs"] / enqueued["seconds"],
        "drain aof": persistent.speed,
    }


def cpu(pid: int) -> float:
    """CPU seconds of a process, without its children."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / TICKS
