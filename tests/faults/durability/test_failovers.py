"""Clients and workers leave a primary as soon as Sentinel has replaced it.

The sentinels act at their normal pace: the old primary accepts writes for about ten seconds.
"""

import asyncio
import functools
import gc
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from queasy import Client, SyncClient
from queasy.store.net.sentinel_watch import CHANNELS
from tests.announcements import SWITCH, Announcements, announcements_of
from tests.chaos.failovers import Found, fail_over
from tests.docs.pages import DOCS
from tests.groups import SentinelGroup, start_sentinel
from tests.servers import Server, ServerKind, Setting, wait_until
from tests.worker.fleet import ON_ONE_SERVER, fleet_on

PREFIX = "followed"
# Between the switch and the last call that the old primary may answer. On an idle machine it takes
# milliseconds; before clients followed the announcements it took ten seconds.
REACTION = 1.0
WATCH_THREAD = "queasy-sentinel-watch"


@pytest.fixture(scope="module")
def group(kind: ServerKind) -> Iterator[SentinelGroup]:
    with start_sentinel(kind, sentinels=3) as running:
        yield running


@pytest.fixture
def announced(group: SentinelGroup) -> Iterator[Announcements]:
    with announcements_of(group) as heard:
        yield heard


@contextmanager
def at_normal_pace(group: SentinelGroup) -> Generator[None]:
    group.hurry(hasty=False)
    try:
        yield
    finally:
        group.hurry()
        group.wait_until_settled()


def subscribers(sentinel: Server) -> int:
    """How many clients of Queasy listen to the sentinel."""
    clients = sentinel.call("CLIENT", "LIST", "TYPE", "pubsub")
    return sum(f" sub={len(CHANNELS)} " in line for line in clients.splitlines())


def wait_until_heard(group: SentinelGroup, clients: int) -> None:
    for sentinel in group.sentinels:
        wait_until(lambda s=sentinel: subscribers(s) == clients, "the client listens")


# Failovers under load, each made once; several tests read what it did.


Failovers = Callable[[str], dict[str, Found]]
SAFE = {"min_replicas_to_write": 1, "min_replicas_max_lag": 1}
CASES: dict[str, dict[str, Setting]] = {"command": {}, "freeze": {}, "command, min-replicas": SAFE}


@pytest.fixture(scope="module")
def failovers(kind: ServerKind, tmp_path_factory: pytest.TempPathFactory) -> Failovers:
    @functools.cache
    def made(case: str) -> dict[str, Found]:
        folder, how = tmp_path_factory.mktemp("failover"), case.partition(",")[0]
        with (
            start_sentinel(kind, sentinels=3, replicas=2, **CASES[case]) as group,
            announcements_of(group) as heard,
            fleet_on(group.url, PREFIX, folder) as fleet,
        ):
            fleet.serve("--queue", "waits", processes=1)
            return fail_over(group, heard, fleet, PREFIX, how)

    return made


@ON_ONE_SERVER
@pytest.mark.timeout(180)
@pytest.mark.parametrize("case", ["command", "freeze"])
def test_nothing_is_lost_at_a_primary_that_was_replaced(
    failovers: Failovers, case: str, kind: ServerKind
) -> None:
    """Bug: clients wrote to the old primary until it refused them, ten seconds after the switch,
    and all of that was lost. A frozen primary that continued got calls, too.
    """
    found = failovers(case)
    late = {
        durability: {id_: at for id_, at in one.lost.items() if at > REACTION}
        for durability, one in found.items()
    }
    assert not any(late.values()), late
    assert found["ack"].accepted > 100


@ON_ONE_SERVER
@pytest.mark.timeout(180)
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_lost_that_every_replica_has_confirmed(
    failovers: Failovers, case: str, kind: ServerKind
) -> None:
    found = failovers(case)["Replicated(2)"]
    assert found.accepted > 100
    assert not found.lost


@ON_ONE_SERVER
@pytest.mark.timeout(180)
@pytest.mark.parametrize("case", ["freeze", "command, min-replicas"])
def test_worker_goes_on_as_soon_as_producers_do(
    failovers: Failovers, case: str, kind: ServerKind
) -> None:
    """Bug: a worker waited at the old primary until that was demoted, eight seconds longer than
    the producers.
    """
    assert failovers(case)["ack"].worker_after < 2.0


