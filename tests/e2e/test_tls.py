"""The same over TLS, where the server speaks it."""

import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from queasy import Client, SyncClient, Unreachable
from tests.servers import ServerKind, free_port, start_server


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with: TLS NOT TESTED")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-keyout", key, "-out", cert, "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return key, cert


async def test_jobs_travel_over_tls(kind: ServerKind, certificate: tuple[Path, Path]) -> None:
    key, cert = certificate
    port = free_port()
    config = {"tls-port": port, "tls-cert-file": str(cert), "tls-key-file": str(key)}
    config |= {"tls-ca-cert-file": str(cert), "tls-auth-clients": "no"}
    with ExitStack() as stack:
        try:
            stack.enter_context(start_server(kind, **config))
        except RuntimeError as problem:
            if "tls" not in str(problem).lower():
                raise
            pytest.skip(f"{kind} here was built without TLS: NOT TESTED")
        await use(f"rediss://localhost:{port}", cert)


async def use(url: str, cert: Path) -> None:
    trusted = f"{url}?ssl_ca_certs={cert}"
    async with Client(trusted) as client:
        queue = client.queue("q")
        await queue.dispatch(1)
        async with queue.lease(timeout=5) as lease:
            assert lease is not None
        assert await queue.lease(timeout=0.05) is None
    with SyncClient(trusted) as sync:
        assert sync.queue("q").counts().waiting == 0
    with pytest.raises(Unreachable, match="certificate"):
        async with Client(url):
            pass
