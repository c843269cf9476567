"""`Client.listen`, and handlers that are registered while workers of the same client run."""

import asyncio
import os
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from queasy import Client, Failure, HandlerNotFound, InvalidOption, Job, JobError, Queue, SyncClient
from queasy.client import Running
from tests.servers import Server, wait_until
from tests.worker.fleet import ON_ONE_SERVER, Fleet
from tests.worker.inline import PATIENCE, Seen, until, until_empty, working

HERE = __name__
ran: list[Any] = []


async def handle(data: Any) -> None:
    """Named by the tests as "module:handle", and as the handler of this module."""
    ran.append(data)


# listen


async def test_listen_registers_handlers_and_runs_them_until_cancelled(
    client: Client, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "letters", types.ModuleType("letters"))
    sys.modules["letters"].handle = handle  # type: ignore[attr-defined]
    ran.clear()

    async def send(data: Any, job: Job) -> None:
        seen.add(data, job)
        if data == "waits":
            await asyncio.sleep(PATIENCE)

    @client.queue("other").handler
    async def other() -> None:
        raise AssertionError("listen serves its own queues only")

    listening = asyncio.create_task(client.listen({"emails": send, "letters": "letters"}))
    await client.queue("other").dispatch(0)
    await client.queue("letters").dispatch("a letter")
    await client.queue("emails").dispatch("waits", id="waits")
    await seen.runs(1)
    await until_empty(client.queue("letters"))
    assert ran == ["a letter"]
    listening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await listening
    job = await client.queue("emails").get("waits")
    assert job is not None
    assert (job.state, job.stall_count) == ("due", 0)
    assert (await client.queue("other").counts()).due == 1


async def test_listen_may_be_called_again_with_the_same_handlers(
    client: Client, emails: Queue, seen: Seen
) -> None:
    async def send(data: Any, job: Job) -> None:
        seen.add(data, job)

    for number in (1, 2):
        listening = asyncio.create_task(client.listen({"emails": send}))
        await emails.dispatch(number)
        await seen.runs(number)
        await until_empty(emails)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


@pytest.mark.parametrize("given", [print, "shop:send", ["emails"], None])
async def test_listen_refuses_what_is_no_mapping(client: Client, given: Any) -> None:
    with pytest.raises(InvalidOption, match=r"expected a mapping .*\{'emails': send\}"):
        await client.listen(given)


# An inline worker takes handlers up


async def test_handler_registered_while_an_inline_worker_runs_is_taken_up(
    client: Client, emails: Queue, seen: Seen
) -> None:
    """Also if a plain handler registers it, in a thread."""

    @emails.handler
    def first(data: Any) -> None:
        @client.queue("late").handler
        async def late(data: Any, job: Job) -> None:
            seen.add(data, job)

    async with working(client):
        await client.queue("late").dispatch("waits already")
        await emails.dispatch(1)
        await seen.runs(1)
        await client.queue("late").dispatch("comes later")
        await seen.runs(2)
        await until_empty(client.queue("late"))
        (worker,) = await client.workers()
        assert set(worker.queues) == {"emails", "late"}
    assert await client.workers() == []


async def test_handler_registered_before_a_worker_that_was_made_runs_is_taken_up(
    client: Client, emails: Queue, seen: Seen
) -> None:
    emails.handler(lambda: None)
    worker = client.worker()
    client.queue("late").handler(seen.add)
    work = asyncio.create_task(worker.run())
    await client.queue("late").dispatch(1)
    await seen.runs(1)
    worker.stop()
    await work


async def test_fail_handler_registered_late_gets_the_jobs_of_its_queue(
    client: Client, emails: Queue, seen: Seen
) -> None:
    """Also those given up after the queue was destroyed, which deletes what workers announced."""

    @emails.handler
    async def send(data: Any) -> Failure:
        return Failure("no")

    async with working(client):
        await until(emails.clients, "it runs")

        @emails.fail_handler
        async def gave_up(data: Any, job: Job, error: JobError) -> None:
            seen.add(data, job)

        async def served() -> bool:
            return bool(await emails.fail_queue.clients())

        await until(served, "the fail queue is served")
        await emails.dispatch(1)
        await seen.runs(1)
        await until_empty(emails)
        await emails.destroy(force=True)

        async def served_again() -> bool:
            return bool(await emails.clients())

        await until(served_again, "the worker has joined again")
        await emails.dispatch(2)
        await seen.runs(2)


