"""Jobs that are over in a moment come by the hundred; should the next ones not be, the worker takes
no more than it has room for.
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
    """One that is over at once; or waits, when it `waits`, until it is let go."""

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
    """How many jobs came with each."""

    def whole(self) -> None:
        """Called when one has as many as there is room for, before they start."""


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Answers:
    answers = Answers()
    run = AsyncStore.run

    async def note(store: AsyncStore, command: Command[Any], *more: Any) -> Any:
        answer = await run(store, command, *more)
        if isinstance(answer, Taken):
            answers.append(answer.count)
            if answer.count == CAPACITY:
                answers.whole()
        return answer

    monkeypatch.setattr(AsyncStore, "run", note)
    return answers


def _serve(queue: Queue, handler: Handler, **options: Any) -> None:
    @queue.handler(timeout=None, **options)
    async def handle(data: Any, job: Job) -> None:
        await handler(job)


@pytest.mark.parametrize("options", [{"size": 1}, {}], ids=["of size 1", "without a size"])
async def test_swift_jobs_come_as_many_at_a_time_as_there_is_room_for(
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


async def test_those_that_turn_out_to_wait_are_no_more_at_a_time_than_there_is_room_for(
    client: Client, taken: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, handler = client.queue("emails"), Handler()
    _serve(queue, handler, size=1)
    await queue.dispatch_many([None] * JOBS)
    async with working(client, capacity=CAPACITY) as worker:

        def wait_from_now_on() -> None:
            (queue,) = cast("Any", worker)._worker.queues
            handler.waits |= queue.reserved_ahead > CAPACITY // 3  # another is on its way

        monkeypatch.setattr(taken, "whole", wait_from_now_on)

        async def the_others_wait() -> bool:
            counts = await queue.counts()
            return handler.running == counts.active == CAPACITY and counts.due > 0

        try:
            await until(the_others_wait, "what was taken and does not fit is given back")
            held = await queue.lease(timeout=0)
            assert held is not None, "there for others"
            assert await held.complete()
        finally:
            handler.go.set()
        await until_empty(queue)
    assert handler.most == CAPACITY
    assert set(handler.started.values()) == {1}
    assert len(handler.started) == JOBS - 1
    assert handler.counts == {0}


async def test_two_swift_answers_that_come_together_are_run_one_after_the_other(
    client: Client, taken: Answers
) -> None:
    """As when the worker was held up: what is in the second has room once the first is over."""
    queue, handler = client.queue("emails"), Handler()

    @queue.handler(size=1)
    async def handle(data: bool, job: Job) -> None:
        if data:
            time.sleep(0.008)  # meanwhile both are there
        await handler(job)

    await queue.dispatch_many([n % 200 == 0 for n in range(JOBS)])
    async with working(client, capacity=CAPACITY):
        await until_empty(queue)
    assert taken.count(CAPACITY) >= 2
    assert sum(taken) == JOBS, "none was given back"
    assert set(handler.started.values()) == {1}


async def test_a_queue_of_which_some_jobs_wait_does_not_seem_swift_again_and_again(
    client: Client, taken: Answers
) -> None:
    queue = client.queue("emails")

    @queue.handler(size=1)
    async def handle(data: int) -> None:
        if data // 200 % 2:  # now these, now those
            await asyncio.sleep(0.002)

    await queue.dispatch_many(range(4 * JOBS))
    began = time.monotonic()
    async with working(client, capacity=CAPACITY):
        await until_empty(queue)
    given_back = sum(taken) - 4 * JOBS
    assert given_back <= 2 * CAPACITY * (1 + time.monotonic() - began)  # two answers a second


async def test_jobs_that_fail_come_a_third_at_a_time_however_swiftly_they_do(
    client: Client, taken: Answers
) -> None:
    """Larger portions of them were no faster, but slower."""
    queue = client.queue("emails")

    @queue.handler(size=1)
    async def handle(data: None) -> None:
        raise Failure("in a moment")

    await queue.dispatch_many([None] * JOBS)
    async with working(client, capacity=CAPACITY):
        await until_empty(queue)
    assert max(taken) == CAPACITY // 3
