"""Many jobs become due at the same instant, some seconds after they were scheduled.

Metrics: the delay of the first start, and the jobs per second counted from that instant.
"""

import math
import time

from benchmarks.harness.bench import RUN_TIMEOUT
from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Bench, Competitor, RunFailed


def run(
    competitor: Competitor, server: BenchServer, *, pinned: bool, scale: float
) -> dict[str, float]:
    if not competitor.supports("burst"):
        return {}
    count = max(int(competitor.about.get("burst", 5000) * scale), 20)
    lead = competitor.about.get("lead", 4) * min(max(scale, 0.25), 1)
    # The time that scheduling takes depends on the machine. A round in which the instant came
    # before the last job was scheduled measures nothing, and is repeated with more time.
    while lead < RUN_TIMEOUT:
        with competitor.on(server, pinned) as bench:
            if found := _burst(bench, count, lead):
                return found
        lead = max(2 * lead, 1)
    raise RunFailed(f"{competitor.name} did not schedule {count} jobs in {RUN_TIMEOUT:.0f} s")


def _burst(bench: Bench, count: int, lead: float) -> dict[str, float] | None:
    """None if the instant came before every job was scheduled."""
    with bench.worker(1, "burst") as worker:
        bench.warm_up(worker)
        due = math.ceil(time.time() + lead)  # some peers schedule by whole seconds only
        at = time.monotonic() + due - time.time()
        bench.produce("schedule", count, due)
        if time.monotonic() > at:
            return None
        tally = bench.wait_for_jobs(count, worker)
    return {"burst": count / (tally.last - at), "burst first": (tally.first - at) * 1000}