# One client, one failover.


@ON_ONE_SERVER
@pytest.mark.timeout(120)
async def test_call_that_hangs_at_a_frozen_primary_is_sent_to_the_next_one(
    group: SentinelGroup, announced: Announcements, kind: ServerKind
) -> None:
    """Bug: a call stayed with a frozen primary for half of the client's timeout, however long ago
    the sentinels had replaced that primary.
    """
    with (
        SyncClient(group.url, prefix=PREFIX, timeout=60) as sync,
        ThreadPoolExecutor(1) as thread,
    ):
        async with Client(group.url, prefix=PREFIX, timeout=60) as client:
            queue, sync_queue = client.queue("hangs"), sync.queue("hangs")
            await queue.dispatch(0)
            sync_queue.dispatch(1)
            await asyncio.to_thread(wait_until_heard, group, 2)
            old = group.primary
            began = time.monotonic()
            old.pause()
            try:
                hanging = asyncio.create_task(queue.dispatch(2, id="async"))
                sync_hanging = thread.submit(sync_queue.dispatch, 3, id="sync")
                await asyncio.wait_for(hanging, 40)
                await asyncio.wait_for(asyncio.wrap_future(sync_hanging), 40)
                answered = time.monotonic()
                wait_until(lambda: announced.first(SWITCH, began) is not None, "the switch")
                assert answered - (announced.first(SWITCH, began) or began) < 5.0
                assert {job.id async for job in queue.jobs()} >= {"async", "sync"}
            finally:
                old.resume()
                group.wait_until_settled()


