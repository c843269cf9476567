"""Jobs all due at one instant, some seconds ahead: how late the first starts, and how fast all
are done from that instant on.
"""

import math
import time

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import PATIENCE, Bench, Competitor, Gone


def run(who: Competitor, server: BenchServer, *, pinned: bool, scale: float) -> dict[str, float]:
    if not who.can("burst"):
        return {}
    count = max(int(who.about.get("burst", 5000) * scale), 20)
    lead = who.about.get("lead", 4) * min(max(scale, 0.25), 1)
    # How long it takes to schedule them depends on the machine: nothing is measured of jobs
    # that were scheduled for an instant already past.
    while lead < PATIENCE:
        with who.at(server, pinned) as bench:
            if found := _burst(bench, count, lead):
                return found
        lead = max(2 * lead, 1)
    raise Gone(f"{who.name} does not schedule {count} jobs in {PATIENCE:.0f} s")


def _burst(bench: Bench, count: int, lead: float) -> dict[str, float] | None:
    """None where the instant had come before all were scheduled."""
    with bench.worker(1, "burst") as worker:
        bench.warm(worker)
        due = math.ceil(time.time() + lead)  # a whole second: some know no others
        at = time.monotonic() + due - time.time()
        bench.produce("schedule", count, due)
        if time.monotonic() > at:
            return None
        tally = bench.wait(count, worker)
    return {"burst": count / (tally.last - at), "burst first": (tally.first - at) * 1000}
