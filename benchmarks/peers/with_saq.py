# /// script
# dependencies = ["saq[hiredis]==0.26.4", "typing-extensions==4.15.0", "uvloop==0.23.0", "orjson==3.13.0"]
# [tool.bench]
# name = "SAQ"
# promise = "at least once"
# settings = "concurrency 100 (2 for CPU), plain functions in 4 threads (100 for sleeps), orjson, uvloop, no results (ttl -1), 100 operations at once, schedule polled every second (default)"
# jobs = 6000
# burst = 4000
# ///
"""SAQ. Its command line has no option for uvloop, so this script starts the workers."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

import kit
import orjson
import uvloop
from redis import asyncio as redis
from saq import Worker
from saq.queue.redis import RedisQueue

queue = RedisQueue(
    redis.from_url(kit.URL, max_connections=1000),  # each job that runs or waits takes a connection
    dump=orjson.dumps,
    load=orjson.loads,
    max_concurrent_ops=100,
)


async def noop(context, *, data):
    kit.noop()


async def stamp(context, *, data):
    kit.stamp(data)


async def burn(context, *, data):
    kit.burn(data)


def plain(context, *, data):
    kit.noop()


def sleep(context, *, data):
    kit.sleep(data)


FUNCTIONS = [noop, stamp, burn, plain, sleep]


def worker(processes, kind):
    concurrency = int(os.environ.get("BENCH_CONCURRENCY", "2" if kind == "cpu" else "100"))

    async def run():
        threads = ThreadPoolExecutor(100 if kind == "sleep" else 4)  # for plain functions
        asyncio.get_running_loop().set_default_executor(threads)
        await Worker(queue, FUNCTIONS, concurrency=concurrency).start()

    kit.fork_processes(processes, lambda: uvloop.run(run()))


async def send(job, argument):
    await queue.enqueue(job, data=argument, ttl=-1)


async def schedule(job, arguments, at):
    async def later(job, argument):
        await queue.enqueue(job, data=argument, ttl=-1, scheduled=int(at))

    await kit.send_concurrently(later, job, arguments)


if __name__ == "__main__":
    kit.main(worker=worker, send=send, schedule=schedule)
