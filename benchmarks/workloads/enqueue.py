"""Jobs enqueued a hundred awaited at once, and one after the other."""

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor


def run(who: Competitor, server: BenchServer, *, pinned: bool, scale: float) -> dict[str, float]:
    found: dict[str, float] = {}
    for way, count in (("concurrent", who.enqueues(scale)), ("single", who.enqueues(scale) // 4)):
        if who.can(way):
            with who.at(server, pinned) as bench:
                found[way] = count / bench.produce(way, "noop", count, 100)["seconds"]
    return found
