"""Prefetch: a worker dequeues short jobs in large batches, and releases those that do not fit."""

import asyncio
import time
from collections import Counter
from typing import Any, cast

import pytest

from queasy import Client, Failure, Job, Queue
from queasy.store.command import Command
from queasy.store.records import Taken
from queasy.store.store import AsyncStore
from queasy.worker.execution import runs
from tests.worker.inline import until, until_empty, working

CAPACITY, JOBS = 90, 6000


class Handler:
    """Ends at once or, if `blocks` is set, when `may_end` is set."""

    def __init__(self) -> None:
        self.blocks = False
        self.started: Counter[str] = Counter()
        self.attempt_counts: set[int] = set()
        self.running = self.max_running = 0
        self.may_end = asyncio.Event()

    async def __call__(self, job: Job) -> None:
        self.started[job.id] += 1
        self.attempt_counts |= {job.stall_count, job.retry_count, job.timeout_count}
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        try:
            if self.blocks:
                await self.may_end.wait()
        finally:
            self.running -= 1


class Batches(list[int]):
    """How many jobs each dequeue returned."""

    def on_full_batch(self) -> None:
        """Called when a batch fills the capacity, before its jobs start."""


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> Batches:
    batches = Batches()
    run = AsyncStore.run

    async def record_batch(store: AsyncStore, command: Command[Any], *more: Any) -> Any:
        answer = await run(store, command, *more)
        if isinstance(answer, Taken):
            batches.append(answer.count)
            if answer.count == CAPACITY:
                batches.on_full_batch()
        return answer

    monkeypatch.setattr(AsyncStore, "run", record_batch)
    return batches


def _serve(queue: Queue, handler: Handler, **options: Any) -> None:
    @queue.handler(timeout="unlimited", **options)
    async def handle(data: Any, job: Job) -> None:
        await handler(job)


@pytest.mark.parametrize("options", [{"size": 1}, {}], ids=["size 1", "no size"])
async def test_short_jobs_are_dequeued_in_batches_as_large_as_the_capacity(
    client: Client, batches: Batches, options: dict[str, Any]
) -> None:
    queue, handler = client.queue("emails"), Handler()
    _serve(queue, handler, **options)
    await queue.dispatch_many([None] * JOBS)
    async with working(client, capacity=CAPACITY):
        await until_empty(queue)
    assert max(batches) == CAPACITY, batches
    assert handler.max_running == 1
    assert set(handler.started.values()) == {1}


