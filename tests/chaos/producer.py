"""A producer: `python -m tests.chaos.producer NUMBER SEED RATE [sync]`, until it is stopped.

It writes each request to its history, sends it, and writes the answer. The answer to a call that
fails is `unclear`, unless the error says that the server refused it.
"""

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from queasy import Client, QueasyError, SyncClient, Unreachable
from queasy.errors import NotDurable
from tests.chaos.history import Cancelled, Cancelling, Dispatched, HistoryWriter, now
from tests.chaos.workload import CALL_TIMEOUT, QUEUES, Request, Workload

DURABILITY: Any = os.environ.get("CHAOS_DURABILITY", "ack")


def answer_for(error: QueasyError) -> str:
    """`unclear` if the server may have executed the call although it failed."""
    return "unclear" if isinstance(error, (Unreachable, NotDurable)) else "refused"


class Producer:
    """The part that is the same for the sync and the async client."""

    def __init__(self, workload: Workload, write: HistoryWriter, rate: float) -> None:
        self.workload = workload
        self.write = write
        self.rate = rate

    def requests(self, kind: str) -> list[Request]:
        match kind:
            case "many":
                return self.workload.many()
            case "later" | "at":
                return [self.workload.one(delay=self.workload.delay(), at=kind == "at")]
            case "hot":
                return [self.workload.hot()]
            case "long":
                return [self.workload.long()]
            case _:
                return [self.workload.one()]

    def record_answers(self, requests: Sequence[Request], answers: Sequence[str]) -> None:
        for request, answer in zip(requests, answers, strict=True):
            self.write(Dispatched(now(), request.event.n, answer))

    def pause(self, requested: int) -> float:
        """Seconds to wait after this many dispatches."""
        return self.workload.random.expovariate(self.rate / max(1, requested))


async def produce(producer: Producer, client: Client) -> None:
    queues = {name: client.queue(name) for name in QUEUES}

    async def dispatch(requests: list[Request]) -> list[str]:
        queue = queues[requests[0].queue]
        if len(requests) > 1:
            jobs = [request.dispatch for request in requests]
            return [done.status for done in await queue.dispatch_many(jobs, durability=DURABILITY)]
        one = requests[0].dispatch
        done = await queue.dispatch(
            one.data, id=one.id, run_at=one.run_at, delay=one.delay, options=one.options,
            update_data=one.update_data, update_run_at=one.update_run_at,
            update_options=one.update_options, reset_counts=one.reset_counts,
            durability=DURABILITY,
        )  # fmt: skip
        return [done.status]

    async def cancel(queue: str, id_: str, running: bool) -> bool:
        return bool(await queues[queue].cancel(id_, running=running))

    while True:
        kind = producer.workload.kind()
        # Several concurrent calls, as in a web application.
        concurrent = 1 if kind == "long" else producer.workload.random.randrange(1, 8)
        steps = [step(producer, kind, dispatch, cancel) for _ in range(concurrent)]
        requested = sum(await asyncio.gather(*steps))
        await asyncio.sleep(producer.pause(requested))


async def step(
    producer: Producer,
    kind: str,
    dispatch: Callable[[list[Request]], Awaitable[list[str]]],
    cancel: Callable[[str, str, bool], Awaitable[bool]],
) -> int:
    """Make one call. Returns the number of jobs it dispatched."""
    if kind.startswith("cancel"):
        await cancel_one(producer, kind == "cancel running", cancel)
        return 1
    requests = producer.requests(kind)
    for request in requests:
        producer.write(request.event)
    try:
        answers = await dispatch(requests)
    except QueasyError as error:
        answers = [answer_for(error)] * len(requests)
    producer.record_answers(requests, answers)
    return len(requests)


async def cancel_one(
    producer: Producer, running: bool, cancel: Callable[[str, str, bool], Awaitable[bool]]
) -> None:
    job = producer.workload.job_to_cancel()
    if job is None:
        return
    call = producer.workload.next_cancel()
    producer.write(Cancelling(now(), call, *job, running))
    try:
        answer = "yes" if await cancel(*job, running) else "no"
    except QueasyError as error:
        answer = answer_for(error)
    producer.write(Cancelled(now(), call, answer))


def produce_sync(producer: Producer, client: SyncClient) -> None:
    """The same steps, one at a time. Nothing in them waits, so one `send` runs each to its end."""
    queues = {name: client.queue(name) for name in QUEUES}

    async def dispatch(requests: list[Request]) -> list[str]:
        jobs = [request.dispatch for request in requests]
        results = queues[requests[0].queue].dispatch_many(jobs, durability=DURABILITY)
        return [done.status for done in results]

    async def cancel(queue: str, id_: str, running: bool) -> bool:
        return bool(queues[queue].cancel(id_, running=running))

    while True:
        steps = step(producer, producer.workload.kind(), dispatch, cancel)
        try:
            steps.send(None)  # type: ignore[attr-defined]
        except StopIteration as done:
            time.sleep(producer.pause(done.value))


def main(number: int, seed: str, rate: float, kind: str) -> None:
    write = HistoryWriter(Path(os.environ["CHAOS_FOLDER"]), "producer")
    long_rate, long_until = map(float, os.environ["CHAOS_LONG"].split())
    far_delay = float(os.environ["CHAOS_FAR_DELAY"])
    workload = Workload(Random(seed), number, long_rate, long_until, far_delay)
    producer = Producer(workload, write, rate)
    url, prefix = os.environ["CHAOS_URL"], os.environ["CHAOS_PREFIX"]
    if kind == "sync":
        with SyncClient(url, prefix=prefix, timeout=CALL_TIMEOUT) as client:
            produce_sync(producer, client)

    async def run() -> None:
        async with Client(url, prefix=prefix, timeout=CALL_TIMEOUT) as client:
            await produce(producer, client)

    asyncio.run(run())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4])
