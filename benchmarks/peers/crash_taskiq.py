# /// script
# [tool.crash]
# settings = "`RedisStreamBroker`, `--workers 1 --max-async-tasks 10`, acknowledged after the run (`--ack-type when_executed`)"
# governs = "`idle_timeout` of the broker (600 s)"
# restarts = "its process manager"
# ///
"""Taskiq on a stream with acknowledgements; its list broker delivers at most once."""

import crash_kit
from taskiq_redis import RedisStreamBroker

# From the beginning of the stream: jobs sent before the first worker started are run, too.
broker = RedisStreamBroker(crash_kit.URL, consumer_id="0")


@broker.task(task_name="job")
async def job(data):
    await crash_kit.run_async(data)


def worker():
    options = ["--workers", 1, "--max-async-tasks", 10, "--ack-type", "when_executed"]
    crash_kit.execute("taskiq", "worker", "crash_taskiq:broker", *options)


async def send(data):
    await job.kiq(data)


if __name__ == "__main__":
    crash_kit.main(worker=worker, send=send, connect=broker.startup)
