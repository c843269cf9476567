# /// script
# [tool.crash]
# settings = "`rq worker-pool --num-workers 10`, a process for each job, `Retry(max=3)`"
# governs = "process: `Retry`; host: the job's heartbeat expires (90 s), then the next maintenance (`--maintenance-interval`, 600 s)"
# restarts = "its worker, for each job"
# ///
"""RQ. A worker runs one job at a time, in a process of its own."""

import crash_kit
from redis import Redis
from rq import Queue, Retry

queue = Queue("crash", connection=Redis.from_url(crash_kit.URL))


def worker():
    pool = ["worker-pool", queue.name, "--num-workers", 10, "--url", crash_kit.URL]
    crash_kit.execute("rq", *pool)


def send(data):
    queue.enqueue("crash_kit.run", data, retry=Retry(max=3))


if __name__ == "__main__":
    crash_kit.main(worker=worker, send=send)
