"""Plain functions that block for 10 ms, as for a query: ideal time / measured time.

Every competitor has threads for a hundred of them at once.
"""

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Bench, Competitor

MILLISECONDS, AT_ONCE = 10, 100
SHARE_OF_DRAIN = 0.3  # of the number of jobs


def run(
    competitor: Competitor, server: BenchServer, *, pinned: bool, scale: float
) -> dict[str, float]:
    if not competitor.supports("sleep"):
        return {}
    jobs = competitor.jobs(scale * SHARE_OF_DRAIN)
    with competitor.variant(BENCH_SIZE="1").on(server, pinned) as bench:
        return {"sleep": share_of_ideal(bench, "sleep", jobs, MILLISECONDS, AT_ONCE)}


def share_of_ideal(bench: Bench, job: str, jobs: int, milliseconds: float, at_once: int) -> float:
    """Drain jobs that each wait for `milliseconds`. Returns ideal time / measured time."""
    bench.produce("bulk", job, jobs, milliseconds)
    with bench.worker(1, job) as worker:
        tally = bench.wait_for_jobs(jobs, worker)
    return jobs * milliseconds / 1000 / at_once / (tally.last - tally.first)
