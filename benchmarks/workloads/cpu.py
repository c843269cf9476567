"""200 jobs that compute for 20 ms each, on two processes: ideal time / measured time."""

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Bench, Competitor

JOBS, MILLISECONDS, PROCESSES = 200, 20, 2


def run(
    competitor: Competitor, server: BenchServer, *, pinned: bool, scale: float
) -> dict[str, float]:
    with competitor.on(server) as bench:
        return {"cpu": share_of_ideal(bench, "burn", "cpu", scale)}


def share_of_ideal(bench: Bench, job: str, kind: str, scale: float) -> float:
    jobs = max(int(JOBS * scale), 20)
    bench.produce("bulk", job, jobs, MILLISECONDS)
    with bench.worker(PROCESSES, kind) as worker:
        tally = bench.wait_for_jobs(jobs, worker)
    return jobs * MILLISECONDS / 1000 / PROCESSES / (tally.last - tally.first)
