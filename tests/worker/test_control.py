"""Orders to running workers, the list of workers, and stopping."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import pytest

from queasy import (
    Client,
    InvalidOption,
    Job,
    NotReady,
    Queue,
    SyncClient,
)
from queasy.cli import _parser
from queasy.worker.control import Control, Order
from queasy.worker.intake.subscription import Subscription
from queasy.worker.plan import Place
from tests.servers import Server, wait_until
from tests.worker.fleet import APP, ROOT, Fleet
from tests.worker.inline import PATIENCE, Seen, until, until_empty, working

# Serve and unserve


async def test_worker_stops_and_resumes_serving_a_queue(
    client: Client, emails: Queue, seen: Seen
) -> None:
    @emails.handler
    async def handle(data: Any, job: Job) -> None:
        seen.add(data, job)

    async with working(client) as worker:
        await emails.dispatch(1)
        await seen.runs(1)
        await worker.unserve("emails")
        assert await emails.clients() == []
        await emails.dispatch(2)
        assert (await emails.counts()).due == 1
        await worker.serve("emails")
        await seen.runs(2)
        await until_empty(emails)
    assert seen.data == [1, 2]


async def test_order_to_serve_during_an_outage_takes_effect_when_the_server_is_back(
    client: Client, emails: Queue, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: the order was dropped, and the queue stayed unserved."""
    join, failed = Subscription.join, False

    async def fail_once(subscription: Subscription, *given: Any) -> None:
        nonlocal failed
        if not failed:
            failed = True
            raise NotReady("the server is loading its data")
        await join(subscription, *given)

    @emails.handler
    async def handle(data: Any, job: Job) -> None:
        seen.add(data, job)

    async with working(client) as worker:
        await until(emails.clients, "the worker serves")
        await worker.unserve("emails")
        monkeypatch.setattr(Subscription, "join", fail_once)
        with pytest.raises(NotReady):
            await worker.serve("emails")
        await emails.dispatch(1)
        await seen.runs(1)
        await until_empty(emails)


