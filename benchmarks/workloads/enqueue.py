"""Jobs are enqueued: 100 awaited concurrently, then one at a time."""

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor


def run(
    competitor: Competitor, server: BenchServer, *, pinned: bool, scale: float
) -> dict[str, float]:
    found: dict[str, float] = {}
    for way, count in (
        ("concurrent", competitor.enqueues(scale)),
        ("single", competitor.enqueues(scale) // 4),
    ):
        if competitor.supports(way):
            with competitor.on(server, pinned) as bench:
                found[way] = count / bench.produce(way, "noop", count, 100)["seconds"]
    return found
