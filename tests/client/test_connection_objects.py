"""`connection=`: the settings of a client object of redis-py or valkey-py, of every kind."""

import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
import valkey
import valkey.asyncio
import valkey.sentinel

from queasy import AccessDenied, Client, InvalidOption, SyncClient, Unreachable
from queasy.store.net.redis_client import url_of_client
from queasy.store.net.url import parse_url
from tests.access import Certificates, documented_rules, why_no_tls
from tests.groups import PRIMARY_NAME, Cluster, SentinelGroup, start_cluster, start_sentinel
from tests.servers import HOST, Server, ServerKind, find_binary, free_port, start_server, wait_until

SECRET = "p/w #?@:%é"
KINDS = [redis.Redis, redis.asyncio.Redis, valkey.Valkey, valkey.asyncio.Valkey]
each_kind = pytest.mark.parametrize("make", KINDS, ids=lambda one: f"{one.__module__}")


@pytest.fixture(scope="module")
def guarded(kind: ServerKind) -> Iterator[Server]:
    """A server that requires a user and a password."""
    with start_server(kind, appendonly=True) as server:
        rules = [*documented_rules("worker"), "+select"]
        server.call("ACL", "SETUSER", "worker", *rules, f">{SECRET}")
        server.call("ACL", "SETUSER", "default", f">{SECRET}")
        yield server


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, kind: ServerKind) -> Certificates:
    if reason := why_no_tls(find_binary(kind)):
        pytest.skip(reason)
    return Certificates(tmp_path_factory.mktemp("house"))


async def jobs_travel(given: Any) -> None:
    """Through both clients, which use nothing but this object's settings."""
    async with Client(connection=given) as client:
        await client.queue("q").dispatch(1)
        with SyncClient(connection=given) as sync, sync.queue("q").lease(timeout=5) as lease:
            assert lease is not None
            assert lease.data == 1
        assert SECRET not in f"{client!r}{client.plan!r}"


@each_kind
async def test_address_database_user_and_password_are_taken(guarded: Server, make: Any) -> None:
    given = make(host=HOST, port=guarded.port, db=3, username="worker", password=SECRET)
    await jobs_travel(given)
    with guarded.client(db=3, username="default", password=SECRET) as admin:
        assert admin.keys("queasy:{q}:*")
        admin.flushdb()


@each_kind
async def test_unix_socket_is_taken(guarded: Server, make: Any) -> None:
    path = str(guarded.directory / "server.sock")
    await jobs_travel(make(unix_socket_path=path, password=SECRET))
    with pytest.raises(AccessDenied):
        await Client(connection=make(unix_socket_path=path, password="other")).connect()


@each_kind
async def test_object_made_from_a_url_is_taken(guarded: Server, make: Any) -> None:
    await jobs_travel(make.from_url(f"redis://:p%2Fw%20%23%3F%40%3A%25%C3%A9@{guarded.address}/1"))


@each_kind
async def test_tls_settings_are_taken(kind: ServerKind, house: Certificates, make: Any) -> None:
    ours, settings = house.sign("client"), house.sign("strict").settings(free_port(), clients=True)
    with start_server(kind, **settings) as server:
        files = {"ssl_ca_certs": str(house.authority), "ssl_certfile": str(ours.cert)}
        common = {"host": "localhost", "port": server.config["tls-port"], "ssl": True}
        await jobs_travel(make(**common, **files, ssl_keyfile=str(ours.key)))
        with pytest.raises(Unreachable, match="ssl_certfile and ssl_keyfile"):
            await Client(connection=make(**common, ssl_ca_certs=files["ssl_ca_certs"])).connect()
        with pytest.raises(Unreachable, match="ssl_ca_certs"):  # verified as the object would
            await Client(connection=make(**common)).connect()


