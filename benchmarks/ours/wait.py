"""Handlers that wait, at the default size: ideal time / measured time.

- Async handlers that wait for 5 ms, as for a fast service. A worker runs a hundred of them at once.
  The time includes the start, with fewer at once.
- Plain functions that block for 10 ms. Without a size, a worker runs ten of them at once.
"""

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor
from benchmarks.workloads.sleep import share_of_ideal

SHARE_OF_DRAIN = {"wait": 0.6, "sleep": 0.03}  # of the number of jobs


def run(
    competitor: Competitor, server: BenchServer, *, pinned: bool, scale: float
) -> dict[str, float]:
    found: dict[str, float] = {}
    for metric, job, milliseconds, at_once in (
        ("wait", "wait", 5, 100),
        ("sleep of default size", "sleep", 10, 10),
    ):
        jobs = competitor.jobs(scale * SHARE_OF_DRAIN[job])
        with competitor.on(server, pinned) as bench:
            found[metric] = share_of_ideal(bench, job, jobs, milliseconds, at_once)
    return found