async def test_prefetched_jobs_that_do_not_fit_are_released(
    client: Client, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, handler = client.queue("emails"), Handler()
    _serve(queue, handler, size=1)
    await queue.dispatch_many([None] * JOBS)
    async with working(client, capacity=CAPACITY) as worker:

        def block_once_a_prefetch_is_in_flight() -> None:
            (state,) = cast("Any", worker)._worker.queues
            handler.blocks |= state.reserved_ahead > CAPACITY // 3

        monkeypatch.setattr(batches, "on_full_batch", block_once_a_prefetch_is_in_flight)

        async def only_the_capacity_is_active() -> bool:
            counts = await queue.counts()
            return handler.running == counts.active == CAPACITY and counts.due > 0

        try:
            await until(only_the_capacity_is_active, "the jobs that do not fit are released")
            lease = await queue.lease(timeout=0)
            assert lease is not None, "expected a released job to be available to other clients"
            assert await lease.complete()
        finally:
            handler.may_end.set()
        await until_empty(queue)
    assert handler.max_running == CAPACITY
    assert set(handler.started.values()) == {1}
    assert len(handler.started) == JOBS - 1
    assert handler.attempt_counts == {0}


async def test_two_prefetched_batches_that_arrive_together_run_one_after_the_other(
    client: Client, batches: Batches
) -> None:
    """This happens after the loop was blocked. The second batch fits once the first has ended."""
    queue, handler = client.queue("emails"), Handler()

    @queue.handler(size=1)
    async def handle(data: bool, job: Job) -> None:
        if data:
            time.sleep(0.008)  # long enough for both batches to arrive
        await handler(job)

    await queue.dispatch_many([n % 200 == 0 for n in range(JOBS)])
    async with working(client, capacity=CAPACITY):
        await until_empty(queue)
    assert batches.count(CAPACITY) >= 2
    assert sum(batches) == JOBS, "expected no job to be released and dequeued again"
    assert set(handler.started.values()) == {1}


async def test_queue_with_some_jobs_that_wait_releases_at_most_two_batches_a_second(
    client: Client, batches: Batches
) -> None:
    queue = client.queue("emails")

    @queue.handler(size=1)
    async def handle(data: int) -> None:
        if data // 200 % 2:  # 200 that end at once, then 200 that wait
            await asyncio.sleep(0.002)

    await queue.dispatch_many(range(4 * JOBS))
    began = time.monotonic()
    async with working(client, capacity=CAPACITY):
        await until_empty(queue)
    released = sum(batches) - 4 * JOBS
    assert released <= 2 * CAPACITY * (1 + time.monotonic() - began)


async def test_short_jobs_that_fail_are_dequeued_in_batches_as_large_as_the_capacity(
    client: Client, batches: Batches
) -> None:
    queue = client.queue("emails")

    @queue.handler(size=1)
    async def handle(data: None) -> None:
        raise Failure("at once")

    await queue.dispatch_many([None] * JOBS)
    async with working(client, capacity=CAPACITY):
        await until_empty(queue)
    assert max(batches) == CAPACITY


# Several queues


async def test_short_jobs_of_many_queues_are_dequeued_in_batches_as_large_as_the_capacity(
    client: Client, batches: Batches
) -> None:
    queues = [client.queue(f"emails-{number}") for number in range(8)]
    handler = Handler()
    for queue in queues:
        _serve(queue, handler, size=1)
        await queue.dispatch_many([None] * (JOBS // 2))
    async with working(client, capacity=CAPACITY):
        for queue in queues:
            await until_empty(queue)
    assert batches.count(CAPACITY) * CAPACITY > sum(batches) / 2
    assert handler.max_running == 1
    assert len(handler.started) == handler.started.total() == JOBS // 2 * len(queues)


async def test_queue_with_many_short_jobs_does_not_keep_others_from_their_turns(
    client: Client,
) -> None:
    left = Counter({"a": 4 * JOBS, "b": 4 * JOBS, "c": 4 * JOBS})
    left_when_first_was_over: list[int] = []
    for name in left:

        async def handle(data: None, job: Job) -> None:
            left[job.queue] -= 1
            if not left[job.queue]:
                left_when_first_was_over.extend(left.values())

        client.queue(name).handler(handle)
        await client.queue(name).dispatch_many([None] * left[name])
    async with working(client, capacity=CAPACITY):
        for name in left:
            await until_empty(client.queue(name))
    assert max(left_when_first_was_over[:3]) < 3 * JOBS


async def test_jobs_that_wait_keep_their_room_next_to_a_queue_with_short_jobs(
    client: Client,
) -> None:
    """Long jobs begin beside short ones, and never are more jobs in the handlers than fit."""
    short, long = client.queue("short"), client.queue("long")
    quick, slow = Handler(), Handler()
    slow.blocks = True
    _serve(short, quick, size=1)
    _serve(long, slow, size=1)
    await short.dispatch_many([None] * 4 * JOBS)
    await long.dispatch_many([None] * 2 * CAPACITY)

    async def long_jobs_run() -> bool:
        return slow.running >= CAPACITY // 3

    async with working(client, capacity=CAPACITY):
        await until(long_jobs_run, "long jobs begin")
        slow.may_end.set()
        await until_empty(short)
        await until_empty(long)
    assert slow.max_running + quick.max_running <= CAPACITY + 1
    assert set(slow.started.values()) == {1}


# Pace


async def test_pace_rises_with_each_portion_while_all_handlers_wait(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this it takes four ticks until a hundred run at once."""
    monkeypatch.setattr(runs, "PACE_TICK", 1000.0)  # no tick raises it
    queue, running, many_run = client.queue("emails"), 0, asyncio.Event()

    @queue.handler
    async def handle(number: int) -> None:
        nonlocal running
        running += 1
        if running > 60:
            many_run.set()
        if number:
            await asyncio.sleep(0.005 + 0.001 * (number % 7))
        else:
            await many_run.wait()  # so that the worker is never idle
        running -= 1

    await queue.dispatch_many(range(2000))
    async with working(client, capacity=100):
        await until_empty(queue)
