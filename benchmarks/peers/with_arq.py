# /// script
# dependencies = ["arq==0.28.0", "hiredis==3.5.0", "uvloop==0.23.0"]
# [tool.bench]
# name = "arq"
# promise = "at least once"
# settings = "100 jobs at once (1 for CPU), polls every 10 ms, uvloop, no results"
# jobs = 5000
# burst = 4000
# [tool.bench.unsupported]
# plain = "it calls async functions only"
# sleep = "it calls async functions only"
# ///
"""arq. It polls, by default twice a second. It has no call for many jobs."""

import datetime
import os

import kit
import uvloop
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker

SETTINGS = RedisSettings.from_dsn(kit.URL)
pool = None


async def noop(context, data):
    kit.noop()


async def stamp(context, data):
    kit.stamp(data)


async def burn(context, data):
    kit.burn(data)


def worker(processes, kind):
    at_once = int(os.environ.get("BENCH_CONCURRENCY", "1" if kind == "cpu" else "100"))

    async def run():
        running = Worker(
            [noop, stamp, burn],
            redis_settings=SETTINGS,
            max_jobs=at_once,
            poll_delay=0.01,
            keep_result=0,
            log_results=False,
        )
        await running.async_run()

    kit.fork_processes(processes, lambda: uvloop.run(run()))


async def connect():
    global pool
    pool = await create_pool(SETTINGS)


async def send(job, argument):
    await pool.enqueue_job(job, argument)


async def schedule(job, arguments, at):
    when = datetime.datetime.fromtimestamp(at, datetime.UTC)

    async def later(job, argument):
        await pool.enqueue_job(job, argument, _defer_until=when)

    await kit.send_concurrently(later, job, arguments)


if __name__ == "__main__":
    kit.main(worker=worker, send=send, schedule=schedule, connect=connect)
