"""One worker process drains the same jobs from one queue, from 10 and from 50."""

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor


def run(
    competitor: Competitor, server: BenchServer, *, pinned: bool, scale: float
) -> dict[str, float]:
    jobs = competitor.jobs(scale)
    found: dict[str, float] = {}
    for metric, queues in (("one queue", 1), ("spread 10", 10), ("spread 50", 50)):
        with competitor.on(server, pinned) as bench:
            enqueued = bench.produce("share", f"spread-{queues}", jobs, 100)["jobs"]
            with bench.worker(1, f"spread-{queues}") as worker:
                found[metric] = bench.wait_for_jobs(enqueued, worker).speed
    return found
