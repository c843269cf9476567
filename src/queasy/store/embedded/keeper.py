"""The keeper: a small process that starts the embedded server and ends it when nobody is left.

    python -I -S keeper.py FOLDER SERVER IDLE_SECONDS

1. It starts the server as its child and tells its starter, in one line, how that went.
2. It looks at the server's connections and, after the idle time without one, stops it.
3. It ends when the server ends; if it is killed, so is the server (see `_end_with`).

It runs beside every application that uses the embedded server, so it is the standard
library only, and little of that. All its paths are relative to the folder it works in:
a folder that was moved or deleted, with a new one in its place, is never confused with
the new one, and no path is too long for a unix socket.

Three lock files, each with one meaning; the kernel frees a lock when its holder dies, so
nothing can be stale:

| file          | held by                            | means                              |
|---------------|------------------------------------|------------------------------------|
| `start.lock`  | whoever looks for, starts or stops | one decision at a time             |
| `keeper.lock` | the keeper, as long as it lives    | the server will be looked after    |
| `server.lock` | the server, as long as it lives    | never two servers on the same data |
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Literal

SOCKET = "server.sock"
DATA = "data"
LOG = "server.log"
START_LOCK = "start.lock"
KEEPER_LOCK = "keeper.lock"
SERVER_LOCK = "server.lock"

# What a keeper tells its starter; anything else is the reason why there is no server.
READY = "ready"
CUT_SHORT = "ready, without the end of its data"
TAKEN = "taken"

# Both Valkey and Redis 7 know all of these.
_SERVER_OPTIONS = (
    *("--port", "0"),
    *("--unixsocket", SOCKET),
    *("--unixsocketperm", "700"),
    *("--protected-mode", "yes"),
    *("--appendonly", "yes"),
    *("--appendfsync", "everysec"),
    *("--appenddirname", DATA),
    *("--save", ""),
    *("--maxmemory-policy", "noeviction"),
)

_POLL_SECONDS = 0.005
_ORPHAN_EXIT_SECONDS = 30.0
_PR_SET_PDEATHSIG = 1


def try_lock(path: str) -> int | None:
    """Take the lock and return the descriptor that holds it, or None if someone else does."""
    # Not through a link: one planted in the folder must not lead us to another's file.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def unlock(descriptor: int) -> None:
    # Closing alone would not free it while a child, forked meanwhile by another thread
    # of the application, has a copy of the descriptor.
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def connect(path: str, timeout: float | None) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(timeout)
        connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection


def ask(connection: socket.socket, command: str) -> bytes:
    """Send a command and return its reply: a line such as `+PONG`, or the text of a bulk."""
    connection.sendall(command.encode() + b"\r\n")
    with connection.makefile("rb") as replies:
        reply = replies.readline()
        size = len(reply)
        if reply.startswith(b"$"):
            size = int(reply[1:]) + 2
            reply = replies.read(size)
    if len(reply) < size or not reply.endswith(b"\r\n"):
        raise ConnectionResetError("the server closed the connection")
    return reply[:-2]


def probe(path: str, timeout: float) -> Literal["absent", "busy", "ready"]:
    """Ask once whether a server listens there and has loaded its data."""
    try:
        with connect(path, timeout) as connection:
            return "busy" if ask(connection, "PING").startswith(b"-LOADING") else "ready"
    except (TimeoutError, BlockingIOError):  # it listens, but has no time for us yet
        return "busy"
    except OSError:
        return "absent"


def main(folder: str, server: str, idle: float) -> None:
    os.chdir(folder)
    os.umask(0o077)
    # Inherited from the starter, whoever that is: SIGTERM must reach the server, and
    # the server's end must reach us.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if os.fork():
        os._exit(0)  # the starter reaps this one at once and never has a zombie of ours

    keeping = try_lock(KEEPER_LOCK)
    if keeping is None:
        _report(TAKEN)
        return
    data = _claim_data()
    if data is None:
        _report(
            f"a server that lost its keeper still has the data and does not end"
            f" (process {_recorded_pid()}): stop it"
        )
        return
    logged = _size_of_log()
    process = _start(server, data)
    while probe(SOCKET, timeout=1.0) != "ready":
        if (status := _status(process)) is not None:
            _report(f"it ended with status {status}")
            return
        time.sleep(_POLL_SECONDS)
    if _was_cut_short(logged):
        _write_anew()
        _report(CUT_SHORT)
    else:
        _report(READY)
    _watch(process, idle)


def _report(word: str) -> None:
    """Answer the starter, who reads our standard output."""
    with suppress(BrokenPipeError):  # it gave up; the next one will be glad
        os.write(1, word.encode())


def _claim_data() -> int | None:
    """Take the server's lock.

    Only a server whose keeper was killed can have it: dying on Linux, living on macOS.
    It is ended cleanly, not adopted, so that a server is always its keeper's child.
    """
    deadline = time.monotonic() + _ORPHAN_EXIT_SECONDS
    while (data := try_lock(SERVER_LOCK)) is None and time.monotonic() < deadline:
        with suppress(OSError), connect(SOCKET, timeout=1.0) as connection:
            ask(connection, "SHUTDOWN")
        time.sleep(_POLL_SECONDS)
    return data


def _recorded_pid() -> str:
    """Only ever shown to people: in a shared folder it may be another container's number."""
    with open(SERVER_LOCK) as lock:  # noqa: PTH123 - see _socket_exists
        return lock.read().strip()


