"""The job that runs here, and what a run that dispatches its own id does to its counts."""

import asyncio
import threading
from typing import Any

import pytest

from queasy import Client, Dispatch, Failure, Job, Queue, Retry, SyncClient, current_job
from tests.servers import Server
from tests.worker.inline import FAR, PATIENCE, Seen, until, until_empty, until_state, working


async def dispatch(queue: Queue, sync: SyncClient, id_: str, way: str, **more: Any) -> None:
    """Dispatches an id from inside a run, in one of the ways there are."""
    match way:
        case "async":
            await queue.dispatch("again", id=id_, **more)
        case "many":
            await queue.dispatch_many(["other", Dispatch("again", id=id_, **more)])
        case "generator":
            await queue.dispatch_many(Dispatch("again", id=one, **more) for one in (id_,))
        case "task":
            await asyncio.create_task(queue.dispatch("again", id=id_, **more))
        case "to_thread":
            put = sync.queue(queue.name).dispatch
            await asyncio.to_thread(put, "again", id=id_, **more)
        case _:
            sync.queue(queue.name).dispatch("again", id=id_, **more)


ASYNC_WAYS = ("async", "many", "generator", "task", "to_thread")


@pytest.fixture
def sync(server: Server, prefix: str) -> Any:
    with SyncClient(server.url, prefix=prefix) as connected:
        yield connected


@pytest.mark.parametrize("way", [*ASYNC_WAYS, "plain"])
async def test_run_that_dispatches_its_own_id_is_given_up_after_its_retries(
    client: Client, emails: Queue, sync: SyncClient, seen: Seen, way: str
) -> None:
    loop = asyncio.get_running_loop()
    counts: list[int] = []

    def note(job: Job) -> bool:
        """Whether the job is still to fail: the fourth run is of the dispatch held by the third."""
        counts.append(job.retry_count)
        loop.call_soon_threadsafe(seen.add, job.id, job)
        return len(counts) < 4

    if way == "plain":

        @emails.handler(max_retries=2, min_backoff=FAR, max_backoff=FAR)
        def plain(data: Any, job: Job) -> None:
            if note(job):
                sync.queue("emails").dispatch("again", id=job.id)
                raise OSError("no connection")
    else:

        @emails.handler(max_retries=2, min_backoff=FAR, max_backoff=FAR)
        async def handle(data: Any, job: Job) -> None:
            if data != "other" and note(job):
                await dispatch(emails, sync, job.id, way)
                raise OSError("no connection")

    given_up: list[tuple[str, int]] = []

    @emails.fail_handler
    async def report(data: Any, job: Job) -> None:
        given_up.append((job.id, job.retry_count))

    await emails.dispatch("first", id="own")
    async with working(client):
        await seen.runs(4)
        await until_empty(emails)
        await until_empty(emails.fail_queue)
    assert counts == [0, 1, 2, 0]
    assert given_up == [("own", 2)]


@pytest.mark.parametrize("way", ["async", "many"])
async def test_run_may_ask_to_reset_its_own_counts(
    client: Client, emails: Queue, sync: SyncClient, seen: Seen, way: str
) -> None:
    @emails.handler(min_backoff=FAR, max_backoff=FAR)
    async def handle(data: Any, job: Job) -> object:
        if data == "other":
            return None
        seen.add(data, job)
        if len(seen.jobs) < 3:
            await dispatch(emails, sync, job.id, way, reset_counts=True)
            return Retry()
        return None

    await emails.dispatch("first", id="own")
    async with working(client):
        await seen.runs(3)
        await until_empty(emails)
    assert [job.retry_count for job in seen.jobs] == [0, 0, 0]


async def retried_job(queue: Queue) -> None:
    """A job 'own' that waits to be retried."""
    await queue.dispatch("waits", id="own")
    lease = await queue.lease(timeout=5)
    assert lease is not None
    await lease.retry(after=FAR)


