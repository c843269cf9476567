# /// script
# dependencies = []
# [tool.bench]
# name = "Queasy"
# promise = "at least once"
# settings = "defaults, async handler; `queasy worker --processes N`"
# jobs = 100000
# enqueues = 50000
# burst = 100000
# ///
"""Queasy, by its public API only, run by the interpreter of the harness."""

import asyncio
import os
import sys
from functools import cache
from pathlib import Path

import kit

from queasy import Client, Dispatch, SyncClient

SIZE = os.environ.get("BENCH_SIZE")  # a variant; by default the size is measured
OPTIONS = {"size": int(SIZE)} if SIZE else {}
client = Client(kit.URL)
NAMES = ("noop", "stamp", "burn", "again", "doomed", "wait", "plain", "sleep", "burn-plain")
queues = {name: client.queue(name) for name in NAMES}
spread = [f"spread-{number}" for number in range(50)]


@queues["noop"].handler(**OPTIONS)
async def noop(data):
    kit.noop()


@queues["stamp"].handler
async def stamp(data):
    kit.stamp(data)


@queues["burn"].handler
async def burn(data):
    kit.burn(data)


@queues["again"].handler(max_retries=1, min_backoff=0, **OPTIONS)
async def again(data, job):
    kit.noop()
    if not job.retry_count:
        raise ValueError("once more")


@queues["doomed"].handler(on_exception="fail", **OPTIONS)
async def doomed(data):
    raise ValueError("never")


@queues["doomed"].fail_handler
async def gave_up(data, job, error):
    kit.noop()


@queues["wait"].handler
async def wait(milliseconds):
    await asyncio.sleep(milliseconds / 1000)
    kit.noop()


@queues["plain"].handler(**OPTIONS)
def plain(data):
    kit.noop()


@queues["sleep"].handler(**OPTIONS)
def sleep(milliseconds):
    kit.sleep(milliseconds)


@queues["burn-plain"].handler
def burn_plain(milliseconds):
    kit.burn(milliseconds)


for name in spread:
    queues[name] = client.queue(name)
    queues[name].handler(**OPTIONS)(noop)


QUEUES = {
    "spread-1": spread[:1],
    "spread-10": spread[:10],
    "spread-50": spread,
    "drain": ["noop"],
    "burst": ["noop", "stamp"],
    "pickup": ["noop", "stamp"],
    "cpu": ["burn"],
    "spin": ["burn"],
}


def worker(processes, kind):
    app = [f"{Path(__file__).resolve()}:client", "--processes", str(processes)]
    chosen = [word for name in QUEUES.get(kind, [kind]) for word in ("--queue", name)]
    command = [sys.executable, "-m", "queasy", "worker", *app, *chosen, "--log-level", "error"]
    os.execv(sys.executable, command)


async def send(job, argument):
    await queues[job].dispatch(argument)


async def bulk(job, arguments):
    await queues[job].dispatch_many(arguments)


async def share(job, arguments):
    """Spread the jobs over the queues of `job`: its last word is their number."""
    names = spread[: int(job.rpartition("-")[2])]
    for number, name in enumerate(names):
        await queues[name].dispatch_many(arguments[number :: len(names)])


@cache
def sync_client():
    return SyncClient(kit.URL)


def sync(job, arguments):
    sync_client().queue(job).dispatch_many(arguments)


async def schedule(job, arguments, at):
    await queues[job].dispatch_many([Dispatch(argument, run_at=at) for argument in arguments])


if __name__ == "__main__":
    kit.main(
        worker=worker, send=send, bulk=bulk, schedule=schedule, connect=client.connect, sync=sync,
        share=share,
    )  # fmt: skip
