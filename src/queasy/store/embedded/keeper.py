"""The keeper: a small process that starts the embedded server, and ends it when it is idle.

    python -I -S keeper.py FOLDER SERVER IDLE_SECONDS

1. It starts the server as its child and reports the result to its starter, in one line.
2. It watches the server's connections, and stops the server after the idle time without one.
3. It ends when the server ends; if it is killed, so is the server (see `_end_with`).

It runs beside every application that uses the embedded server, so it imports only the standard
library, and little of that. All its paths are relative to the folder it works in: when a folder
is moved or deleted, and another takes its place, the two are never confused, and no path is too
long for a unix socket.

There are three lock files, each with one meaning. The kernel frees a lock when its holder dies,
so no lock can be stale:

| file          | held by                            | means                              |
|---------------|------------------------------------|------------------------------------|
| `start.lock`  | a process that finds, starts or    | one decision at a time             |
|               | stops a server                     |                                    |
| `keeper.lock` | the keeper, as long as it lives    | the server is looked after         |
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

# What a keeper reports to its starter. Any other text says why the server did not start.
READY = "ready"
CUT_SHORT = "ready, without the end of its data"
TAKEN = "taken"

# Valkey and Redis 7 have all of these options.
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
    """Take the lock and return the descriptor that holds it, or None if another process does."""
    # Not through a link: one planted in the folder must not lead to a file of another user.
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
    """Whether a server listens there, and has loaded its data."""
    try:
        with connect(path, timeout) as connection:
            return "busy" if ask(connection, "PING").startswith(b"-LOADING") else "ready"
    except (TimeoutError, BlockingIOError):  # it listens, but does not answer yet
        return "busy"
    except OSError:
        return "absent"


def main(folder: str, server: str, idle: float) -> None:
    os.chdir(folder)
    os.umask(0o077)
    # Reset what was inherited from the starter: SIGTERM must reach the server, and we must
    # notice when the server ends.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if os.fork():
        os._exit(0)  # the starter reaps this process at once, and has no zombie later

    keeping = try_lock(KEEPER_LOCK)
    if keeping is None:
        _report(TAKEN)
        return
    data = _claim_data()
    if data is None:
        _report(
            f"a server without its keeper still holds the data and does not end"
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
        _rewrite_file()
        _report(CUT_SHORT)
    else:
        _report(READY)
    _watch(process, idle)


def _report(word: str) -> None:
    """Report to the starter, which reads our standard output."""
    with suppress(BrokenPipeError):  # it gave up; the next `ensure` finds the server running
        os.write(1, word.encode())


def _claim_data() -> int | None:
    """Take the server's lock.

    Only a server that lost its keeper can hold it: on Linux it is dying, on macOS it lives.
    It is ended cleanly and not adopted, so that a server is always the child of its keeper.
    """
    deadline = time.monotonic() + _ORPHAN_EXIT_SECONDS
    while (data := try_lock(SERVER_LOCK)) is None and time.monotonic() < deadline:
        with suppress(OSError), connect(SOCKET, timeout=1.0) as connection:
            ask(connection, "SHUTDOWN")
        time.sleep(_POLL_SECONDS)
    return data


def _recorded_pid() -> str:
    """The server's process id, for messages only: it may be from another container."""
    with open(SERVER_LOCK) as lock:  # noqa: PTH123 - see _socket_exists
        return lock.read().strip()


def _start(server: str, data: int) -> int:
    """Run the server with the lock on its data, its output in the log; return its pid."""
    keeper = os.getpid()
    if process := os.fork():
        os.close(data)  # only the server holds it from here on
        return process
    try:
        os.set_inheritable(data, True)
        os.ftruncate(data, 0)
        os.write(data, b"%d\n" % os.getpid())
        os.dup2(2, 1)
        _end_with(keeper)
        # Some servers do not start in a locale that the machine does not have.
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
    """Whether the server logged that the end of its file is missing, as after a power cut."""
    with suppress(FileNotFoundError), open(LOG, "rb") as log:  # noqa: PTH123 - see _socket_exists
        log.seek(logged)
        return b"because aof-load-truncated is enabled" in log.read()
    return False


def _rewrite_file() -> None:
    """Have the server rewrite its file before any client uses it.

    Redis may leave the beginning of a transaction at the end of its file. If more is appended to
    that, the next start drops it, or applies half of the transaction.
    """
    with suppress(OSError), connect(SOCKET, timeout=None) as connection:
        ask(connection, "BGREWRITEAOF")
        while b"aof_rewrite_in_progress:1" in ask(connection, "INFO persistence"):
            time.sleep(_POLL_SECONDS)


def _end_with(keeper: int) -> None:
    """Have the kernel stop this process cleanly when the keeper is gone, for whatever reason.

    Linux only; elsewhere `_claim_data` ends the orphan when the next one starts.
    """
    if sys.platform != "linux":
        return
    try:
        import ctypes  # not in every build of Python
    except ImportError:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != keeper:  # it ended before the call above
        os._exit(1)


def _status(process: int) -> int | None:
    """How the server ended, or None while it lives."""
    ended, status = os.waitpid(process, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _watch(process: int, idle: float) -> None:
    """Wait until the server has ended, by itself or because it was idle."""
    while _status(process) is None:
        if not _socket_exists():
            # Deleted, with or without the folder. No client can find this server any more, so it
            # is stopped, and the next `ensure` starts another.
            _stop(process)
            return
        try:
            with connect(SOCKET, timeout=None) as connection:
                _stop_when_idle(process, connection, idle)
                return
        except OSError:  # the server is ending, or our connection was killed
            time.sleep(_POLL_SECONDS)


def _stop_when_idle(process: int, connection: socket.socket, idle: float) -> None:
    """End the server when no client has been connected for `idle` seconds.

    The server counts the connections it ever accepted, and every `ensure` makes one. So an
    `ensure` restarts the idle time, and so does a client that connected only between two checks.

    We check and decide under the same lock as `ensure`. An `ensure` that held the lock before us
    has been counted: its caller has the whole idle time to connect. An `ensure` that gets the lock
    after us finds the server running, or finds none and starts a new one.
    """
    seen, idle_since = -1, time.monotonic()
    while True:
        deciding = try_lock(START_LOCK)
        try:
            alone, accepted = _connections(connection)
            if deciding is None or not alone or accepted != seen:
                seen, idle_since = accepted, time.monotonic()
            elif time.monotonic() - idle_since >= idle:
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
        os.stat(SOCKET)  # noqa: PTH116 - the keeper starts faster without pathlib
    except FileNotFoundError:
        return False
    return True


def _connections(connection: socket.socket) -> tuple[bool, int]:
    """Whether we are the only client, and how many connections there ever were."""
    reply = ask(connection, "INFO clients stats").decode()
    if reply.startswith("-"):
        return False, 0  # for example, busy with a script: then a client runs it
    fields = dict(line.split(":", 1) for line in reply.splitlines() if ":" in line)
    return fields["connected_clients"] == "1", int(fields["total_connections_received"])


def _stop(process: int) -> None:
    """End the server and wait for it: it writes and syncs its file first, as for SHUTDOWN."""
    os.kill(process, signal.SIGTERM)  # our child: its pid is not reused before we wait for it
    os.waitpid(process, 0)


def _pause(connection: socket.socket, seconds: float) -> None:
    """Wait, but not longer than the server lives: its end closes the connection."""
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
