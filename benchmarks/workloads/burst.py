"""Jobs all due at one instant, some seconds ahead: how late the first starts, and how fast all
are done from that instant on.
"""

import math
import time

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor, Gone


def run(who: Competitor, server: BenchServer, *, pinned: bool, scale: float) -> dict[str, float]:
    if not who.can("burst"):
        return {}
    count = max(int(who.about.get("burst", 5000) * scale), 20)
    with who.at(server, pinned) as bench, bench.worker(1, "burst") as worker:
        bench.warm(worker)
        # A whole second: some know no others.
        due = math.ceil(time.time() + who.about.get("lead", 4) * min(max(scale, 0.25), 1))
        at = time.monotonic() + due - time.time()
        put = bench.produce("schedule", count, due)
        if time.monotonic() > at:
            raise Gone(f"{who.name} took {put['seconds']:.1f} s to schedule {count} jobs")
        tally = bench.wait(count, worker)
    return {"burst": count / (tally.last - at), "burst first": (tally.first - at) * 1000}
