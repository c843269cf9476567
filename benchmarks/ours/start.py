"""Seconds from the start of `queasy worker` to its first job, and of `import queasy`."""

import subprocess
import sys
import time

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor

STARTS, IMPORTS = 3, 7


def run(
    competitor: Competitor, server: BenchServer, *, pinned: bool, scale: float
) -> dict[str, float]:
    starts: list[float] = []
    for _ in range(STARTS):
        with competitor.on(server) as bench:
            bench.produce("bulk", "burn", 1, 0)
            began = time.monotonic()
            with bench.worker(1, "cpu") as worker:
                starts.append(bench.wait_for_jobs(1, worker).first - began)
    environment = competitor.environment
    pairs = [
        (duration("pass", environment), duration("import queasy", environment))
        for _ in range(IMPORTS)
    ]
    bare, ours = (min(times) for times in zip(*pairs, strict=True))
    return {"start": min(starts) * 1000, "import": (ours - bare) * 1000}


def duration(program: str, environment: dict[str, str]) -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    return time.monotonic() - began