@each_kind
async def test_the_check_of_the_host_name_is_as_the_object_has_it(
    kind: ServerKind, house: Certificates, make: Any
) -> None:
    elsewhere = house.sign("elsewhere", hosts="DNS:elsewhere.example").settings(free_port())
    with start_server(kind, **elsewhere) as server:
        common = {"host": "localhost", "port": server.config["tls-port"], "ssl": True}
        common["ssl_ca_certs"] = str(house.authority)
        with pytest.raises(Unreachable, match=r"[Hh]ostname mismatch"):
            await Client(connection=make(**common, ssl_check_hostname=True)).connect()
        await jobs_travel(make(**common, ssl_check_hostname=False))
        await jobs_travel(make(**common, ssl_cert_reqs=ssl.CERT_NONE, ssl_check_hostname=False))


def test_verification_without_an_explicit_setting_is_that_of_the_class() -> None:
    """redis-py checks the host name by default; valkey-py does not."""
    for module, checks in ((redis, True), (valkey, False)):
        target = parse_url(url_of_client(module.from_url("rediss://h")))
        assert target.tls
        assert target.connect["ssl_cert_reqs"] == "required"
        assert target.connect["ssl_check_hostname"] is checks
    loose = redis.from_url("rediss://h?ssl_cert_reqs=none")
    assert parse_url(url_of_client(loose)).connect["ssl_cert_reqs"] == "none"


def test_ipv6_addresses_are_taken() -> None:
    target = parse_url(url_of_client(redis.Redis(host="::1", port=7)))
    assert [(one.host, one.port) for one in target.addresses] == [("::1", 7)]


# Sentinel and Cluster


@pytest.fixture(scope="module")
def group(kind: ServerKind) -> Iterator[SentinelGroup]:
    with start_sentinel(kind, sentinels=1) as running:
        yield running


def sentinels_of(group: SentinelGroup) -> list[tuple[str, int]]:
    return [(HOST, sentinel.port) for sentinel in group.sentinels]


@pytest.mark.parametrize(
    "make",
    [redis.sentinel.Sentinel, redis.asyncio.sentinel.Sentinel, valkey.sentinel.Sentinel],
    ids=lambda one: one.__module__,
)
async def test_client_of_sentinel_is_taken(group: SentinelGroup, make: Any) -> None:
    sentinel = make(sentinels_of(group))
    await jobs_travel(sentinel.master_for(PRIMARY_NAME))
    with pytest.raises(InvalidOption, match=r"sentinel\.master_for\('service'\)"):
        Client(connection=sentinel)
    with pytest.raises(InvalidOption, match="got one of replicas"):
        Client(connection=sentinel.slave_for(PRIMARY_NAME))


def test_credentials_of_sentinels_and_servers_are_taken() -> None:
    tls = {"ssl": True, "ssl_ca_certs": "/ca"}
    own = {"username": "s", "password": SECRET, **tls}
    sentinel = redis.sentinel.Sentinel([("a", 1), ("b", 2)], sentinel_kwargs=own, **tls)
    url = url_of_client(sentinel.master_for("the/service", db=2, password="w"))
    target = parse_url(url)
    assert (target.kind, target.service, target.tls) == ("sentinel", "the/service", True)
    assert [(one.host, one.port) for one in target.addresses] == [("a", 1), ("b", 2)]
    assert (target.connect["db"], target.connect["password"]) == (2, "w")
    assert target.sentinel_connect["username"] == "s"
    assert target.sentinel_connect["password"] == SECRET
    assert target.sentinel_connect["ssl_ca_certs"] == target.connect["ssl_ca_certs"] == "/ca"
    plain = redis.sentinel.Sentinel([("a", 1)], **tls)  # speaks TLS to the servers only
    with pytest.raises(InvalidOption, match="the same TLS settings"):
        url_of_client(plain.master_for("x"))


@pytest.fixture(scope="module")
def cluster(kind: ServerKind) -> Iterator[Cluster]:
    with start_cluster(kind, primaries=3, replicas=0) as running:
        yield running


