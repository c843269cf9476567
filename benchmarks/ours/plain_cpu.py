"""As the workload `cpu`, with handlers that are plain functions."""

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor
from benchmarks.workloads.cpu import share_of_ideal


def run(
    competitor: Competitor, server: BenchServer, *, pinned: bool, scale: float
) -> dict[str, float]:
    with competitor.on(server) as bench:
        return {"cpu plain": share_of_ideal(bench, "burn-plain", "burn-plain", scale)}
