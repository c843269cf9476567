# /// script
# dependencies = ["bullmq==3.4.4", "hiredis==3.5.0", "uvloop==0.23.0"]
# [tool.bench]
# name = "BullMQ (Python)"
# promise = "at least once"
# settings = "concurrency 50 (1 for CPU), uvloop, finished jobs removed, addBulk of 1,000"
# jobs = 6000
# burst = 4000
# [tool.bench.unsupported]
# plain = "it calls async functions only"
# sleep = "it calls async functions only"
# ///
"""BullMQ for Python."""

import asyncio
import os
import time

import kit
import uvloop
from bullmq import Queue, Worker

HANDLERS = {"noop": lambda data: kit.noop(), "stamp": kit.stamp, "burn": kit.burn}
NO_TRACE = {"removeOnComplete": True, "removeOnFail": True}
_queue = None


def queue():
    global _queue
    if _queue is None:
        _queue = Queue("bench", {"connection": kit.URL})
    return _queue


async def process(job, token):
    HANDLERS[job.name](job.data["argument"])


def worker(processes, kind):
    concurrency = int(os.environ.get("BENCH_CONCURRENCY", "1" if kind == "cpu" else "50"))

    async def run():
        options = {"connection": kit.URL, "concurrency": concurrency, **NO_TRACE}
        running = Worker("bench", process, options)
        await asyncio.Event().wait()
        await running.close()

    kit.fork_processes(processes, lambda: uvloop.run(run()))


async def send(job, argument):
    await queue().add(job, {"argument": argument}, NO_TRACE)


async def bulk(job, arguments, options=NO_TRACE):
    jobs = [{"name": job, "data": {"argument": one}, "opts": options} for one in arguments]
    for start in range(0, len(jobs), 1000):
        await queue().addBulk(jobs[start : start + 1000])


async def schedule(job, arguments, at):
    for start in range(0, len(arguments), 500):
        delay = int((at - time.time()) * 1000)
        await bulk(job, arguments[start : start + 500], {**NO_TRACE, "delay": delay})


if __name__ == "__main__":
    kit.main(worker=worker, send=send, bulk=bulk, schedule=schedule)
