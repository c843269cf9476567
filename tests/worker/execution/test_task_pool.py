"""Async handlers that share a task do not affect each other."""

import asyncio
import contextvars
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from queasy import Client, Dispatch, Job, Queue
from queasy.outcomes import Release
from queasy.store.records import Ending
from queasy.worker.execution.run import Run
from queasy.worker.execution.runs import Runs
from queasy.worker.lease_times import DEFAULT_TIMES
from queasy.worker.liveness.inflight_table import InflightTable
from tests.worker.inline import Seen, until_empty, working

CUT_OFF = DEFAULT_TIMES.cut_off

VARIABLE = contextvars.ContextVar("VARIABLE", default="unset")
NUMBERS = range(40)


def current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def run_all(client: Client, queue: Queue, seen: Seen) -> None:
    await queue.dispatch_many([Dispatch(n, id=str(n)) for n in NUMBERS])
    async with working(client):
        await seen.runs(len(NUMBERS))
        await until_empty(queue)
    assert sorted(seen.data) == list(NUMBERS)


async def test_async_handlers_that_do_not_wait_share_a_task(
    client: Client, emails: Queue, seen: Seen
) -> None:
    # Names, not tasks: the pool does not reuse a task to which a handler keeps a reference.
    tasks: set[str] = set()

    @emails.handler(size=1)
    async def handle(data: int, job: Job) -> None:
        tasks.add(current_task().get_name())
        seen.add(data, job)

    await run_all(client, emails, seen)
    assert len(tasks) < len(NUMBERS)


async def test_async_handlers_that_wait_have_a_task_each(
    client: Client, emails: Queue, seen: Seen
) -> None:
    tasks: list[Any] = []

    @emails.handler(size=1)
    async def handle(data: int, job: Job) -> None:
        tasks.append(asyncio.current_task())
        await asyncio.sleep(0)
        seen.add(data, job)

    await run_all(client, emails, seen)
    assert len(set(tasks)) == len(NUMBERS)


async def test_async_handler_that_waits_does_not_delay_the_others(
    client: Client, emails: Queue, seen: Seen
) -> None:
    all_started = asyncio.Event()

    @emails.handler(size=1)
    async def handle(data: int, job: Job) -> None:
        seen.add(data, job)
        if len(seen.jobs) == len(NUMBERS):
            all_started.set()
        await all_started.wait()

    await run_all(client, emails, seen)


async def test_context_variable_set_by_one_run_is_not_set_in_another(
    client: Client, emails: Queue, seen: Seen
) -> None:
    found: list[str] = []

    @emails.handler(size=1)
    async def handle(data: int, job: Job) -> None:
        found.append(VARIABLE.get())
        VARIABLE.set(f"by {data}")
        seen.add(data, job)

    await run_all(client, emails, seen)
    assert found == ["unset"] * len(NUMBERS)


async def test_handler_that_cancels_its_own_task_does_not_end_other_runs(
    client: Client, emails: Queue, seen: Seen
) -> None:
    @emails.handler(size=1)
    async def handle(data: int, job: Job) -> None:
        seen.add(data, job)
        if data % 5 == 0:
            # It does not wait afterwards: in a shared task the next run that waits would be hit.
            current_task().cancel()
        else:
            await asyncio.sleep(0)

    await run_all(client, emails, seen)
    assert all(not job.retry_count for job in seen.jobs)


async def leave_a_timer() -> None:
    asyncio.get_running_loop().call_later(0.005, current_task().cancel)


async def leave_a_generator(left: list[object] = []) -> None:  # noqa: B006 - keeps it alive
    async def generate() -> AsyncGenerator[int]:
        async with asyncio.timeout(0.005):
            yield 1

    generator = generate()
    left.append(generator)
    await anext(generator)


async def cancel_and_uncancel() -> None:
    task = current_task()
    task.cancel()
    task.uncancel()  # before Python 3.13 the cancellation is still delivered


@pytest.mark.parametrize("leave", [leave_a_timer, leave_a_generator, cancel_and_uncancel])
async def test_cancellation_left_by_an_ended_run_does_not_hit_another_run(
    client: Client, emails: Queue, seen: Seen, leave: Callable[[], Awaitable[None]]
) -> None:
    @emails.handler(size=1)
    async def handle(data: int, job: Job) -> None:
        seen.add(data, job)
        if data % 2:
            await asyncio.sleep(0.05)
        else:
            await leave()

    await run_all(client, emails, seen)
    assert all(not job.retry_count for job in seen.jobs)


@pytest.mark.parametrize("size", [1, 50], ids=["many", "few"])
async def test_async_handlers_start_in_the_order_of_dispatch(
    client: Client, emails: Queue, seen: Seen, size: int
) -> None:
    @emails.handler(size=size)
    async def handle(data: int, job: Job) -> None:
        seen.add(data, job)

    await run_all(client, emails, seen)
    assert seen.data == list(NUMBERS)


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize("confirmed", [False, True], ids=["unconfirmed", "confirmed"])
async def test_job_past_the_cut_off_starts_only_if_its_lease_was_confirmed_since(
    confirmed: bool, is_async: bool
) -> None:
    """As after a freeze between dequeue and start, when another worker may have the job."""
    now = time.monotonic()
    table, listener = InflightTable(1, 1), Listener()
    table.set_requested_at(0, now - CUT_OFF - 1)
    if confirmed:
        table.set_confirmed_at(0, now)
    runs = Runs(table, 1, listener)
    handler = SimpleNamespace(options=SimpleNamespace(size=None))
    service: Any = SimpleNamespace(function=SimpleNamespace(is_async=is_async), handler=handler)
    runs.start(0, service, [Job(id="a", queue="q", state="active", payload=b"1", token=7)], 1)
    runs.go()
    await listener.ended.wait()
    (ending,) = listener.endings
    assert (ending.outcome == Release()) is not confirmed
    assert not table.run_count


class Listener:
    def __init__(self) -> None:
        self.ended, self.endings = asyncio.Event(), list[Ending]()

    def run_ended(self, run: Run, ending: Ending) -> None:
        self.endings.append(ending)
        self.ended.set()

    def thread_refused(self, run: Run) -> None: ...

    def crowded_out(self, run: Run) -> None: ...

    def job_refused(self, run: Run) -> None: ...

    def room_changed(self) -> None: ...
