"""Faults of the server: kills, freezes, power failures, and errors that it answers with."""

import socket
import time
from contextlib import suppress
from functools import partial

import redis

from tests.chaos.history import now
from tests.chaos.system import System
from tests.servers import HOST, Server, ServerKind, free_port, wait_until

# A server may be away for this many seconds after the last fault began.
AFTER_THE_LAST = 8.0
# While its disk is busy, a server may answer this many seconds before it writes.
WRITE_DELAY = 1.0


def kill_server(system: System) -> None:
    began = now()
    system.server.kill()
    _wait(system, system.random.choice((0.0, 0.2, system.random.uniform(0, 3))))
    system.server.start()
    system.record("kill server", at=began, until=now())


def power_failure(system: System) -> None:
    """The end of the append-only file is lost.

    The server syncs the file every second, and may be a second late.
    """
    began = now()
    system.server.kill()
    back = system.random.uniform(0.1, 1.8)
    lost_from = system.disk.truncate(began - back, system.random.randrange(1000))
    system.excused.append(((lost_from or began) - WRITE_DELAY, began + 0.5))
    system.server.start()
    if system.server.kind is ServerKind.REDIS:  # docs/guides/deployment.md says why
        system.server.call("BGREWRITEAOF")
        wait_until(lambda: not _is_rewriting(system.server), "the append-only file is rewritten")
    system.record("power failure", at=began, until=now())


def _is_rewriting(server: Server) -> bool:
    state = server.call("INFO", "persistence")
    return bool(state["aof_rewrite_in_progress"] or state["aof_rewrite_scheduled"])


def freeze_server(system: System) -> None:
    began = now()
    system.server.pause()
    _wait(system, system.random.choice((0.1, 1.0, system.random.uniform(0, 9))))
    system.server.resume()
    system.record("freeze server", at=began, until=now())


def flap_server(system: System) -> None:
    """The server is away several times, and back for moments in between.

    Each time it is killed (connections are refused) or frozen (calls are not answered), for longer
    than workers continue without it, or for less, so that only several times together are longer.
    """
    uniform, choice = system.random.uniform, system.random.choice
    away = choice(
        (
            (15.0, 11.0),
            (11.5, 11.5, 6.0),
            [uniform(1, 16) for _ in range(choice((2, 3)))],
            [uniform(0.5, 5) for _ in range(4)],
        )
    )
    for seconds in away:
        # Fewer seconds at the end of the scene.
        seconds = min(seconds, max(1.0, system.inject_until + AFTER_THE_LAST - now()))
        killed, began = choice((True, False)), now()
        system.server.kill() if killed else system.server.pause()
        _wait(system, seconds)
        system.server.start() if killed else system.server.resume()
        system.record(f"flap: server {'killed' if killed else 'frozen'}", at=began, until=now())
        time.sleep(choice((0.004, 0.05, uniform(0, 1))))
    _wait(system, uniform(0, 4), away=False)


def _wait(system: System, seconds: float, *, away: bool = True) -> None:
    """Let time pass, without the server. Processes are thawed and restarted meanwhile."""
    system.server_away = away
    end = now() + seconds
    while now() < end:
        system.maintain()
        time.sleep(min(0.05, max(0.0, end - now())))
    system.server_away = False


def flush_library(system: System) -> None:
    with suppress(redis.RedisError):
        system.server.call("FUNCTION", "FLUSH")
        system.record("flush library")


def kill_connections(system: System) -> None:
    with suppress(redis.RedisError):
        system.server.call("CLIENT", "KILL", "TYPE", system.random.choice(("normal", "pubsub")))
        system.record("kill connections")


def fill_memory(system: System) -> None:
    """The server refuses dispatches for a while."""
    began = now()
    with suppress(redis.RedisError):
        system.server.call("CONFIG", "SET", "maxmemory", "1mb")
        undo = partial(
            _undo, system, "server memory full", began, "CONFIG", "SET", "maxmemory", "0"
        )
        system.retry_later(system.random.uniform(0.2, 3), undo)


def _undo(system: System, kind: str, began: float, *command: str) -> None:
    system.server.call(*command)
    system.record(kind, at=began, until=now())


def make_read_only(system: System) -> None:
    """A replica without a primary, for a while: it keeps its data and refuses writes."""
    began = now()
    with suppress(redis.RedisError):
        system.server.call("REPLICAOF", HOST, free_port())
        undo = partial(_undo, system, "server read-only", began, "REPLICAOF", "NO", "ONE")
        system.retry_later(system.random.uniform(0.2, 2), undo)


def keep_busy(system: System) -> None:
    """A slow script of another application: the server answers BUSY to everything else."""
    milliseconds = system.random.choice((200, 1000, 3000))
    script = (
        "local function ms() local t = redis.call('TIME') return t[1] * 1000 + t[2] / 1000 end "
        f"local e = ms() + {milliseconds} while ms() < e do end"
    )
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(system.server.directory / "server.sock"))
        words = [b"EVAL", script.encode(), b"0"]
        connection.sendall(b"*3\r\n" + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
        system.record("server busy")