def _start(server: str, data: int) -> int:
    """Run the server with the lock on its data, its output in the log; return its pid."""
    keeper = os.getpid()
    if process := os.fork():
        os.close(data)  # from here on it is the server's alone
        return process
    try:
        os.set_inheritable(data, True)
        os.ftruncate(data, 0)
        os.write(data, b"%d\n" % os.getpid())
        os.dup2(2, 1)
        _end_with(keeper)
        # Some servers refuse to start in a locale that the machine does not have.
        os.execve(server, [server, *_SERVER_OPTIONS], os.environ | {"LC_ALL": "C"})
    except BaseException as error:
        os.write(2, f"cannot run {server}: {error}\n".encode())
    finally:
        os._exit(127)


def _size_of_log() -> int:
    try:
        return os.stat(LOG).st_size  # noqa: PTH116 - see _socket_exists
    except FileNotFoundError:
        return 0


def _was_cut_short(logged: int) -> bool:
    """Whether the server found its file without an end, as a power cut leaves it, and said so."""
    with suppress(FileNotFoundError), open(LOG, "rb") as log:  # noqa: PTH123 - see _socket_exists
        log.seek(logged)
        return b"because aof-load-truncated is enabled" in log.read()
    return False


def _write_anew() -> None:
    """Have the server write its file anew, before anybody uses it.

    Redis may leave the beginning of a transaction at its end: what is appended to that is
    undone, or half of the transaction done, by the next start.
    """
    with suppress(OSError), connect(SOCKET, timeout=None) as connection:
        ask(connection, "BGREWRITEAOF")
        while b"aof_rewrite_in_progress:1" in ask(connection, "INFO persistence"):
            time.sleep(_POLL_SECONDS)


def _end_with(keeper: int) -> None:
    """Have the kernel stop this process cleanly when the keeper is gone, however it went.

    Linux only; elsewhere `_claim_data` ends the orphan when the next one starts.
    """
    if sys.platform != "linux":
        return
    try:
        import ctypes  # not in every build of Python
    except ImportError:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != keeper:  # it went before we had asked
        os._exit(1)


def _status(process: int) -> int | None:
    """How the server ended, or None while it lives."""
    ended, status = os.waitpid(process, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _watch(process: int, idle: float) -> None:
    """Stay until the server has ended, by itself or because nobody needs it."""
    while _status(process) is None:
        if not _socket_exists():
            # Deleted, with or without the folder. Nobody can find this server any more,
            # so it makes room for one that can be found.
            _stop(process)
            return
        try:
            with connect(SOCKET, timeout=None) as connection:
                _stop_when_quiet(process, connection, idle)
                return
        except OSError:  # the server is ending, or someone killed our connection
            time.sleep(_POLL_SECONDS)


def _stop_when_quiet(process: int, connection: socket.socket, idle: float) -> None:
    """End the server when for `idle` seconds nobody has been connected, nor come and gone.

    The server counts the connections it ever accepted, and every `ensure` makes one. So an
    `ensure` restarts the clock, as does a client that came and went between two looks.

    We probe and decide under the lock under which `ensure` looks for the server. An `ensure`
    that had it before us has been counted: its caller has the whole idle time to connect.
    One that gets it after us finds the server running, or gone and starts a new one.
    """
    seen, quiet_since = -1, time.monotonic()
    while True:
        deciding = try_lock(START_LOCK)
        try:
            alone, accepted = _connections(connection)
            if deciding is None or not alone or accepted != seen:
                seen, quiet_since = accepted, time.monotonic()
            elif time.monotonic() - quiet_since >= idle:
                _stop(process)
                return
        finally:
            if deciding is not None:
                unlock(deciding)
        _pause(connection, min(1.0, idle / 4))
        if not _socket_exists():
            raise ConnectionResetError("the socket was deleted")


def _socket_exists() -> bool:
    try:
        os.stat(SOCKET)  # noqa: PTH116 - without pathlib the keeper starts quicker
    except FileNotFoundError:
        return False
    return True


def _connections(connection: socket.socket) -> tuple[bool, int]:
    """Whether we are the only client, and how many connections there ever were."""
    reply = ask(connection, "INFO clients stats").decode()
    if reply.startswith("-"):
        return False, 0  # busy with a script, say: then somebody runs it
    fields = dict(line.split(":", 1) for line in reply.splitlines() if ":" in line)
    return fields["connected_clients"] == "1", int(fields["total_connections_received"])


def _stop(process: int) -> None:
    """End the server and wait for it: it writes and syncs its file first, as for SHUTDOWN."""
    os.kill(process, signal.SIGTERM)  # our child: the number is its own until we wait for it
    os.waitpid(process, 0)


def _pause(connection: socket.socket, seconds: float) -> None:
    """Wait, but not past the server's end, which closes the connection."""
    connection.settimeout(seconds)
    try:
        if not connection.recv(1):
            raise ConnectionResetError("the server closed the connection")
    except TimeoutError:
        pass
    finally:
        connection.settimeout(None)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
