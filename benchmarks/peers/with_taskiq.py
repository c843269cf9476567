# /// script
# dependencies = ["taskiq==0.13.0", "taskiq-redis==1.2.4", "hiredis==3.5.0", "uvloop==0.23.0", "orjson==3.13.0"]
# [tool.bench]
# name = "Taskiq"
# promise = "at least once"
# settings = "RedisStreamBroker, 100 read at once (1 for CPU), plain functions in 4 threads (100 for sleeps), acknowledged when executed, orjson, uvloop, no results, parameters not parsed"
# jobs = 8000
# [tool.bench.unsupported]
# burst = "schedules need a third process, which sends each job when it is due"
# ///
"""Taskiq on a stream with acknowledgements. Its ListQueueBroker is at most once: a
job is popped before it runs. Finished jobs stay in the stream, as by default.
"""

import os

import kit
from taskiq.serializers import ORJSONSerializer
from taskiq_redis import RedisStreamBroker

COUNT = int(os.environ.get("BENCH_COUNT", "100"))
# "0" reads from the beginning, so that jobs sent before the first worker started run as well.
broker = RedisStreamBroker(kit.URL, consumer_id="0", xread_count=COUNT).with_serializer(
    ORJSONSerializer()
)


@broker.task(task_name="noop")
async def noop(data):
    kit.noop()


@broker.task(task_name="stamp")
async def stamp(data):
    kit.stamp(data)


@broker.task(task_name="burn")
async def burn(data):
    kit.burn(data)


@broker.task(task_name="plain")
def plain(data):
    kit.noop()


@broker.task(task_name="sleep")
def sleep(data):
    kit.sleep(data)


TASKS = {"noop": noop, "stamp": stamp, "burn": burn, "plain": plain, "sleep": sleep}
THREADS = {"sleep": "100"}  # for plain functions


def worker(processes, kind):
    if kind == "cpu":
        os.environ["BENCH_COUNT"] = "1"
    at_once = "1" if kind == "cpu" else os.environ.get("BENCH_CONCURRENCY", "100")
    options = ["--workers", processes, "--max-async-tasks", at_once, "--no-parse"]
    options += ["--ack-type", "when_executed", "--log-level", "WARNING"]
    options += ["--max-threadpool-threads", os.environ.get("BENCH_THREADS", THREADS.get(kind, "4"))]
    kit.execute("taskiq", "worker", "with_taskiq:broker", *options)


async def send(job, argument):
    await TASKS[job].kiq(argument)


if __name__ == "__main__":
    kit.main(worker=worker, send=send, connect=broker.startup)
