"""Prefetch: a worker takes short jobs in large portions. If the next jobs turn out to be long, it
runs no more of them than it has room for.
"""

import asyncio
import time
from collections import Counter
from typing import Any, cast

import pytest

from queasy import Client, Failure, Job, Queue
from queasy.store.command import Command
from queasy.store.records import Taken
from queasy.store.store import AsyncStore
from tests.worker.inline import until, until_empty, working

CAPACITY, JOBS = 90, 6000


class Handler:
    """Ends at once, or, while `waits` is set, only after `go` is set."""

    def __init__(self) -> None:
        self.waits = False
        self.started: Counter[str] = Counter()
        self.counts: set[int] = set()
        self.running = self.most = 0
        self.go = asyncio.Event()

    async def __call__(self, job: Job) -> None:
        self.started[job.id] += 1
        self.counts |= {job.stall_count, job.retry_count, job.timeout_count}
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if self.waits:
                await self.go.wait()
        finally:
            self.running -= 1


class Answers(list[int]):
    """How many jobs came with each answer to a dequeue."""

    def on_full(self) -> None:
        """Called for an answer that fills the whole capacity, before its jobs start."""


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Answers:
    answers = Answers()
    run = AsyncStore.run

    async def note(store: AsyncStore, command: Command[Any], *more: Any) -> Any:
        answer = await run(store, command, *more)
        if isinstance(answer, Taken):
            answers.append(answer.count)
            if answer.count == CAPACITY:
                answers.on_full()
        return answer

    monkeypatch.setattr(AsyncStore, "run", note)
    return answers


def _serve(queue: Queue, handler: Handler, **options: Any) -> None:
    @queue.handler(timeout=None, **options)
    async def handle(data: Any, job: Job) -> None:
        await handler(job)


@pytest.mark.parametrize("options", [{"size": 1}, {}], ids=["of size 1", "without a size"])
async def test_short_jobs_are_taken_in_portions_of_the_whole_capacity(
    client: Client, taken: Answers, options: dict[str, Any]
) -> None:
    queue, handler = client.queue("emails"), Handler()
    _serve(queue, handler, **options)
    await queue.dispatch_many([None] * JOBS)
    async with working(client, capacity=CAPACITY):
        await until_empty(queue)
    assert max(taken) == CAPACITY, taken
    assert handler.most == 1
    assert set(handler.started.values()) == {1}


async def test_prefetched_jobs_that_turn_out_to_be_long_never_exceed_the_capacity(
    client: Client, taken: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, handler = client.queue("emails"), Handler()
    _serve(queue, handler, size=1)
    await queue.dispatch_many([None] * JOBS)
    async with working(client, capacity=CAPACITY) as worker:

        def wait_from_now_on() -> None:
            (queue,) = cast("Any", worker)._worker.queues
            handler.waits |= queue.reserved_ahead > CAPACITY // 3  # another answer is on its way

        monkeypatch.setattr(taken, "on_full", wait_from_now_on)

        async def rest_is_released() -> bool:
            counts = await queue.counts()
            return handler.running == counts.active == CAPACITY and counts.due > 0

        try:
            await until(rest_is_released, "prefetched jobs that do not fit are released")
            held = await queue.lease(timeout=0)
            assert held is not None, "another client can take a released job"
            assert await held.complete()
        finally:
            handler.go.set()
        await until_empty(queue)
    assert handler.most == CAPACITY
    assert set(handler.started.values()) == {1}
    assert len(handler.started) == JOBS - 1
    assert handler.counts == {0}


async def test_two_portions_that_arrive_together_run_one_after_the_other(
    client: Client, taken: Answers
) -> None:
    """As after a blocked event loop. The second portion has room once the first has ended."""
    queue, handler = client.queue("emails"), Handler()

    @queue.handler(size=1)
    async def handle(data: bool, job: Job) -> None:
        if data:
            time.sleep(0.008)  # meanwhile both answers arrive
        await handler(job)

    await queue.dispatch_many([n % 200 == 0 for n in range(JOBS)])
    async with working(client, capacity=CAPACITY):
        await until_empty(queue)
    assert taken.count(CAPACITY) >= 2
    assert sum(taken) == JOBS, "none was released"
    assert set(handler.started.values()) == {1}


async def test_queue_of_short_and_long_jobs_does_not_release_jobs_again_and_again(
    client: Client, taken: Answers
) -> None:
    queue = client.queue("emails")

    @queue.handler(size=1)
    async def handle(data: int) -> None:
        if data // 200 % 2:  # 200 short jobs, then 200 long ones
            await asyncio.sleep(0.002)

    await queue.dispatch_many(range(4 * JOBS))
    began = time.monotonic()
    async with working(client, capacity=CAPACITY):
        await until_empty(queue)
    released = sum(taken) - 4 * JOBS
    assert released <= 2 * CAPACITY * (1 + time.monotonic() - began)  # two answers a second


async def test_jobs_that_fail_are_taken_a_third_at_a_time_however_short_they_are(
    client: Client, taken: Answers
) -> None:
    """Larger portions of failing jobs were slower, not faster."""
    queue = client.queue("emails")

    @queue.handler(size=1)
    async def handle(data: None) -> None:
        raise Failure("in a moment")

    await queue.dispatch_many([None] * JOBS)
    async with working(client, capacity=CAPACITY):
        await until_empty(queue)
    assert max(taken) == CAPACITY // 3