async def test_worker_that_replaces_a_dead_one_serves_late_handlers(
    client: Client, emails: Queue, seen: Seen
) -> None:
    emails.handler(lambda: None)
    late = client.queue("late")

    async def clients() -> list[str]:
        return [one.id for one in await late.clients()]

    async with working(client):
        await until(emails.clients, "it runs")
        late.handler(seen.add)
        await until(clients, "it is served")
        (dead,) = await clients()
        await late.evict(dead)

        async def replaced() -> bool:
            return bool(await clients()) and await clients() != [dead]

        await until(replaced, "another worker serves it")
        await late.dispatch(1)
        await seen.runs(1)


async def test_orders_for_a_queue_that_was_added_reach_the_worker(
    client: Client, emails: Queue
) -> None:
    emails.handler(lambda: None)
    late = client.queue("late")
    async with working(client):
        await until(emails.clients, "it runs")
        late.handler(lambda: None)
        await until(late.clients, "it is served")
        await until(lambda: client.tell_workers("unserve", "late"), "the order is received")

        async def left() -> bool:
            return not await late.clients()

        await until(left, "the worker has left")


async def test_worker_of_chosen_queues_takes_up_no_others(
    client: Client, emails: Queue, seen: Seen
) -> None:
    emails.handler(lambda: None)
    async with working(client, queues=["emails"]):
        await until(emails.clients, "it runs")
        client.queue("late").handler(lambda: None)
        emails.fail_handler(seen.add)
        await until(emails.fail_queue.clients, "its fail handler is taken up")
        assert await client.queue("late").clients() == []


async def test_late_handler_that_cannot_be_imported_is_refused(
    client: Client, emails: Queue
) -> None:
    emails.handler(lambda: None)
    async with working(client):
        await until(emails.clients, "it runs")
        with pytest.raises(HandlerNotFound, match="nowhere"):
            client.queue("late").handler("nowhere:f")
        client.queue("late").handler(lambda: None)  # it was not registered
        await until(client.queue("late").clients, "it is served")


# Workers with processes of their own refuse them


