"""Workers start on a full queue and drain it.

Metrics: jobs per second from the start of the first job to the end of the last, as the workers
see it; the speed of the enqueue before; the memory of a waiting job; and the CPU time that the
server spends on a job that is dequeued and finished.
"""

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor

BYTES = 100


def run(
    competitor: Competitor, server: BenchServer, *, pinned: bool, scale: float, processes: int = 1
) -> dict[str, float]:
    with competitor.on(server, pinned) as bench:
        before = server.memory()
        enqueued = bench.produce("bulk", "noop", count := competitor.jobs(scale), BYTES)
        weight = server.memory() - before
        used = server.cpu()
        with bench.worker(processes, "drain") as worker:
            tally = bench.wait_for_jobs(enqueued["jobs"], worker)
            used = server.cpu() - used
    if processes > 1:
        return {"drain 2": tally.speed}
    return {
        "bulk": count / enqueued["seconds"],
        "bytes": weight / enqueued["jobs"],
        "drain": tally.speed,
        "server": used / enqueued["jobs"] * 1e6,
    }
