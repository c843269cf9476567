"""What is done to a run: each fault is a function of the world, and undoes itself in time."""

import os
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import redis
from redis.crc import key_slot

from tests.chaos.crew import Member, Role
from tests.chaos.history import now
from tests.chaos.load import QUEUES
from tests.chaos.world import PREFIX, World
from tests.groups import Cluster, SentinelGroup
from tests.proxy.program import ProxyProgram
from tests.servers import HOST, Server, ServerKind, free_port, wait_until

# So long a primary may have kept from its replicas what it answered.
LAG = 1.0
# So long a server may have kept to itself what it answered, while its disk was busy.
WRITTEN_LATE = 1.0

# Processes


def _victim(world: World, role: Role) -> Member | None:
    members = [member for member in world.crew.of(role) if not member.gone]
    return world.random.choice(members) if members else None


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_child(world: World) -> None:
    worker = _victim(world, "worker")
    children = worker.children() if worker else []
    if children:
        pid = world.random.choice(children)
        world.note("kill child", pid)
        _kill(pid)


def kill_worker(world: World) -> None:
    """The supervisor: its children go with it."""
    worker = _victim(world, "worker")
    if worker:
        children = worker.children()
        world.note("kill supervisor", worker.pid, *children)
        worker.process.kill()
        world.expect_gone(children)


def kill_producer(world: World) -> None:
    _kill_member(world, "producer")


def kill_consumer(world: World) -> None:
    _kill_member(world, "consumer")


def _kill_member(world: World, role: Role) -> None:
    member = _victim(world, role)
    if member:
        world.note(f"kill {role}", member.pid)
        member.process.kill()


def stop_worker(world: World) -> None:
    """As a deploy does."""
    worker = _victim(world, "worker")
    if worker:
        world.note("stop worker", worker.pid)
        worker.told = True
        worker.process.send_signal(signal.SIGTERM)


def freeze_child(world: World) -> None:
    worker = _victim(world, "worker")
    children = worker.children() if worker else []
    if children:
        _freeze(world, "freeze child", [world.random.choice(children)])


def freeze_supervisor(world: World) -> None:
    worker = _victim(world, "worker")
    if worker:
        _freeze(world, "freeze supervisor", [worker.pid])


def freeze_worker(world: World) -> None:
    """The whole of it, as a virtual machine that is suspended."""
    worker = _victim(world, "worker")
    if worker:
        _freeze(world, "freeze worker", [worker.pid, *worker.children()])


def freeze_other(world: World) -> None:
    role: Role = world.random.choice(("producer", "consumer"))
    member = _victim(world, role)
    if member:
        _freeze(world, f"freeze {role}", [member.pid])


def _freeze(world: World, kind: str, pids: list[int]) -> None:
    seconds = world.random.choice((0.1, 1.0, 5.0, world.random.uniform(0.1, 20)))
    begun = now()
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)

    def thaw() -> None:
        # Noted before: whoever goes on does so behind this time.
        world.note(kind, *pids, at=begun, until=now())
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    world.later(seconds, thaw)


# The server


def kill_server(world: World) -> None:
    begun = now()
    world.server.kill()
    _wait(world, world.random.choice((0.0, 0.2, world.random.uniform(0, 3))))
    world.server.start()
    world.note("kill server", at=begun, until=now())


def cut_power(world: World) -> None:
    """The machine of a server that writes to its disk every second, and may be a second late:
    the last of what it wrote is not there.
    """
    begun = now()
    world.server.kill()
    back = world.random.uniform(0.1, 1.8)
    missing = world.disk.cut_back(begun - back, world.random.randrange(1000))
    world.forgiven.append(((missing or begun) - WRITTEN_LATE, begun + 0.5))
    world.server.start()
    if world.server.kind is ServerKind.REDIS:  # as docs/guides/deployment.md says, and why
        world.server.call("BGREWRITEAOF")
        wait_until(lambda: not _is_rewriting(world.server), "the file is rewritten")
    world.note("cut power", at=begun, until=now())


def _is_rewriting(server: Server) -> bool:
    state = server.call("INFO", "persistence")
    return bool(state["aof_rewrite_in_progress"] or state["aof_rewrite_scheduled"])


def freeze_server(world: World) -> None:
    begun = now()
    world.server.pause()
    _wait(world, world.random.choice((0.1, 1.0, world.random.uniform(0, 9))))
    world.server.resume()
    world.note("freeze server", at=begun, until=now())


def _wait(world: World, seconds: float) -> None:
    """While the server is away, others are thawed and replaced all the same."""
    world.away = True
    end = now() + seconds
    while now() < end:
        world.turn()
        time.sleep(min(0.05, max(0.0, end - now())))
    world.away = False