@pytest.fixture
def shop(server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A client that is a global of a module, as workers with processes require."""
    module = types.ModuleType("shop_of_the_tests")
    module.client = Client(server.url, prefix=prefix)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.client


def test_handler_registered_after_a_supervisor_was_made_is_refused(shop: Client) -> None:
    shop.queue("emails").handler(handle)
    shop.worker(processes=1)
    with pytest.raises(
        InvalidOption, match=r"queue 'late', handler .*handle is registered too late: .*processes"
    ):
        shop.queue("late").handler(handle)
    shop.queue("emails").handler(handle)  # which changes nothing


def test_supervisor_of_chosen_queues_refuses_handlers_of_these_only(shop: Client) -> None:
    shop.queue("emails").handler(handle)
    shop.worker(["emails"], processes=1)
    shop.queue("late").handler(handle)
    with pytest.raises(InvalidOption, match="too late"):
        shop.queue("emails").fail_handler(handle)


async def test_listen_with_processes_refuses_functions_without_an_importable_name(
    shop: Client,
) -> None:
    for function in (lambda: None, Seen().add):
        with pytest.raises(InvalidOption, match=r"expected 0, or functions .*at the top of a mod"):
            await shop.listen({f"q{id(function)}": function}, processes=1)


SCRIPT = """
import asyncio, os
from queasy import Client

client = Client(os.environ["TEST_URL"], prefix=os.environ["TEST_PREFIX"])

async def send(data):
    print("sent", data, "by", os.getpid(), flush=True)
    if data == "registers":
        client.queue("late").handler(send)
    if data == "waits":
        await asyncio.sleep(99)
{more}
if __name__ == "__main__":
    {main}
"""


def start(
    tmp_path: Path, server: Server, prefix: str, main: str, more: str = ""
) -> "subprocess.Popen[str]":
    script = tmp_path / "shop.py"
    script.write_text(SCRIPT.format(main=main, more=more))
    settings = {"TEST_URL": server.url, "TEST_PREFIX": prefix, "PYTHONWARNINGS": "error"}
    return subprocess.Popen(
        [sys.executable, str(script)], env={**os.environ, **settings},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # If a shell starts the tests in the background, SIGINT is ignored, also in children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


@ON_ONE_SERVER
def test_listen_with_processes_runs_a_function_of_the_script(
    tmp_path: Path, server: Server, prefix: str, sync_client: SyncClient
) -> None:
    main = 'asyncio.run(client.listen({"emails": send, "mails": send}, processes=1))'
    with start(tmp_path, server, prefix, main) as process:
        try:
            assert process.stdout is not None
            for name in ("emails", "mails"):
                sync_client.queue(name).dispatch(name)
                word, data, _, pid = process.stdout.readline().split()
                assert (word, data) == ("sent", name)
                assert int(pid) != process.pid
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


ONLY_HERE = 'client.queue("mine").handler(send); asyncio.run(client.work(processes=1))'


@ON_ONE_SERVER
@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("", "no queue has a handler: was the module imported that registers them?"),
        ('client.queue("emails").handler(send)', "queue 'mine': the handler is registered in the"),
    ],
)
def test_handler_that_worker_processes_do_not_have_stops_the_start(
    tmp_path: Path, server: Server, prefix: str, more: str, says: str
) -> None:
    """Bug: if other queues had handlers, the jobs of this one waited for ever, without a word."""
    with start(tmp_path, server, prefix, ONLY_HERE, more) as process:
        try:
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 1
    assert says in errors


@ON_ONE_SERVER
def test_handler_registered_in_a_running_worker_process_is_refused(
    fleet: Fleet, tmp_path: Path, sync_client: SyncClient
) -> None:
    script = tmp_path / "shop.py"
    script.write_text(SCRIPT.format(main="pass", more='client.queue("emails").handler(send)'))
    worker = fleet.serve(processes=1, app=f"{script}:client")
    sync_client.queue("emails").dispatch("registers")
    wait_until(lambda: "is registered too late" in worker.log, "the handler raised")
    assert "queue 'late'" in worker.log
    assert worker.stop() == 0


# Signals


async def test_inline_worker_leaves_signals_to_the_application(
    client: Client, emails: Queue, seen: Seen
) -> None:
    received = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, received.set)
    try:
        emails.handler(seen.add)
        worker: Running = client.worker()
        work = asyncio.create_task(worker.run())
        await emails.dispatch(1)
        await seen.runs(1)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(received.wait(), PATIENCE)
        await emails.dispatch(2)  # the worker runs on
        await seen.runs(2)
        worker.stop()
        await work
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def test_inline_worker_stops_on_signals_if_asked_to(client: Client, emails: Queue) -> None:
    emails.handler(lambda: None)
    work = asyncio.create_task(client.work(signals=True))
    await until(emails.clients, "it works")
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(work, PATIENCE)


@ON_ONE_SERVER
def test_ctrl_c_releases_the_jobs_of_an_inline_program_at_once(
    tmp_path: Path, server: Server, prefix: str, sync_client: SyncClient
) -> None:
    emails = sync_client.queue("emails")
    main = 'asyncio.run(client.listen({"emails": send}))'
    with start(tmp_path, server, prefix, main) as process:
        try:
            emails.dispatch("waits", id="job")
            wait_until(lambda: emails.counts().active == 1, "the job runs")
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)
        finally:
            process.kill()
    job = emails.get("job")
    assert job is not None
    assert (job.state, job.stall_count) == ("due", 0)
