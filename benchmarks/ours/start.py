"""From the start of `queasy worker` to its first job; and what `import queasy` takes."""

import subprocess
import sys
import time

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor

STARTS, IMPORTS = 3, 7


def run(who: Competitor, server: BenchServer, *, pinned: bool, scale: float) -> dict[str, float]:
    starts: list[float] = []
    for _ in range(STARTS):
        with who.at(server) as bench:
            bench.produce("bulk", "burn", 1, 0)
            began = time.monotonic()
            with bench.worker(1, "cpu") as worker:
                starts.append(bench.wait(1, worker).first - began)
    pairs = [(took("pass"), took("import queasy")) for _ in range(IMPORTS)]
    bare, ours = (min(times) for times in zip(*pairs, strict=True))
    return {"start": min(starts) * 1000, "import": (ours - bare) * 1000}


def took(program: str) -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", program], check=True)
    return time.monotonic() - began
