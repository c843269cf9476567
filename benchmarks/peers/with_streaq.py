# /// script
# dependencies = ["streaq==7.2.0", "uvloop==0.23.0"]
# [tool.bench]
# name = "streaq"
# promise = "at least once"
# settings = "32 jobs at once (1 for CPU, no prefetch), uvloop, silent, no results (ttl 0), enqueue_many of 1,000"
# jobs = 5000
# burst = 4000
# ///
"""streaq, on the coredis client."""

import contextlib
import datetime
import os

import kit
from streaq import Worker

CPU = os.environ.get("BENCH_KIND") == "cpu"
CONCURRENCY = int(os.environ.get("BENCH_CONCURRENCY", "1" if CPU else "32"))
app = Worker(
    redis_url=kit.URL,
    concurrency=CONCURRENCY,
    prefetch=0 if CPU else None,
    anyio_kwargs={"use_uvloop": True},
)
_open = contextlib.AsyncExitStack()


@app.task(ttl=0, silent=True)
async def noop(data):
    kit.noop()


@app.task(ttl=0, silent=True)
async def stamp(data):
    kit.stamp(data)


@app.task(ttl=0, silent=True)
async def burn(data):
    kit.burn(data)


@app.task(ttl=0, silent=True)
def plain(data):
    kit.noop()


@app.task(ttl=0, silent=True)
def sleep(data):
    kit.sleep(data)


TASKS = {"noop": noop, "stamp": stamp, "burn": burn, "plain": plain, "sleep": sleep}


def worker(processes, kind):
    os.environ["BENCH_KIND"] = kind
    kit.execute("streaq", "run", "with_streaq:app", "--workers", processes)


async def connect():
    await _open.enter_async_context(app)


async def send(job, argument):
    await TASKS[job].enqueue(argument)


async def bulk(job, arguments, **when):
    for start in range(0, len(arguments), 1000):
        batch = arguments[start : start + 1000]
        await app.enqueue_many([TASKS[job].enqueue(one).start(**when) for one in batch])


async def schedule(job, arguments, at):
    await bulk(job, arguments, schedule=datetime.datetime.fromtimestamp(at, datetime.UTC))


if __name__ == "__main__":
    kit.main(worker=worker, send=send, bulk=bulk, schedule=schedule, connect=connect)
