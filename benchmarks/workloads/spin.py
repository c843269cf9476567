"""Handlers that compute for 50 µs each, on one process and on two.

On a machine of two cores the server needs a part of them, so two processes cannot be twice as fast
as one.
"""

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor

MILLISECONDS = 0.05


def run(
    competitor: Competitor, server: BenchServer, *, pinned: bool, scale: float
) -> dict[str, float]:
    found: dict[str, float] = {}
    for metric, processes in (("spin", 1), ("spin 2", 2)):
        with competitor.on(server) as bench:
            jobs = competitor.jobs(scale)
            bench.produce("bulk", "burn", jobs, MILLISECONDS)
            with bench.worker(processes, "spin") as worker:
                found[metric] = bench.wait_for_jobs(jobs, worker).speed
    return found
