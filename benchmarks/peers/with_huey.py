# /// script
# dependencies = ["huey==3.5.4", "redis==8.1.0", "hiredis==3.5.0"]
# [tool.bench]
# name = "Huey"
# promise = "at most once"
# settings = "one thread (100 for sleeps), or two processes, no results, blocking pop, scheduler every second (its minimum)"
# jobs = 15000
# burst = 4000
# [tool.bench.unsupported]
# concurrent = "not measured: only its sync producer is used"
# ///
"""Huey. A job is popped before it runs: a worker that dies loses the jobs it holds."""

import datetime
import os

import kit
from huey import RedisHuey

huey = RedisHuey(url=kit.URL, results=False, utc=True)


@huey.task()
def noop(data):
    kit.noop()


@huey.task()
def stamp(data):
    kit.stamp(data)


@huey.task()
def burn(data):
    kit.burn(data)


@huey.task()
def sleep(data):
    kit.sleep(data)


TASKS = {"noop": noop, "plain": noop, "stamp": stamp, "burn": burn, "sleep": sleep}


def worker(processes, kind):
    threads = os.environ.get("BENCH_THREADS", "100" if kind == "sleep" else "1")
    how, count = ("process", processes) if processes > 1 else ("thread", threads)
    options = ["--worker-type", how, "--workers", count, "--scheduler-interval", 1, "--quiet"]
    kit.execute("huey_consumer", "with_huey.huey", *options)


def send(job, argument):
    TASKS[job](argument)


def schedule(job, arguments, at):
    eta = datetime.datetime.fromtimestamp(at)  # Huey expects a naive local time
    for argument in arguments:
        TASKS[job].schedule((argument,), eta=eta)


if __name__ == "__main__":
    import with_huey as app  # Huey names tasks by their module, and `__main__` would be that of the consumer

    kit.main(worker=app.worker, send=app.send, schedule=app.schedule)