async def test_dispatch_of_the_same_id_into_another_queue_resets_its_counts(
    client: Client, emails: Queue, server: Server, prefix: str
) -> None:
    @emails.handler
    async def handle(data: Any, job: Job) -> None:
        for queue in others:
            await queue.dispatch("new", id=job.id, delay=FAR)

    async with Client(server.url, prefix=f"{prefix}-2") as elsewhere:
        others = (client.queue("other"), elsewhere.queue("emails"))
        for queue in others:
            await retried_job(queue)
        await emails.dispatch(1, id="own")
        async with working(client, queues=["emails"]):
            await until_empty(emails)
        for queue in others:
            job = await queue.get("own")
            assert job is not None
            assert (job.data, job.retry_count) == ("new", 0)
        await others[1].destroy()


async def test_dispatch_of_another_id_resets_its_counts(client: Client, emails: Queue) -> None:
    await retried_job(emails)

    @emails.handler
    async def handle(data: Any, job: Job) -> None:
        await emails.dispatch("new", id="own", delay=FAR)

    await emails.dispatch(1, id="another")
    async with working(client):

        async def is_updated() -> bool:
            job = await emails.get("own")
            return job is not None and job.data == "new"

        await until(is_updated, "own is updated")
    job = await emails.get("own")
    assert job is not None
    assert job.retry_count == 0
    await emails.cancel("own")


async def test_fail_handler_starts_the_job_anew(client: Client, emails: Queue) -> None:
    retried = asyncio.Event()

    @emails.handler
    async def handle(data: Any) -> object:
        return Failure("no") if data == "first" else Retry(after=FAR)

    @emails.fail_handler
    async def report(data: Any, job: Job) -> None:
        assert current_job() == job
        async with asyncio.timeout(PATIENCE):
            await retried.wait()
        await emails.dispatch("third", id=job.id, delay=FAR)

    await emails.dispatch("first", id="own")
    async with working(client):
        await until_state(emails, "own", "failed")
        await emails.dispatch("second", id="own")
        job = await until_state(emails, "own", "scheduled")
        assert job.retry_count == 1
        retried.set()
        await until_empty(emails.fail_queue)
        job = await until_state(emails, "own", "scheduled")
    assert (job.data, job.retry_count) == ("third", 0)
    await emails.cancel("own")


# The current job


async def test_current_job_is_the_one_that_runs_here(
    client: Client, emails: Queue, seen: Seen
) -> None:
    found: list[tuple[str | None, ...]] = []

    def id_here() -> str | None:
        job = current_job()
        return None if job is None else job.id

    async def task() -> str | None:
        await asyncio.sleep(0)
        return id_here()

    @emails.handler(size=1)
    async def handle(data: int, job: Job) -> None:
        assert current_job() is job
        if data % 2:
            here = await asyncio.create_task(task()), await asyncio.to_thread(id_here), id_here()
        else:
            here = (id_here(),)
        found.append((job.id, *here))
        seen.add(data, job)
        if data % 3 == 0:
            raise Failure("and after an exception, too")

    await emails.dispatch_many(range(60))
    async with working(client):
        await seen.runs(60)
        await until_empty(emails)
    assert [set(here) for here in found] == [{here[0]} for here in found]
    assert current_job() is None


async def test_plain_function_has_the_current_job_and_its_thread_has_none_afterwards(
    client: Client, emails: Queue, seen: Seen
) -> None:
    loop = asyncio.get_running_loop()
    found: list[bool] = []
    own_thread: list[Job | None] = []

    @emails.handler
    def handle(data: int, job: Job) -> None:
        found.append(current_job() is job)
        thread = threading.Thread(target=lambda: own_thread.append(current_job()))
        thread.start()
        thread.join()
        loop.call_soon_threadsafe(seen.add, data, job)
        if data % 2:
            raise Failure("and after an exception, too")

    await emails.dispatch_many(range(20))
    async with working(client):
        await seen.runs(20)
        await until_empty(emails)
    assert found == [True] * 20
    assert own_thread == [None] * 20  # threads have a context of their own: docs/reference/api.md


async def test_handlers_that_raise_leave_no_job_and_share_a_task(
    client: Client, emails: Queue, seen: Seen
) -> None:
    tasks: set[str] = set()

    @emails.handler(size=1)
    async def handle(data: int, job: Job) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task.get_name())
        seen.add(data, job)
        raise Failure("no")

    await emails.dispatch_many(range(40))
    async with working(client):
        await seen.runs(40)
        await until_empty(emails)
    assert len(tasks) < 40
