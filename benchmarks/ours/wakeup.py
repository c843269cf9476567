"""The lower bound of a pickup, without Queasy: a process that waits in BLPOP, and one that receives
a pub/sub message and then calls a function. Messages come at the intervals of `pickup`.

    python wakeup.py blpop|pubsub URL       the waiting process; prints the seconds of each message
"""

import random
import statistics
import subprocess
import sys
import time

import redis

GAPS = (0.01, 0.04)
JOBS = 300
LIBRARY = """#!lua name=queasy_bench
redis.register_function{function_name='queasy_bench', callback=function() return 1 end,
                        flags={'no-writes'}}
"""


def wait(way: str, url: str) -> None:
    server, caller = redis.Redis.from_url(url), redis.Redis.from_url(url)
    caller.fcall_ro("queasy_bench", 0)
    subscription = server.pubsub()
    if way == "pubsub":
        subscription.subscribe("bench-wake")
        subscription.get_message(timeout=5)
    print("ready", flush=True)
    found: list[float] = []
    while True:
        if way == "blpop":
            sent = server.blpop(["bench-wake"], 0)[1]  # pyright: ignore
        else:
            message = subscription.get_message(timeout=5)
            if message is None:
                continue
            sent = message["data"]
            if sent != b"over":
                caller.fcall_ro("queasy_bench", 0)
        if sent == b"over":
            break
        found.append(time.monotonic() - float(sent))
    print(*found, flush=True)


def times(way: str, url: str, jobs: int) -> list[float]:
    command = [sys.executable, __file__, way, url]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waiting,
        redis.Redis.from_url(url) as server,
    ):
        assert waiting.stdout is not None
        waiting.stdout.readline()
        send = server.rpush if way == "blpop" else server.publish
        for _ in range(jobs):
            time.sleep(random.uniform(*GAPS))
            send("bench-wake", repr(time.monotonic()))
        time.sleep(0.1)
        send("bench-wake", "over")
        return [float(seconds) for seconds in waiting.stdout.readline().split()]


def run(competitor, server, *, pinned: bool, scale: float) -> dict[str, float]:
    found: dict[str, float] = {}
    with competitor.on(server, pinned):
        server.redis.function_load(LIBRARY, replace=True)
        for way in ("blpop", "pubsub"):
            cuts = statistics.quantiles(times(way, server.url, max(int(JOBS * scale), 20)), n=100)
            found |= {f"{way} p50": cuts[49] * 1000, f"{way} p99": cuts[98] * 1000}
        server.redis.function_delete("queasy_bench")
    return found


if __name__ == "__main__":
    wait(*sys.argv[1:])
