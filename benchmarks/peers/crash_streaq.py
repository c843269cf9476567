# /// script
# [tool.crash]
# settings = "`concurrency=10`, otherwise defaults (`max_tries=3`)"
# governs = "`idle_timeout` (60 s)"
# restarts = "the benchmark, at once"
# ///
"""streaq, on the coredis client."""

import contextlib

import crash_kit
from streaq import Worker

app = Worker(redis_url=crash_kit.URL, concurrency=10)
_open = contextlib.AsyncExitStack()


@app.task
async def job(data):
    await crash_kit.run_async(data)


def worker():
    crash_kit.execute("streaq", "run", "crash_streaq:app")


async def connect():
    await _open.enter_async_context(app)


async def send(data):
    await job.enqueue(data)


if __name__ == "__main__":
    crash_kit.main(worker=worker, send=send, connect=connect)
