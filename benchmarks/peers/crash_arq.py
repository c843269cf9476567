# /// script
# [tool.crash]
# settings = "all defaults (`max_jobs=10`, `retry_jobs`, `max_tries=5`)"
# governs = "`job_timeout` (300 s) + 10 s: the key that marks a job as in progress expires"
# restarts = "the benchmark, at once"
# ///
"""arq with its defaults. It has no supervisor."""

import crash_kit
from arq import create_pool
from arq.connections import RedisSettings

SETTINGS = RedisSettings.from_dsn(crash_kit.URL)
pool = None


async def job(context, data):
    await crash_kit.run_async(data)


class WorkerSettings:
    functions = (job,)
    redis_settings = SETTINGS


def worker():
    crash_kit.execute("arq", "crash_arq.WorkerSettings")


async def connect():
    global pool
    pool = await create_pool(SETTINGS)


async def send(data):
    await pool.enqueue_job("job", data)


if __name__ == "__main__":
    crash_kit.main(worker=worker, send=send, connect=connect)
