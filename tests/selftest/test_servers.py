"""Tests of the test servers, clusters and Sentinel groups."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.cluster import RedisCluster
from redis.crc import key_slot
from redis.exceptions import AskError, MovedError, TryAgainError

from tests.access import access
from tests.groups import Cluster, start_cluster, start_sentinel
from tests.servers import HOST, ServerKind, start_replica, start_server, wait_until

KEYS = [f"key{number}" for number in range(100)]


@pytest.fixture(scope="module")
def cluster(kind: ServerKind) -> Iterator[Cluster]:
    with start_cluster(kind, primaries=3, replicas=1) as cluster:
        yield cluster


@pytest.fixture
def filled(cluster: Cluster) -> Iterator[RedisCluster]:
    """A client of a cluster with a hundred keys, each holding its own name."""
    with cluster.client() as client:
        client.flushall(target_nodes=RedisCluster.PRIMARIES)
        for key in KEYS:
            client.set(key, key)
        yield client


def test_a_server_answers_on_its_socket_and_on_its_port(kind: ServerKind) -> None:
    with start_server(kind, maxmemory="100mb") as server:
        for url in (server.url, server.tcp_url):
            with redis.Redis.from_url(url, decode_responses=True) as client:
                settings = client.config_get("maxmemory", "maxmemory-policy", "save", "appendonly")
                assert settings == {
                    "maxmemory": str(100 * 1024 * 1024),
                    "maxmemory-policy": "noeviction",
                    "save": "",
                    "appendonly": "no",
                }
        assert f"port={server.port}" in server.log


def test_a_server_that_cannot_start_says_why(kind: ServerKind) -> None:
    with (
        pytest.raises(RuntimeError, match="no-such-setting"),
        start_server(kind, no_such_setting=1),
    ):
        pass


def test_a_restart_keeps_the_ports_and_what_was_persisted(kind: ServerKind) -> None:
    with start_server(kind, appendonly=True, appendfsync="always") as server:
        before = (server.url, server.tcp_url, server.pid)
        server.call("SET", "kept", "1")
        for end in (server.kill, server.stop):
            end()
            assert not server.running
            server.restart()
            assert server.call("GET", "kept") == "1"
        assert (server.url, server.tcp_url) == before[:2]
        assert server.pid != before[2]


def test_a_paused_server_answers_when_it_is_resumed(kind: ServerKind) -> None:
    with start_server(kind) as server, server.client(socket_timeout=0.05) as client:
        server.pause()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        server.resume()
        assert server.call("PING")


def test_a_replica_becomes_readable(kind: ServerKind) -> None:
    with start_server(kind) as primary:
        primary.call("SET", "before", "1")
        with start_replica(primary) as replica:
            assert replica.call("GET", "before") == "1"
            primary.call("SET", "after", "1")
            wait_until(lambda: replica.call("GET", "after") == "1", "the write arrives")
            with pytest.raises(redis.ReadOnlyError):
                replica.call("SET", "key", "1")


def test_a_cluster_serves_every_slot(cluster: Cluster, filled: RedisCluster) -> None:
    assert {cluster.primary_of(key_slot(key.encode())) for key in KEYS} == set(cluster.nodes[:3])
    assert [filled.get(key) for key in KEYS] == KEYS
    seeds = ",".join(node.address for node in cluster.nodes[:3])
    assert cluster.url == f"redis+cluster://{access.credentials}{seeds}"


def test_a_slot_moves_with_its_keys(cluster: Cluster, filled: RedisCluster) -> None:
    slot = key_slot(KEYS[0].encode())
    source = cluster.primary_of(slot)
    target = cluster.primary_of((slot + 8192) % 16384)
    cluster.migrate_slot(slot, target)
    assert target is not source
    assert cluster.primary_of(slot) is target
    assert target.call("GET", KEYS[0]) == KEYS[0]
    assert [filled.get(key) for key in KEYS] == KEYS


def test_a_slot_on_the_move_answers_ask_and_tryagain(cluster: Cluster) -> None:
    slot = key_slot(b"tag")
    source = cluster.primary_of(slot)
    target = cluster.primary_of((slot + 8192) % 16384)
    source.call("MSET", "{tag}1", "1", "{tag}2", "2")

    cluster.begin_migration(slot, target)
    assert cluster.migrate_keys(slot, target, limit=1) == 1
    with pytest.raises(TryAgainError):
        source.call("MGET", "{tag}1", "{tag}2")
    with pytest.raises(AskError):
        source.call("GET", "{tag}absent")

    assert cluster.migrate_keys(slot, target) == 1
    cluster.end_migration(slot, target)
    assert target.call("MGET", "{tag}1", "{tag}2") == ["1", "2"]
    with pytest.raises(MovedError):
        source.call("GET", "{tag}1")


def test_a_replica_takes_over_when_asked(cluster: Cluster, filled: RedisCluster) -> None:
    primary = cluster.primary_of(0)
    [replica] = cluster.replicas_of(primary)
    assert cluster.failover(primary) is replica
    assert cluster.primary_of(0) is replica
    assert cluster.replicas_of(replica) == [primary]
    assert [filled.get(key) for key in KEYS] == KEYS


def test_a_replica_takes_over_when_the_primary_dies(cluster: Cluster, filled: RedisCluster) -> None:
    [replica] = cluster.replicas_of(cluster.primary_of(0))
    dead = cluster.kill_primary(0)
    cluster.wait_until_settled()
    assert cluster.primary_of(0) is replica
    dead.restart()
    cluster.wait_until_settled()
    assert cluster.replicas_of(replica) == [dead]
    assert [filled.get(key) for key in KEYS] == KEYS


def test_sentinels_move_the_role_when_asked(kind: ServerKind) -> None:
    with start_sentinel(kind, sentinels=3) as group:
        [old, replica] = group.servers
        assert group.primary is old
        assert group.failover() is replica
        assert group.primary is replica
        assert old.replicates(replica)
        seeds = ",".join(sentinel.address for sentinel in group.sentinels)
        assert group.url == f"redis+sentinel://{access.credentials}{seeds}/mymaster"


def test_a_sentinel_moves_the_role_when_the_primary_dies(kind: ServerKind) -> None:
    with start_sentinel(kind) as group:
        dead = group.kill_primary()
        group.wait_until_settled()
        assert group.primary is not dead
        group.primary.call("SET", "key", "1")


ORPHAN_MAKER = """
import sys, time
from tests.servers import ServerKind, start_server
with start_server(ServerKind(sys.argv[1])) as server:
    server.pause()
    print(server.port, flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG: NOT TESTED here")
def test_a_killed_test_process_leaves_no_server_not_even_a_paused_one(kind: ServerKind) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", ORPHAN_MAKER, kind]
    with tempfile.TemporaryDirectory() as litter:  # the killed process cannot remove its files
        child_env = os.environ | {"TMPDIR": litter}
        with subprocess.Popen(command, cwd=root, env=child_env, stdout=subprocess.PIPE) as parent:
            try:
                assert parent.stdout is not None
                port = int(parent.stdout.readline())
                assert is_listening(port)
            finally:
                parent.kill()
        wait_until(lambda: not is_listening(port), "the server is gone")


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
