"""Drains with payloads of 1, 10 and 100 kB."""

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor

# Payload bytes, and the number of jobs as a share of a drain.
SIZES = {"1 kB": (1_000, 0.5), "10 kB": (10_000, 0.2), "100 kB": (100_000, 0.02)}


def run(
    competitor: Competitor, server: BenchServer, *, pinned: bool, scale: float
) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, (size, share) in SIZES.items():
        with competitor.on(server, pinned) as bench:
            enqueued = bench.produce("bulk", "noop", competitor.jobs(scale * share), size)
            with bench.worker(1, "drain") as worker:
                found[f"drain {name}"] = bench.wait_for_jobs(enqueued["jobs"], worker).speed
    return found
