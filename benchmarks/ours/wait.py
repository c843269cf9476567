"""Async handlers that wait for 5 ms, as for a fast service: ideal time / measured time.

A worker runs a hundred of them at once. The time includes the start, with fewer at once.
"""

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor

MILLISECONDS, AT_ONCE = 5, 100
SHARE_OF_DRAIN = 0.6  # of the number of jobs


def run(
    competitor: Competitor, server: BenchServer, *, pinned: bool, scale: float
) -> dict[str, float]:
    jobs = competitor.jobs(scale * SHARE_OF_DRAIN)
    with competitor.on(server, pinned) as bench:
        bench.produce("bulk", "wait", jobs, MILLISECONDS)
        with bench.worker(1, "wait") as worker:
            tally = bench.wait_for_jobs(jobs, worker)
    # A job is counted when it ends: the first one began one wait before.
    seconds = tally.last - tally.first + MILLISECONDS / 1000
    return {"wait": jobs * MILLISECONDS / 1000 / AT_ONCE / seconds}
