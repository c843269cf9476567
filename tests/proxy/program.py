"""The proxy in a process of its own, for sync tests and for tests that block the event loop."""

import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.servers import HOST, free_port, wait_until

ROOT = Path(__file__).parents[2]


class ProxyProgram:
    def __init__(self, port: int, control: Path) -> None:
        self.port = port
        self.url = f"redis://{HOST}:{port}"
        self._control = control

    def tell(self, order: str) -> None:
        """Sends an order of `Proxy.obey`; returns when it is in effect."""
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(self._control))
            line.sendall(order.encode() + b"\n")
            assert line.recv(1000) == b"ok\n"


@contextmanager
def start_proxy(upstream: int, seed: int) -> Generator[ProxyProgram]:
    """Starts the proxy program. Any output of it fails the test."""
    with tempfile.TemporaryDirectory(prefix="proxy-") as folder:
        port, control = free_port(), Path(folder) / "control"
        words = ["--listen-port", port, "--upstream-port", upstream, "--seed", seed]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.proxy", *map(str, words), "--control", str(control)],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            wait_until(lambda: control.exists() or process.poll() is not None, "the proxy is there")
            yield ProxyProgram(port, control)
        finally:
            process.terminate()
            printed, _ = process.communicate()
        assert printed == b"", printed.decode()
