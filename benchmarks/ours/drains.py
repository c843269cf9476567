"""The drain with `size=1` for comparison with the default, and what the supervisor uses
meanwhile; `dispatch_many` of the client that does not await; and both with the persistence that
the documents recommend, which nothing else here has.
"""

import os
import time
from pathlib import Path

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor
from queasy import SyncClient

TICKS = os.sysconf("SC_CLK_TCK")


def run(who: Competitor, server: BenchServer, *, pinned: bool, scale: float) -> dict[str, float]:
    jobs = who.jobs(scale)
    with who.variant(BENCH_SIZE="1").at(server, pinned) as bench:
        put = bench.produce("bulk", "noop", jobs, 100)
        with bench.worker(1, "drain") as worker:
            bench.wait(1, worker)
            used, since = cpu(worker.pid), time.monotonic()
            tally = bench.wait(put["jobs"], worker)
            part = (cpu(worker.pid) - used) / (time.monotonic() - since)
    with who.at(server, pinned), SyncClient(server.url) as client:
        queue = client.queue("noop")
        queue.dispatch("x")
        began = time.monotonic()
        queue.dispatch_many(["x" * 100] * jobs)
        sync = jobs / (time.monotonic() - began)
    found = {"drain size 1": tally.speed, "supervisor": part * 100, "bulk sync": sync}
    with who.at(server, pinned) as bench, server.persistent():
        put = bench.produce("bulk", "noop", jobs, 100)
        with bench.worker(1, "drain") as worker:
            kept = bench.wait(put["jobs"], worker)
    return {**found, "bulk kept": put["jobs"] / put["seconds"], "drain kept": kept.speed}


def cpu(pid: int) -> float:
    """Seconds that a process has used, without its children."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / TICKS
