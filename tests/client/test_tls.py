"""Connections over TLS, if the server supports it. `--tls` runs all other tests over TLS."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from queasy import Client, InvalidUrl, SyncClient, Unreachable
from tests.access import Certificates, Signed, why_no_tls
from tests.client.waiting import until_waiting
from tests.groups import PRIMARY_NAME
from tests.servers import (
    HOST,
    Server,
    ServerKind,
    find_binary,
    free_port,
    launch,
    start_server,
    wait_until,
)
from tests.worker.fleet import fleet_on


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, kind: ServerKind) -> Certificates:
    """The authority that clients here trust."""
    if reason := why_no_tls(find_binary(kind)):
        pytest.skip(reason)
    return Certificates(tmp_path_factory.mktemp("house"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory, house: Certificates) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("stranger"))


def settings_of(signed: Signed, **options: bool) -> dict[str, Any]:
    return {**signed.settings(free_port(), **options)}


@pytest.fixture(scope="module")
def secure(kind: ServerKind, house: Certificates) -> Iterator[Server]:
    with start_server(kind, **settings_of(house.sign("server"))) as server:
        yield server


def url_of(server: Server, house: Certificates, *options: str, host: str = "localhost") -> str:
    query = "&".join([f"ssl_ca_certs={house.authority}", *options])
    return f"rediss://{host}:{server.config['tls-port']}?{query}"


async def refused(url: str, match: str, timeout: float = 20) -> None:
    """Both clients raise at once, not after the timeout of a call."""
    with pytest.raises(Unreachable, match=match):
        async with asyncio.timeout(10), Client(url, timeout=timeout):
            pass
    with pytest.raises(Unreachable, match=match), SyncClient(url, timeout=timeout):
        pass


@pytest.mark.parametrize("host", ["localhost", HOST])
async def test_jobs_travel_over_tls(secure: Server, house: Certificates, host: str) -> None:
    url = url_of(secure, house, host=host)
    async with Client(url) as client:
        queue = client.queue("q")
        waiting = asyncio.create_task(queue.lease(timeout=30))
        await until_waiting(queue)
        await queue.dispatch(1)  # without a wake-up it would wait for 30 seconds
        async with asyncio.timeout(10):
            lease = await waiting
        assert lease is not None
        assert await lease.complete()
    with SyncClient(url) as sync:
        sync.queue("q").dispatch(2)
        with sync.queue("q").lease(timeout=5) as lease:
            assert lease is not None
        assert sync.queue("q").lease(timeout=0.05) is None


def test_supervised_workers_speak_tls(secure: Server, house: Certificates, tmp_path: Path) -> None:
    url = url_of(secure, house)
    with fleet_on(url, "queasy", tmp_path) as fleet, SyncClient(url) as client:
        running = fleet.serve(processes=1)
        client.queue("waits").dispatch({"sleep": 0.01})
        client.queue("plain").dispatch({"fail": "no"})
        fleet.journal.wait_for("end", 2)
        fleet.journal.wait_for("gave up")
        assert running.stop() == 0
    secure.call("FLUSHALL")


async def test_untrusted_certificate_authority_is_reported_at_once(
    secure: Server, house: Certificates, stranger: Certificates
) -> None:
    await refused(url_of(secure, house).partition("?")[0], "ssl_ca_certs")
    await refused(url_of(secure, stranger), "ssl_ca_certs")


async def test_missing_certificate_file_is_named(
    secure: Server, house: Certificates, tmp_path: Path
) -> None:
    absent = tmp_path / "absent.pem"
    await refused(
        url_of(secure, house, f"ssl_certfile={absent}"), f"ssl_certfile: .*{re.escape(str(absent))}"
    )
    with pytest.raises(InvalidUrl, match="ssl_cert_reqs"):
        Client(url_of(secure, house, "ssl_cert_reqs=maybe"))


async def test_a_certificate_of_another_host_is_refused(
    kind: ServerKind, house: Certificates
) -> None:
    elsewhere = house.sign("elsewhere", hosts="DNS:elsewhere.example")
    with start_server(kind, **settings_of(elsewhere)) as server:
        await refused(url_of(server, house), "[Hh]ostname mismatch")
        async with Client(url_of(server, house, "ssl_check_hostname=no")):
            pass


async def test_a_certificate_that_has_expired_is_refused(
    kind: ServerKind, house: Certificates
) -> None:
    with start_server(kind, **settings_of(house.sign("expired", days=-1))) as server:
        await refused(url_of(server, house), "certificate has expired")


async def test_server_that_requires_client_certificates_checks_them(
    kind: ServerKind, house: Certificates, stranger: Certificates
) -> None:
    ours, theirs = house.sign("client"), stranger.sign("client")
    with start_server(kind, **settings_of(house.sign("strict"), clients=True)) as server:
        known = url_of(server, house, f"ssl_certfile={ours.cert}", f"ssl_keyfile={ours.key}")
        async with Client(known) as client:
            await client.queue("q").dispatch(1)
        unknown = url_of(server, house, f"ssl_certfile={theirs.cert}", f"ssl_keyfile={theirs.key}")
        await refused(unknown, "ssl_certfile and ssl_keyfile")
        await refused(url_of(server, house), "ssl_certfile and ssl_keyfile")


async def test_plain_client_on_a_tls_port_gets_advice(secure: Server) -> None:
    await refused(f"redis://{HOST}:{secure.config['tls-port']}", "rediss:// if the server speaks")


async def test_tls_client_on_a_plain_port_gets_advice(secure: Server, house: Certificates) -> None:
    """Not at once: the server takes the TLS greeting for the start of a command, and waits."""
    url = f"rediss://localhost:{secure.port}?ssl_ca_certs={house.authority}"
    await refused(url, "redis:// if not", timeout=0.5)


async def test_client_reaches_sentinels_and_their_primary_over_tls(
    kind: ServerKind, house: Certificates
) -> None:
    common = settings_of(house.sign("group")) | {"tls-replication": "yes", "port": 0}
    with ExitStack() as stack:
        primary = launch(stack, kind, {**common, "tls-port": free_port()})
        primary.wait_until_ready()
        watched = {
            "sentinel monitor": f"{PRIMARY_NAME} {HOST} {primary.config['tls-port']} 1",
            "sentinel down-after-milliseconds": f"{PRIMARY_NAME} 5000",
        }
        sentinel = launch(stack, kind, {**common, "tls-port": free_port(), **watched}, "--sentinel")
        sentinel.wait_until_ready()
        wait_until(lambda: sees(sentinel), "it sees the primary")
        seed = f"{HOST}:{sentinel.config['tls-port']}"
        url = f"rediss+sentinel://{seed}/{PRIMARY_NAME}?ssl_ca_certs={house.authority}"
        async with Client(url) as client:
            await client.queue("q").dispatch(1)
            assert await client.queue("q").lease(timeout=5)


def sees(sentinel: Server) -> bool:
    return sentinel.call("SENTINEL MASTER", PRIMARY_NAME)["flags"] == "master"


async def test_client_reaches_cluster_nodes_over_tls(kind: ServerKind, house: Certificates) -> None:
    common = settings_of(house.sign("node")) | {"cluster-enabled": "yes", "tls-cluster": "yes"}
    with ExitStack() as stack:
        node = launch(stack, kind, {**common, "cluster-port": free_port(), "port": 0})
        node.wait_until_ready()
        node.call("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        wait_until(
            lambda: node.call("CLUSTER INFO")["cluster_state"] == "ok", "it serves every slot"
        )
        port = node.config["tls-port"]
        url = f"rediss+cluster://{HOST}:{port}?ssl_ca_certs={house.authority}"
        async with Client(url) as client:
            await client.queue("q").dispatch(1)
            assert await client.queue("q").lease(timeout=5)
