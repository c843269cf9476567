"""A job now and then, for a worker that has nothing else: from the call in one process to the
first line of the handler in another.
"""

import statistics

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor

JOBS = 300


def run(who: Competitor, server: BenchServer, *, pinned: bool, scale: float) -> dict[str, float]:
    with who.at(server, pinned) as bench, bench.worker(1, "pickup") as worker:
        bench.warm(worker)
        cuts = statistics.quantiles(bench.stamped(max(int(JOBS * scale), 20), worker), n=100)
    return {"pickup p50": cuts[49] * 1000, "pickup p99": cuts[98] * 1000}
