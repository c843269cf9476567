"""The checks when a client connects: each warning and each refusal says what to do."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from queasy import (
    AccessDenied,
    Client,
    NotReady,
    ReadOnly,
    ServerError,
    SyncClient,
    Unreachable,
    Unsupported,
)
from queasy.store.net.url import parse_url
from tests.groups import start_cluster
from tests.servers import (
    HOST,
    Server,
    ServerKind,
    free_port,
    start_server,
    wait_until,
)


@pytest.fixture(scope="module")
def sound(kind: ServerKind) -> Iterator[Server]:
    """A server without any warning, which these tests may change."""
    with start_server(kind, appendonly=True) as server:
        yield server


def warnings_of(server: Server, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings logged when a client connects; `health` and the async client agree."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "queasy"), SyncClient(server.url) as client:
        said = [record.getMessage() for record in caplog.records]
        health = client.health()
        found = [*([health.problem] if health.problem else []), *health.warnings]
        assert said == [f"{parse_url(server.url)}: {warning}" for warning in found]
        caplog.clear()
        asyncio.run(connect_async(server))
        assert [record.getMessage() for record in caplog.records] == said
    return said


async def connect_async(server: Server) -> None:
    async with Client(server.url):
        pass


def test_sound_server_gets_no_warning(sound: Server, caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_of(sound, caplog) == []


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, "set it to noeviction"),
        ({"maxmemory": "100mb", "maxmemory-policy": "volatile-ttl"}, "set it to noeviction"),
        ({"maxmemory": "1"}, "raise maxmemory"),
        ({"appendonly": "no"}, "no persistence: a restart of the server loses every job"),
        ({"appendonly": "no", "save": "3600 1"}, "since the last snapshot; set appendonly to yes"),
        ({"appendfsync": "no"}, "set it to everysec"),
        ({"maxclients": "100"}, "set it to 200 or more"),
        ({"timeout": "5"}, "set it to 0, or to 90 or more"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_setting_that_may_lose_jobs_gets_a_warning(
    sound: Server, caplog: pytest.LogCaptureFixture, settings: dict[str, str], advice: str
) -> None:
    before = {name: sound.call("CONFIG", "GET", name)[1] for name in settings}
    for name, value in settings.items():
        sound.call("CONFIG", "SET", name, value)
    try:
        (warning,) = warnings_of(sound, caplog)
        assert advice in warning
    finally:
        for name, value in before.items():
            sound.call("CONFIG", "SET", name, value)


def test_replica_gets_a_warning_and_refuses_writes(
    sound: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with SyncClient(sound.url) as client:
        client.queue("q").dispatch(1, id="a")
    sound.call("REPLICAOF", HOST, free_port())
    try:
        (warning,) = warnings_of(sound, caplog)
        assert "point the URL at the primary" in warning
        with SyncClient(sound.url, timeout=1) as client:
            health = client.health()
            assert (health.role, health.reachable, health.ready) == ("replica", True, False)
            with pytest.raises(ReadOnly, match="Point the URL at the primary"):
                client.queue("q").dispatch(2)
            assert client.queue("q").counts().waiting == 1
    finally:
        sound.call("REPLICAOF", "NO", "ONE")
        with SyncClient(sound.url) as client:
            assert client.queue("q").cancel("a")


def test_failed_disk_gets_a_warning(sound: Server, caplog: pytest.LogCaptureFixture) -> None:
    obstacle = Path(sound.call("CONFIG", "GET", "dir")[1], "dump.rdb")
    (obstacle / "in-the-way").mkdir(parents=True)
    wait_until(lambda: bool(sound.call("BGSAVE")), "no other snapshot is being written")
    with sound.client() as client:
        info = lambda: client.info("persistence")  # noqa: E731
        wait_until(lambda: info()["rdb_last_bgsave_status"] == "err", "the snapshot failed")
        (warning,) = warnings_of(sound, caplog)
        assert "free its disk" in warning
        with SyncClient(sound.url) as queues:
            assert queues.health().ready  # the append-only file counts, not the snapshot
            queues.queue("q").dispatch(1, id="j")
            sound.call("CONFIG", "SET", "save", "3600 1000000")
            assert not queues.health().ready
            with pytest.raises(NotReady):
                queues.queue("q").cancel("j")
            sound.call("CONFIG", "SET", "save", "")
            queues.queue("q").cancel("j")
        (obstacle / "in-the-way").rmdir()
        obstacle.rmdir()
        sound.call("BGSAVE")
        wait_until(lambda: info()["rdb_last_bgsave_status"] == "ok", "the next is written")
    assert warnings_of(sound, caplog) == []


def test_plain_url_of_a_cluster_node_gets_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with start_cluster(ServerKind.VALKEY) as cluster, caplog.at_level(logging.WARNING, "queasy"):
        url = cluster.url.replace("+cluster", "").partition(",")[0]
        with SyncClient(url, timeout=2) as client:
            assert "use redis+cluster:// instead of redis://" in caplog.text
            queues = [
                client.queue(f"q{number}") for number in range(50)
            ]  # some have slots on other nodes
            with pytest.raises(ServerError, match=r"Use redis\+cluster:// instead"):
                assert [queue.counts() for queue in queues]


@pytest.mark.parametrize("command", ["FCALL", "FCALL_RO", "FUNCTION"])
def test_disabled_command_is_named(kind: ServerKind, command: str) -> None:
    with (
        start_server(kind, appendonly=True, rename_command=f'{command} ""') as server,
        pytest.raises(Unsupported, match=f"{command}.*not disabled by rename-command"),
        SyncClient(server.url) as client,
    ):
        client.queue("q").dispatch(1)


@pytest.mark.parametrize(
    ("rules", "advice"),
    [
        ("-fcall", r"Grant \+fcall \(ACL"),
        ("-fcall_ro", r"Grant \+fcall_ro \(ACL"),
        ("-function", "has no library yet.* Connect a worker first"),
        ("-ssubscribe", r"Grant \+ssubscribe \(ACL"),
        ("resetchannels", r"Grant the channels, as &queasy:\*"),
        ("resetkeys ~other:*", r"Grant the keys, as ~queasy:\*"),
    ],
)
def test_a_missing_permission_is_named_with_what_to_grant(
    sound: Server, rules: str, advice: str
) -> None:
    sound.call("FUNCTION", "FLUSH")
    sound.call("ACL", "SETUSER", "poor", "on", ">pw", "~*", "&*", "+@all", *rules.split())
    url = sound.url_as("poor", "pw")

    def use() -> None:
        with SyncClient(url) as client:
            client.queue("q").dispatch(1)
            client.queue("q").lease(timeout=0)
            client.queue("empty").lease(timeout=0.5)

    with pytest.raises(AccessDenied, match=advice):
        use()


def test_server_at_its_connection_limit_is_unreachable(sound: Server) -> None:
    with sound.client() as first:
        most = first.config_get("maxclients")["maxclients"]
        first.config_set("maxclients", 1)
        try:
            with pytest.raises(Unreachable), SyncClient(sound.tcp_url):
                pass
        finally:
            first.config_set("maxclients", most)
