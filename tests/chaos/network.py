"""The network of a run: a proxy in a process of its own, told what to do over a socket."""

import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.servers import HOST, Server, free_port, wait_until
from tests.worker.fleet import ROOT


class ProxyProcess:
    """`python -m tests.proxy`, running."""

    def __init__(self, port: int, control: Path) -> None:
        self.url = f"redis://{HOST}:{port}"
        self._control = str(control)

    def tell(self, order: str) -> None:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(self._control)
            line.sendall(f"{order}\n".encode())
            answer = line.recv(1000)
            assert answer == b"ok\n", answer


@contextmanager
def start_network(server: Server, folder: Path, name: str, seed: int) -> Generator[ProxyProcess]:
    port, control = free_port(), folder / f"proxy-{name}"
    with (folder / f"proxy-{name}.err").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.proxy", "--listen-port", str(port), "--upstream-port",
             str(server.port), "--seed", str(seed), "--control", str(control)],
            cwd=ROOT, stdin=subprocess.DEVNULL, stderr=errors,
        )  # fmt: skip
    try:
        wait_until(control.exists, "the proxy listens")
        yield ProxyProcess(port, control)
    finally:
        process.kill()
        process.wait()