async def test_client_of_a_cluster_is_taken(cluster: Cluster) -> None:
    port = cluster.nodes[0].port
    with redis.RedisCluster(host=HOST, port=port) as given:
        await jobs_travel(given)
    with valkey.ValkeyCluster(host=HOST, port=port) as given:
        await jobs_travel(given)
    for make in (redis.asyncio.RedisCluster, valkey.asyncio.ValkeyCluster):
        async with make(host=HOST, port=port) as given:
            await jobs_travel(given)
        await jobs_travel(make(host=HOST, port=port))  # that never connected


# What is refused


class Elsewhere(redis.Connection):
    """Connects to another place than its settings say, or to none, as fakeredis does."""


class Provider(redis.CredentialProvider):
    def get_credentials(self) -> tuple[str, str]:
        return "user", SECRET


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (redis.Redis(credential_provider=Provider()), "it has a credential_provider"),
        (redis.Redis(redis_connect_func=print), "a function that it calls for each"),
        (redis.ConnectionPool(connection_class=Elsewhere), "a class of connections from another"),
        (redis.Redis(ssl=True, ssl_ca_data="x", password=SECRET), "it has ssl_ca_data"),
        (redis.Redis(ssl=True, ssl_password=SECRET), "it has ssl_password"),
        (valkey.Valkey(ssl=True, ssl_ciphers="x", password=SECRET), "it has ssl_ciphers"),
        (redis.Redis(password=SECRET.encode()), "password: expected a str, got bytes"),
        (object(), "expected a client of redis-py or valkey-py .*got object"),
        (Client("redis://h"), "got Client"),
        ("redis://localhost", "got str"),
    ],
)
def test_what_queasy_cannot_use_is_refused_with_what_to_write(given: Any, says: str) -> None:
    for make in (Client, SyncClient):
        with pytest.raises(
            InvalidOption, match=rf"^connection: .*{says}.*Client\('rediss://user"
        ) as caught:
            make(connection=given)
        assert SECRET not in str(caught.value)


def test_only_one_way_to_name_a_server_is_accepted() -> None:
    with pytest.raises(InvalidOption, match=r"expected one of .*, got url and connection"):
        Client("redis://h", connection=redis.Redis())
    with pytest.raises(InvalidOption, match="got connection and folder"):
        SyncClient(connection=redis.Redis(), folder="x")


def test_connection_takes_precedence_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEASY_URL", "redis://elsewhere:1")
    assert "here:7" in repr(Client(connection=redis.Redis(host="here", port=7)))


def test_queasy_imports_no_redis_package() -> None:
    code = "import sys, queasy; sys.exit('redis' in sys.modules or 'valkey' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Worker processes

SHOP = """
import os, redis
from queasy import Client
shared = redis.Redis(host="{host}", port={port}, username="worker", password=os.environ["SECRET"])
client = Client(connection=shared)
emails = client.queue("emails")

@emails.handler
async def send(data): print("sent", data, flush=True)
"""


@pytest.mark.parametrize("kind", ["any"], indirect=True)
def test_worker_processes_get_the_settings_and_show_no_password(
    guarded: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop.py").write_text(SHOP.format(host=HOST, port=guarded.port))
    monkeypatch.setenv("SECRET", SECRET)
    given = redis.Redis(host=HOST, port=guarded.port, username="worker", password=SECRET)
    command = [sys.executable, "-m", "queasy", "worker", "shop:client", "--processes", "2"]
    log = tmp_path / "log"
    with log.open("wb") as output, SyncClient(connection=given) as client:
        worker = subprocess.Popen(
            [*command, "--log-level", "debug"], cwd=tmp_path, stdout=output, stderr=output
        )
        try:
            wait_until(lambda: len(client.workers(["emails"])) == 2, "both processes serve")
            children = [one.pid for one in client.workers(["emails"])]
            client.queue("emails").dispatch("x")
            wait_until(lambda: "sent x" in log.read_text(), "the job runs")
            for pid in (worker.pid, *children):
                assert SECRET.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(30) == 0
        finally:
            worker.kill()
            worker.wait()
    assert SECRET not in log.read_text()