async def test_order_to_leave_a_queue_that_is_being_joined_takes_effect(
    client: Client, emails: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: the worker left the queue first and joined it afterwards, and so went on serving it."""
    join, joining, may_join = Subscription.join, asyncio.Event(), asyncio.Event()

    async def join_later(subscription: Subscription, *given: Any) -> None:
        joining.set()
        await may_join.wait()
        await join(subscription, *given)

    @emails.handler
    async def handle(data: Any) -> None: ...

    monkeypatch.setattr(Subscription, "join", join_later)
    async with working(client) as worker, asyncio.TaskGroup() as group:
        await joining.wait()
        leaving = group.create_task(worker.unserve("emails"))
        await asyncio.sleep(0)
        may_join.set()
        await leaving
        await until(lambda: _ready(worker), "the worker has started")
        assert not await emails.clients()


async def _ready(worker: Any) -> bool:
    return worker.ready


async def test_order_to_serve_that_fails_again_and_again_is_retried_by_one_task(
    client: Client, emails: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: each failed order started a task that called the server twice a second for ever."""

    async def fail(subscription: Subscription, *given: Any) -> None:
        raise NotReady("the server is loading its data")

    @emails.handler
    async def handle(data: Any) -> None: ...

    async with working(client) as worker:
        await until(emails.clients, "the worker serves")
        await worker.unserve("emails")
        before = len(asyncio.all_tasks())
        monkeypatch.setattr(Subscription, "join", fail)
        for _ in range(20):
            with pytest.raises(NotReady):
                await worker.serve("emails")
        assert len(asyncio.all_tasks()) <= before + 1


@pytest.mark.parametrize("release", [False, True], ids=["may end", "released"])
async def test_jobs_of_an_unserved_queue_end_or_are_released(
    client: Client, emails: Queue, seen: Seen, release: bool
) -> None:
    go_on = asyncio.Event()

    @emails.handler
    async def handle(data: Any, job: Job) -> None:
        seen.add(data, job)
        await go_on.wait()

    await emails.dispatch(1, id="job")
    async with working(client) as worker:
        await seen.runs(1)
        leaving = asyncio.create_task(worker.unserve("emails", release=release))
        if not release:
            await asyncio.wait([leaving], timeout=0.1)
            assert not leaving.done()
            go_on.set()
        await leaving
        job = await emails.get("job")
        if not release:
            assert job is None
            return
        assert job is not None
        assert (job.state, job.retry_count, job.stall_count) == ("due", 0, 0)
        go_on.set()
        await worker.serve("emails")
        await seen.runs(2)
        await until_empty(emails)
    assert [job.stall_count for job in seen.jobs] == [0, 0]


async def test_order_reaches_running_workers_by_queue_and_by_group(
    client: Client, emails: Queue, seen: Seen
) -> None:
    @emails.handler
    async def handle(data: Any, job: Job) -> None:
        seen.add(data, job)

    async def serving() -> bool:
        return bool(await emails.clients())

    async with working(client):
        await until(serving, "it works")
        (info,) = await client.workers()

        async def ordered() -> bool:
            return await client.tell_workers("unserve", "emails") == 1

        await until(ordered, "it has subscribed, which comes after it is registered")

        async def left() -> bool:
            return not await serving()

        await until(left, "it has left the queue")
        await emails.dispatch(1)
        assert (await emails.counts()).due == 1

        async def ordered_by_group() -> bool:
            return await client.tell_workers("serve", "emails", workers=[info.group]) == 1

        await until(ordered_by_group, "it receives orders by its group, too")
        await seen.runs(1)
        await until_empty(emails)
    assert await client.tell_workers("serve", "emails") == 0


async def test_command_line_orders_running_workers(
    server: Server, prefix: str, client: Client, seen: Seen, tmp_path: Any
) -> None:
    plain = client.queue("plain")  # tests.worker.app, which the command loads, has this queue

    @plain.handler
    async def handle(data: Any, job: Job) -> None:
        seen.add(data, job)

    def queasy(*words: str) -> "subprocess.CompletedProcess[str]":
        environment = {
            **os.environ,
            "TEST_URL": server.url,
            "TEST_PREFIX": prefix,
            "TEST_JOURNAL": str(tmp_path / "journal"),
        }
        return subprocess.run(
            [sys.executable, "-m", "queasy", *words],
            cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip

    async def left() -> bool:
        return not await plain.clients()

    async with working(client):
        await until(plain.clients, "it works")
        answer = await asyncio.to_thread(queasy, "unserve", APP, "plain")
        assert (answer.returncode, answer.stdout) == (0, "received by 1 worker\n"), answer.stderr
        await until(left, "it has left the queue")
        await plain.dispatch(1)
        assert (await plain.counts()).due == 1
        (info,) = await client.workers() or [None]
        # A worker without queues is known only by its group.
        assert info is None or info.queues == ()
        listed = await asyncio.to_thread(queasy, "workers", APP)
        assert (listed.returncode, listed.stderr) == (0, "")
        says = (
            r"no worker serves plain, .*: start one with .*, or bring one back .*`queasy serve`\n"
        )
        assert re.fullmatch(says, listed.stdout)
    answer = await asyncio.to_thread(queasy, "serve", APP, "plain")
    assert answer.returncode == 1
    assert "no worker received it: no worker serves 'plain'" in answer.stderr


def test_process_that_replaces_another_does_not_serve_what_its_workers_left(
    fleet: Fleet, sync_client: SyncClient, server: Server, prefix: str
) -> None:
    async def unserve() -> int:
        async with Client(server.url, prefix=prefix) as client:
            return await client.tell_workers("unserve", "waits")

    worker = fleet.serve("--queue", "plain", "--queue", "waits", processes=1)
    plain, waits = sync_client.queue("plain"), sync_client.queue("waits")
    wait_until(lambda: asyncio.run(unserve()) == 1, "it receives the order")
    wait_until(lambda: not waits.clients(), "it has left the queue")
    (before,) = plain.clients()
    (child,) = worker.children()
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: {one.id for one in plain.clients()} - {before.id}, "another one serves")
    (info,) = sync_client.workers(["plain"])
    assert set(info.queues) == {"plain", "{plain}-fail"}
    assert worker.stop() == 0


async def test_workers_of_a_client_without_handlers_must_be_looked_for_by_queue(
    client: Client,
) -> None:
    """They were an empty list, although workers ran: the client did not know which queues to ask
    about.
    """
    with pytest.raises(InvalidOption, match="no queue has a handler: was the module imported"):
        await client.workers()
    with pytest.raises(InvalidOption, match="no queue has a handler: was the module imported"):
        await client.evict("a group")
    assert await client.workers(["emails"]) == []
    assert (await client.evict("a group", queues=["emails"])).workers == ()


async def test_workers_list_shows_each_worker_with_its_jobs_and_load(
    server: Server, prefix: str, client: Client, emails: Queue, seen: Seen
) -> None:
    go_on = asyncio.Event()

    @emails.handler(size=25)
    async def handle(data: Any, job: Job) -> None:
        seen.add(data, job)
        await go_on.wait()

    client.queue("other").handler(handle)
    await emails.dispatch(1, id="job")
    before = time.time()
    async with (
        working(client, capacity=50),
        Client(server.url, prefix=prefix) as elsewhere,
    ):
        (run,) = await seen.runs(1)
        (info,) = await elsewhere.workers(["emails"])
        go_on.set()
        await until_empty(emails)
        (idle,) = await elsewhere.workers(["emails"])
    assert (info.host, info.pid, info.supervisor) == (socket.gethostname(), os.getpid(), 0)
    assert sorted(info.queues) == ["emails", "other"]
    assert (info.capacity, info.load) == (50, 0.5)
    slack = 0.01
    assert before - slack <= info.started_at.timestamp() <= time.time() + slack
    (job,) = info.jobs
    assert (job.queue, job.id, job.token) == ("emails", "job", run.token)
    assert job.leased_at is not None
    assert before - slack <= job.leased_at.timestamp() <= time.time() + slack
    assert (idle.id, idle.jobs, idle.load) == (info.id, (), 0.0)
    assert await client.workers() == []
    assert await emails.clients() == []


async def test_cancelling_work_releases_running_jobs(
    client: Client, emails: Queue, seen: Seen
) -> None:
    @emails.handler
    async def handle(data: Any, job: Job) -> None:
        seen.add(data, job)
        await asyncio.sleep(PATIENCE)

    await emails.dispatch(1, id="job")
    work = asyncio.create_task(client.work(signals=False))
    await seen.runs(1)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    job = await emails.get("job")
    assert job is not None
    assert (job.state, job.retry_count, job.stall_count) == ("due", 0, 0)
    assert await emails.clients() == []


async def test_stopping_a_worker_lets_running_jobs_end(
    client: Client, emails: Queue, seen: Seen
) -> None:
    go_on = asyncio.Event()

    @emails.handler(size=100)  # it takes no other job meanwhile
    async def handle(data: Any, job: Job) -> None:
        seen.add(data, job)
        await go_on.wait()

    await emails.dispatch("job")
    worker = client.worker(signals=False)
    work = asyncio.create_task(worker.run())
    await seen.runs(1)
    worker.stop()
    await emails.dispatch("late")
    go_on.set()
    await work
    assert seen.data == ["job"]
    counts = await emails.counts()
    assert (counts.due, counts.active) == (1, 0)


async def test_orders_arrive_over_channels_that_are_added_while_it_subscribes(
    client: Client, server: Server, prefix: str
) -> None:
    """Bug: a channel that was added between two subscriptions ended the receiver of all orders."""
    received: list[str] = []

    async def carry_out(order: Order) -> None:
        received.append(order.queue)

    store = Place(server.url, prefix, 10.0, None).store()
    control = Control(store, carry_out)
    try:
        await store.connect()
        for number in range(30):  # all of them during the first subscription
            control.listen({f"{prefix}:{{{number}}}:control"})
            await asyncio.sleep(0)
        for number in (0, 29):

            async def arrived(number: int = number) -> bool:
                await client.tell_workers("serve", str(number))
                return str(number) in received

            await until(arrived, f"order {number} arrives")
    finally:
        await control.close()
        await store.close()


async def test_worker_that_serves_no_queue_still_receives_orders(
    client: Client,
) -> None:
    """Bug: workers received orders only through the queues they served: with none, not at all."""
    queue, ran = client.queue("only"), asyncio.Event()

    @queue.handler
    async def run() -> None:
        ran.set()

    async def no_worker() -> bool:
        return not await client.workers()

    async with working(client):
        # A worker is listed shortly before it subscribes: over TLS that is noticeable.
        await until(lambda: client.tell_workers("unserve", "only"), "it receives the order")
        await until(no_worker, "it has left")
        await queue.dispatch(1)
        assert await client.tell_workers("serve", "only") == 1
        await asyncio.wait_for(ran.wait(), PATIENCE)


async def test_last_of_many_orders_wins(client: Client) -> None:
    """Orders run concurrently, since one may have to wait for jobs to end."""
    queue, ran = client.queue("only"), asyncio.Event()

    @queue.handler
    async def run() -> None:
        ran.set()

    async with working(client) as worker:
        await until(client.workers, "it works")
        orders = [order for _ in range(20) for order in (worker.unserve, worker.serve)]
        await asyncio.gather(*(order("only") for order in orders))
        (info,) = await client.workers()
        assert info.queues == ("only",)
        await queue.dispatch(1)
        await asyncio.wait_for(ran.wait(), PATIENCE)
        await asyncio.gather(*(order("only") for order in reversed(orders)))
        assert await client.workers() == []


def test_command_line_takes_a_group_that_begins_with_a_hyphen() -> None:
    """An earlier version made up such names."""
    options = _parser().parse_args(["unserve", "app:client", "emails", "--worker=-x"])
    assert options.workers == ["-x"]
