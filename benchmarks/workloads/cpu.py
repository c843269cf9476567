"""200 jobs that compute for 20 ms each, on two processes: ideal time / measured time."""

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor

JOBS, MILLISECONDS, PROCESSES = 200, 20, 2


def run(
    competitor: Competitor, server: BenchServer, *, pinned: bool, scale: float
) -> dict[str, float]:
    jobs = max(int(JOBS * scale), 20)
    with competitor.on(server) as bench:
        bench.produce("bulk", "burn", jobs, MILLISECONDS)
        with bench.worker(PROCESSES, "cpu") as worker:
            tally = bench.wait_for_jobs(jobs, worker)
    return {"cpu": jobs * MILLISECONDS / 1000 / PROCESSES / (tally.last - tally.first)}
