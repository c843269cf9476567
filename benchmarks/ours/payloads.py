"""Drains of larger payloads: jobs per second, and what the bytes do to them."""

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor

SIZES = {"1 kB": (1_000, 0.5), "10 kB": (10_000, 0.2), "100 kB": (100_000, 0.02)}


def run(who: Competitor, server: BenchServer, *, pinned: bool, scale: float) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, (size, part) in SIZES.items():
        with who.at(server, pinned) as bench:
            put = bench.produce("bulk", "noop", who.jobs(scale * part), size)
            with bench.worker(1, "drain") as worker:
                found[f"drain {name}"] = bench.wait(put["jobs"], worker).speed
    return found
