"""An idle worker gets one job at a time.

Metric: the time from the call in one process to the first line of the handler in another.
"""

import statistics

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor

JOBS = 300


def run(
    competitor: Competitor, server: BenchServer, *, pinned: bool, scale: float
) -> dict[str, float]:
    with competitor.on(server, pinned) as bench, bench.worker(1, "pickup") as worker:
        bench.warm_up(worker)
        cuts = statistics.quantiles(
            bench.measure_pickups(max(int(JOBS * scale), 20), worker), n=100
        )
    return {"pickup p50": cuts[49] * 1000, "pickup p99": cuts[98] * 1000}
