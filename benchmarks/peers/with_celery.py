# /// script
# dependencies = ["celery[redis]==5.7.0", "hiredis==3.5.0"]
# [tool.bench]
# name = "Celery"
# promise = "at least once"
# settings = "prefork, acks_late, results ignored, unlimited prefetch (4 for CPU), no events, gossip, mingle or heartbeat, fair scheduling"
# jobs = 5000
# enqueues = 3000
# burst = 3000
# [tool.bench.unsupported]
# concurrent = "no async producer"
# sleep = "its pool has processes"
# ///
"""Celery. A worker that receives a scheduled job keeps it in its memory until it is due."""

import datetime
import os

import kit
from celery import Celery

CPU = os.environ.get("BENCH_KIND") == "cpu"
app = Celery("bench", broker=kit.URL)
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    task_store_errors_even_if_ignored=False,
    worker_prefetch_multiplier=int(os.environ.get("BENCH_PREFETCH", "4" if CPU else "0")),
    worker_send_task_events=False,
    worker_redirect_stdouts=False,
    broker_connection_retry_on_startup=True,
    task_serializer="json",
)


@app.task(name="noop")
def noop(data):
    kit.noop()


@app.task(name="stamp")
def stamp(data):
    kit.stamp(data)


@app.task(name="burn")
def burn(data):
    kit.burn(data)


TASKS = {"noop": noop, "plain": noop, "stamp": stamp, "burn": burn}


def worker(processes, kind):
    os.environ["BENCH_KIND"] = kind
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=ERROR"]
    kit.execute("celery", "-A", "with_celery", "worker", f"--concurrency={processes}", *quiet)


def send(job, argument):
    TASKS[job].apply_async((argument,))


def schedule(job, arguments, at):
    eta = datetime.datetime.fromtimestamp(at, datetime.UTC)
    for argument in arguments:
        TASKS[job].apply_async((argument,), eta=eta)


if __name__ == "__main__":
    kit.main(worker=worker, send=send, schedule=schedule)
