# /// script
# [tool.crash]
# settings = "`concurrency=10`, `retries=3` (the default, 1, gives up an interrupted job)"
# governs = "job `timeout` (10 s), then the next sweep (`timers[\"sweep\"]`, 60 s), which waits 5 s for each job"
# restarts = "the benchmark, at once"
# ///
"""SAQ. Its worker has no supervisor."""

import crash_kit
from saq import Queue

queue = Queue.from_url(crash_kit.URL)


async def job(context, *, data):
    await crash_kit.run_async(data)


settings = {"queue": queue, "functions": [job], "concurrency": 10}


def worker():
    crash_kit.execute("saq", "crash_saq.settings")


async def send(data):
    await queue.enqueue("job", data=data, retries=3)


if __name__ == "__main__":
    crash_kit.main(worker=worker, send=send, connect=queue.connect)
