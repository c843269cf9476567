"""A producer: `python -m tests.chaos.producer NUMBER SEED RATE [sync]`, until it is ended.

It says what it is about to ask, asks, and says what it was told. Of a call that fails it knows
nothing, unless the error says that the server refused it.
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
from tests.chaos.history import Cancelled, Cancelling, Dispatched, Pen, now
from tests.chaos.load import CALL_TIMEOUT, QUEUES, Ask, Load

DURABILITY: Any = os.environ.get("CHAOS_DURABILITY", "ack")


def word_for(error: QueasyError) -> str:
    """Whether a call that failed may have been carried out, all the same."""
    return "unclear" if isinstance(error, (Unreachable, NotDurable)) else "refused"


class Producer:
    """One kind of client or the other; what it asks is the same."""

    def __init__(self, load: Load, pen: Pen, rate: float) -> None:
        self.load = load
        self.pen = pen
        self.rate = rate

    def asks(self, kind: str) -> list[Ask]:
        match kind:
            case "many":
                return self.load.many()
            case "later" | "at":
                return [self.load.one(delay=self.load.delay(), at=kind == "at")]
            case "hot":
                return [self.load.hot()]
            case "long":
                return [self.load.long()]
            case _:
                return [self.load.one()]

    def told(self, asks: Sequence[Ask], words: Sequence[str]) -> None:
        for ask, word in zip(asks, words, strict=True):
            self.pen(Dispatched(now(), ask.line.n, word))

    def pause(self, asked: int) -> float:
        return self.load.random.expovariate(self.rate / max(1, asked))


async def produce(producer: Producer, client: Client) -> None:
    queues = {name: client.queue(name) for name in QUEUES}

    async def dispatch(asks: list[Ask]) -> list[str]:
        queue = queues[asks[0].queue]
        if len(asks) > 1:
            jobs = [ask.dispatch for ask in asks]
            return [done.status for done in await queue.dispatch_many(jobs, durability=DURABILITY)]
        one = asks[0].dispatch
        done = await queue.dispatch(
            one.data, id=one.id, run_at=one.run_at, delay=one.delay, options=one.options,
            update_data=one.update_data, update_run_at=one.update_run_at,
            update_options=one.update_options, reset_counts=one.reset_counts,
            durability=DURABILITY,
        )  # fmt: skip
        return [done.status]

    async def cancel(queue: str, id_: str, running: bool) -> bool:
        return await queues[queue].cancel(id_, running=running)

    while True:
        kind = producer.load.kind()
        # At once, as a web application does.
        several = 1 if kind == "long" else producer.load.random.randrange(1, 8)
        steps = [step(producer, kind, dispatch, cancel) for _ in range(several)]
        asked = sum(await asyncio.gather(*steps))
        await asyncio.sleep(producer.pause(asked))


async def step(
    producer: Producer,
    kind: str,
    dispatch: Callable[[list[Ask]], Awaitable[list[str]]],
    cancel: Callable[[str, str, bool], Awaitable[bool]],
) -> int:
    """One call; how many jobs it dispatched."""
    if kind.startswith("cancel"):
        await cancel_one(producer, kind == "cancel running", cancel)
        return 1
    asks = producer.asks(kind)
    for ask in asks:
        producer.pen(ask.line)
    try:
        words = await dispatch(asks)
    except QueasyError as error:
        words = [word_for(error)] * len(asks)
    producer.told(asks, words)
    return len(asks)


async def cancel_one(
    producer: Producer, running: bool, cancel: Callable[[str, str, bool], Awaitable[bool]]
) -> None:
    victim = producer.load.victim()
    if victim is None:
        return
    c = producer.load.next_cancel()
    producer.pen(Cancelling(now(), c, *victim, running))
    try:
        word = "yes" if await cancel(*victim, running) else "no"
    except QueasyError as error:
        word = word_for(error)
    producer.pen(Cancelled(now(), c, word))


def produce_sync(producer: Producer, client: SyncClient) -> None:
    """The same steps, one at a time; what they await is there at once."""
    queues = {name: client.queue(name) for name in QUEUES}

    async def dispatch(asks: list[Ask]) -> list[str]:
        jobs = [ask.dispatch for ask in asks]
        results = queues[asks[0].queue].dispatch_many(jobs, durability=DURABILITY)
        return [done.status for done in results]

    async def cancel(queue: str, id_: str, running: bool) -> bool:
        return queues[queue].cancel(id_, running=running)

    while True:
        steps = step(producer, producer.load.kind(), dispatch, cancel)
        try:
            steps.send(None)  # type: ignore[attr-defined]
        except StopIteration as done:
            time.sleep(producer.pause(done.value))


def main(number: int, seed: str, rate: float, kind: str) -> None:
    pen = Pen(Path(os.environ["CHAOS_FOLDER"]), "producer")
    long_rate, long_until = map(float, os.environ["CHAOS_LONG"].split())
    producer = Producer(Load(Random(seed), number, long_rate, long_until), pen, rate)
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