@ON_ONE_SERVER
@pytest.mark.timeout(120)
async def test_client_that_may_not_listen_asks_the_sentinels_before_each_call(
    group: SentinelGroup,
    announced: Announcements,
    kind: ServerKind,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Bug: a client that heard no sentinel wrote to the old primary until it was refused."""
    for sentinel in group.sentinels:
        sentinel.call("ACL", "SETUSER", "default", "-subscribe")
    try:
        with SyncClient(group.url, prefix=PREFIX) as sync:
            async with Client(group.url, prefix=PREFIX) as client:
                queue, sync_queue = client.queue("deaf"), sync.queue("deaf")
                await queue.dispatch(0)
                sync_queue.dispatch(1)
                with caplog.at_level(logging.WARNING, "queasy"):
                    wait_until(lambda: "may not subscribe" in caplog.text, "it warns")
                old, began = group.primary, time.monotonic()
                with at_normal_pace(group):
                    group.request_failover()
                    wait_until(lambda: group.primary is not old, "the primary is replaced")
                    wait_until(lambda: announced.first(SWITCH, began) is not None, "all know")
                    assert old.call("ROLE")[0] == "master"  # it would accept the job, and lose it
                    await queue.dispatch(2, id="async")
                    sync_queue.dispatch(3, id="sync")
                assert {job.id async for job in queue.jobs()} >= {"async", "sync"}
    finally:
        for sentinel in group.sentinels:
            sentinel.call("ACL", "SETUSER", "default", "+subscribe")
            sentinel.call("SENTINEL", "FLUSHCONFIG")  # which restarts of later tests read


def test_least_privileged_user_of_the_sentinels_may_listen(kind: ServerKind) -> None:
    (permissions,) = re.findall(
        r"`(\+sentinel\S+ [^`]*)`", (DOCS / "guides" / "security.md").read_text()
    )
    with start_sentinel(kind) as group:
        (sentinel,) = group.sentinels
        words = [*permissions.split(), "allchannels"]
        sentinel.call("ACL", "SETUSER", "watcher", "on", ">secret", *words)
        url = f"{group.url}?sentinel_username=watcher&sentinel_password=secret"
        with SyncClient(url, prefix=PREFIX) as client:
            client.queue("q").dispatch(1)
            wait_until_heard(group, 1)


@ON_ONE_SERVER
async def test_client_listens_to_sentinels_that_its_url_does_not_name(
    group: SentinelGroup, kind: ServerKind
) -> None:
    """Only the sentinel that leads a failover announces that a replica is about to be promoted."""
    others = ",".join(sentinel.address for sentinel in group.sentinels[1:])
    url = group.url.replace(f"{group.sentinels[0].address},{others}", group.sentinels[2].address)
    with SyncClient(url, prefix=PREFIX) as sync:
        sync.queue("q").dispatch(1)
        async with Client(url, prefix=PREFIX) as client:
            await client.queue("q").dispatch(1)
            await asyncio.to_thread(wait_until_heard, group, 2)


@ON_ONE_SERVER
def test_lost_subscription_is_made_again(group: SentinelGroup, kind: ServerKind) -> None:
    with SyncClient(group.url, prefix=PREFIX) as client:
        client.queue("q").dispatch(1)
        wait_until_heard(group, 1)
        for sentinel in group.sentinels:
            sentinel.call("CLIENT", "KILL", "TYPE", "pubsub")
        client.queue("q").dispatch(2)
        wait_until_heard(group, 1)
    wait_until_heard(group, 0)


@ON_ONE_SERVER
def test_client_stays_with_its_primary_while_no_sentinel_answers(
    group: SentinelGroup, kind: ServerKind
) -> None:
    with SyncClient(group.url, prefix=PREFIX, timeout=4) as client:
        queue = client.queue("alone")
        queue.dispatch(1)
        wait_until_heard(group, 1)
        for sentinel in group.sentinels:
            sentinel.kill()
        try:
            for number in range(20):
                queue.dispatch(number)
                time.sleep(0.05)
        finally:
            for sentinel in group.sentinels:
                sentinel.start()
            group.hurry()
            group.wait_until_settled()
        queue.dispatch("back")
        wait_until_heard(group, 1)


@ON_ONE_SERVER
def test_forked_process_listens_to_the_sentinels_itself(
    group: SentinelGroup, kind: ServerKind
) -> None:
    with SyncClient(group.url, prefix=PREFIX) as client:
        queue = client.queue("forked")
        queue.dispatch(1)
        wait_until_heard(group, 1)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                queue.dispatch(2, id="child")
                wait_until_heard(group, 2)
                os.write(writer, b"heard")
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            assert pipe.read() == b"heard"
        os.waitpid(child, 0)
        assert "child" in {job.id for job in queue.jobs()}


@ON_ONE_SERVER
def test_thread_of_a_sync_client_ends_with_the_client(
    group: SentinelGroup, kind: ServerKind
) -> None:
    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == WATCH_THREAD]

    client = SyncClient(group.url, prefix=PREFIX)
    client.queue("q").dispatch(1)
    assert threads() == [WATCH_THREAD]
    client.close()
    assert threads() == []
    client = SyncClient(group.url, prefix=PREFIX)
    client.queue("q").dispatch(1)
    assert threads() == [WATCH_THREAD]
    client._store.drop_connections()  # else each of them warns
    del client  # not closed
    gc.collect()
    assert threads() == []


def test_client_of_a_single_server_has_no_thread(sync_client: SyncClient) -> None:
    sync_client.queue("q").dispatch(1)
    assert WATCH_THREAD not in {thread.name for thread in threading.enumerate()}


@ON_ONE_SERVER
@pytest.mark.timeout(120)
async def test_calls_wait_while_a_replica_is_being_promoted(
    group: SentinelGroup, kind: ServerKind
) -> None:
    """Bug: the old primary accepted jobs for a second between the promotion of the replica and
    the switch, and lost them.
    """
    async with Client(group.url, prefix=PREFIX) as client:
        queue = client.queue("promoted")
        await queue.dispatch(0, id="0")
        await asyncio.to_thread(wait_until_heard, group, 1)
        old, number = group.primary, 0
        with at_normal_pace(group):
            group.request_failover()
            end = time.monotonic() + 3.0
            while time.monotonic() < end:
                number += 1
                await queue.dispatch(number, id=str(number), delay=3600)
            assert group.primary is not old
        ids = {job.id async for job in queue.jobs()}
        # One call may be answered while the announcement is on its way.
        assert len({str(n) for n in range(1, number + 1)} - ids) <= 5
