# /// script
# dependencies = ["dramatiq[redis]==2.2.1", "hiredis==3.5.0"]
# [tool.bench]
# name = "Dramatiq"
# promise = "at least once"
# settings = "4 threads a process (1 for CPU, 100 for sleeps), all default middleware, no results, prefetch 1000"
# jobs = 20000
# burst = 4000
# [tool.bench.unsupported]
# concurrent = "no async producer"
# ///
"""Dramatiq, with its Redis broker. It has no call for many jobs."""

import os
import time

import dramatiq
import kit
from dramatiq.brokers.redis import RedisBroker

dramatiq.set_broker(RedisBroker(url=kit.URL))


@dramatiq.actor
def noop(data):
    kit.noop()


@dramatiq.actor
def stamp(data):
    kit.stamp(data)


@dramatiq.actor
def burn(data):
    kit.burn(data)


@dramatiq.actor
def sleep(data):
    kit.sleep(data)


ACTORS = {"noop": noop, "plain": noop, "stamp": stamp, "burn": burn, "sleep": sleep}
AT_ONCE = {"cpu": 1, "spin": 1, "sleep": 100}


def worker(processes, kind):
    threads = os.environ.get("BENCH_THREADS", AT_ONCE.get(kind, 4))
    if kind == "cpu":  # with a prefetch, one process holds jobs that the other could run
        os.environ["dramatiq_queue_prefetch"] = "1"
    else:
        os.environ.setdefault("dramatiq_queue_prefetch", "1000")
    kit.execute("dramatiq", "with_dramatiq", "--processes", processes, "--threads", threads)


def send(job, argument):
    ACTORS[job].send(argument)


def schedule(job, arguments, at):
    for argument in arguments:
        delay = max(int((at - time.time()) * 1000), 0)
        ACTORS[job].send_with_options(args=(argument,), delay=delay)


if __name__ == "__main__":
    kit.main(worker=worker, send=send, schedule=schedule)
