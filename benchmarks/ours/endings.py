"""Jobs that are retried once, and jobs that fail and go to a fail handler: two runs each.

Metrics: runs per second, and their ratio to jobs that succeed at once.
"""

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor

SHARE_OF_DRAIN = 0.3  # of the number of jobs


def run(
    competitor: Competitor, server: BenchServer, *, pinned: bool, scale: float
) -> dict[str, float]:
    jobs = competitor.jobs(scale * SHARE_OF_DRAIN)
    success = _drain(competitor, server, pinned, "noop", jobs, 1)
    again = _drain(competitor, server, pinned, "again", jobs, 2)
    doomed = _drain(competitor, server, pinned, "doomed", jobs, 1)
    return {
        "retried": again,
        "failed": 2 * doomed,
        "retried ratio": again / success,
        "failed ratio": 2 * doomed / success,
    }


def _drain(
    competitor: Competitor, server: BenchServer, pinned: bool, queue: str, jobs: int, counts: int
) -> float:
    """Calls per second of the handler that counts."""
    with competitor.on(server, pinned) as bench:
        enqueued = bench.produce("bulk", queue, jobs, 100)["jobs"]
        with bench.worker(1, "drain" if queue == "noop" else queue) as worker:
            return bench.wait_for_jobs(enqueued * counts, worker).speed
