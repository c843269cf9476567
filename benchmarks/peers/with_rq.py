# /// script
# dependencies = ["rq==2.12.0", "hiredis==3.5.0"]
# [tool.bench]
# name = "RQ"
# promise = "at least once"
# settings = "SimpleWorker (no fork for each job), JSON, no results, enqueue_many of 1,000"
# jobs = 1500
# enqueues = 3000
# burst = 800
# lead = 6
# [tool.bench.unsupported]
# concurrent = "no async producer"
# sleep = "a worker runs one job at a time"
# ///
"""RQ."""

import datetime

import kit
from redis import Redis
from rq import Queue, SimpleWorker
from rq.serializers import JSONSerializer

server = Redis.from_url(kit.URL)
queue = Queue("bench", connection=server, serializer=JSONSerializer)
NAMES = {"noop": "with_rq.noop", "plain": "with_rq.noop", "stamp": "kit.stamp", "burn": "kit.burn"}
NO_TRACE = {"result_ttl": 0, "failure_ttl": 0}


def noop(data):
    kit.noop()


def worker(processes, kind):
    def run():
        fresh = Redis.from_url(kit.URL)
        running = SimpleWorker([queue.name], connection=fresh, serializer=JSONSerializer)
        running.work(with_scheduler=kind == "burst", logging_level="WARNING")

    kit.fork_processes(processes, run)


def send(job, argument):
    queue.enqueue(NAMES[job], argument, **NO_TRACE)


def bulk(job, arguments):
    for start in range(0, len(arguments), 1000):
        batch = arguments[start : start + 1000]
        queue.enqueue_many(Queue.prepare_data(NAMES[job], (one,), **NO_TRACE) for one in batch)


def schedule(job, arguments, at):
    when = datetime.datetime.fromtimestamp(at, datetime.UTC)
    for argument in arguments:
        queue.enqueue_at(when, NAMES[job], argument, **NO_TRACE)


if __name__ == "__main__":
    kit.main(worker=worker, send=send, bulk=bulk, schedule=schedule)
