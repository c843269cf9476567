"""N jobs are there; workers start, and run them. Speed from the start of the first to the end of
the last, inside the workers. On the way: how fast the jobs were put there, what they weigh, and
what the server spends on each that is taken and finished.
"""

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor

BYTES = 100


def run(
    who: Competitor, server: BenchServer, *, pinned: bool, scale: float, processes: int = 1
) -> dict[str, float]:
    with who.at(server, pinned) as bench:
        before = server.memory()
        put = bench.produce("bulk", "noop", count := who.jobs(scale), BYTES)
        weight = server.memory() - before
        used = server.cpu()
        with bench.worker(processes, "drain") as worker:
            tally = bench.wait(put["jobs"], worker)
            used = server.cpu() - used
    if processes > 1:
        return {"drain 2": tally.speed}
    return {
        "bulk": count / put["seconds"],
        "bytes": weight / put["jobs"],
        "drain": tally.speed,
        "server": used / put["jobs"] * 1e6,
    }
