"""200 jobs of 20 ms of computing on two processes: the ideal time, over what it took."""

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor

JOBS, MILLISECONDS, PROCESSES = 200, 20, 2


def run(who: Competitor, server: BenchServer, *, pinned: bool, scale: float) -> dict[str, float]:
    jobs = max(int(JOBS * scale), 20)
    with who.at(server) as bench:
        bench.produce("bulk", "burn", jobs, MILLISECONDS)
        with bench.worker(PROCESSES, "cpu") as worker:
            tally = bench.wait(jobs, worker)
    return {"cpu": jobs * MILLISECONDS / 1000 / PROCESSES / (tally.last - tally.first)}
