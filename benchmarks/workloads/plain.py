"""Handlers without `async`: one worker process drains a full queue of them."""

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor
from benchmarks.workloads.drain import BYTES


def run(
    competitor: Competitor, server: BenchServer, *, pinned: bool, scale: float
) -> dict[str, float]:
    if not competitor.supports("plain"):
        return {}
    with competitor.on(server, pinned) as bench:
        enqueued = bench.produce("bulk", "plain", competitor.jobs(scale), BYTES)
        with bench.worker(1, "plain") as worker:
            return {"plain": bench.wait_for_jobs(enqueued["jobs"], worker).speed}