def flush_library(world: World) -> None:
    with suppress(redis.RedisError):
        world.server.call("FUNCTION", "FLUSH")
        world.note("flush library")


def cut_connections(world: World) -> None:
    with suppress(redis.RedisError):
        world.server.call("CLIENT", "KILL", "TYPE", world.random.choice(("normal", "pubsub")))
        world.note("cut connections")


def fill_memory(world: World) -> None:
    """For a while no dispatch is accepted."""
    begun = now()

    with suppress(redis.RedisError):
        world.server.call("CONFIG", "SET", "maxmemory", "1mb")
        undo = partial(_undo, world, "memory full", begun, "CONFIG", "SET", "maxmemory", "0")
        world.insist(world.random.uniform(0.2, 3), undo)


def _undo(world: World, kind: str, begun: float, *command: str) -> None:
    world.server.call(*command)
    world.note(kind, at=begun, until=now())


def make_read_only(world: World) -> None:
    """A replica of nobody, for a while: it keeps what it has and refuses what is new."""
    begun = now()

    with suppress(redis.RedisError):
        world.server.call("REPLICAOF", HOST, free_port())
        undo = partial(_undo, world, "read only", begun, "REPLICAOF", "NO", "ONE")
        world.insist(world.random.uniform(0.2, 2), undo)


def keep_busy(world: World) -> None:
    """A script of somebody else's holds the server up: BUSY for all others."""
    milliseconds = world.random.choice((200, 1000, 3000))
    script = (
        "local function ms() local t = redis.call('TIME') return t[1] * 1000 + t[2] / 1000 end "
        f"local e = ms() + {milliseconds} while ms() < e do end"
    )
    with suppress(OSError), socket.socket(socket.AF_UNIX) as line:
        line.connect(str(world.server.directory / "server.sock"))
        words = [b"EVAL", script.encode(), b"0"]
        line.sendall(b"*3\r\n" + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
        world.note("busy")


# The network


def _struck(world: World) -> Sequence[ProxyProgram]:
    """Everybody's network, or that of some."""
    return world.random.choice((world.networks, [world.random.choice(world.networks)]))


def _tell(networks: Sequence[ProxyProgram], order: str) -> None:
    for network in networks:
        network.tell(order)


def stall_network(world: World) -> None:
    seconds = world.random.choice((0.1, 1.0, 4.0, world.random.uniform(0, 15)))
    _tell(_struck(world), f"stall {seconds:.2f}")
    world.note("stall network", until=now() + seconds)


def partition(world: World) -> None:
    """One worker reaches nobody for longer than its leases last; all others do."""
    if now() < world.cut_off_until:
        return
    # Not at once: it should have something to lose by then.
    wait, seconds = world.random.uniform(0, 8), world.random.uniform(15, 30)
    place = world.random.choice([worker.place for worker in world.crew.of("worker")])
    world.cut_off_until = now() + wait + seconds

    def cut_off() -> None:
        world.networks[place].tell(f"stall {seconds:.2f}")
        world.note("partition", until=now() + seconds)

    world.later(wait, cut_off)


def cut_network(world: World) -> None:
    _tell(_struck(world), "cut all")
    world.note("cut network")


def deafen_network(world: World) -> None:
    seconds = world.random.uniform(0.5, 5)
    _tell(_struck(world), f"deaf {seconds:.2f}")
    world.note("deaf network", until=now() + seconds)


def harass(world: World) -> None:
    """Commands are cut at random bytes, for a while."""
    networks = _struck(world)
    _tell(networks, f"harass {world.random.choice((0.002, 0.01, 0.05))}")
    begun = now()

    def calm() -> None:
        _tell(networks, "calm")
        world.note("harass", at=begun, until=now())

    world.later(world.random.uniform(1, 4), calm)


# Groups of servers


def fail_over(world: World) -> None:
    """Another server takes over; what the old one had told nobody is forgotten."""
    group = world.stage.group
    assert isinstance(group, SentinelGroup)
    begun = now()
    kind = group.strike(world.random)
    world.forgiven.append((begun - LAG, now()))
    world.note(f"failover by {kind}", at=begun, until=now())


def strike_cluster(world: World) -> None:
    """The slot of a queue moves, or its server is replaced."""
    group = world.stage.group
    assert isinstance(group, Cluster)
    begun = now()
    slot = key_slot(f"{PREFIX}:{{{world.random.choice(QUEUES)}}}".encode())
    kind = group.strike(slot, world.random)
    if kind == "kill":  # the other ways lose nothing
        world.forgiven.append((begun - LAG, now()))
    world.note(f"cluster: {kind.replace('_', ' ')}", at=begun, until=now())
