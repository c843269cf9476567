"""Jobs that are retried once, and jobs that are given up and go to a fail handler: each is two
runs. Runs a second, next to those of jobs that succeed at once, in the same harness.
"""

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor

PART = 0.3  # of the jobs of a drain


def run(who: Competitor, server: BenchServer, *, pinned: bool, scale: float) -> dict[str, float]:
    jobs = who.jobs(scale * PART)
    success = _drain(who, server, pinned, "noop", jobs, 1)
    again = _drain(who, server, pinned, "again", jobs, 2)
    doomed = _drain(who, server, pinned, "doomed", jobs, 1)
    return {
        "retried": again,
        "given up": 2 * doomed,
        "retried part": again / success,
        "given up part": 2 * doomed / success,
    }


def _drain(
    who: Competitor, server: BenchServer, pinned: bool, queue: str, jobs: int, counts: int
) -> float:
    """Calls of the handler that counts, per second."""
    with who.at(server, pinned) as bench:
        put = bench.produce("bulk", queue, jobs, 100)["jobs"]
        with bench.worker(1, "drain" if queue == "noop" else queue) as worker:
            return bench.wait(put * counts, worker).speed
