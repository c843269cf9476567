"""A running embedded server: its settings, its sharing between processes, and its idle stop."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from queasy.store.embedded import keeper
from queasy.store.embedded.server import ensure
from tests.embedded.processes import (
    DEADLINE,
    SERVE_ONCE,
    alive,
    client,
    nothing_runs,
    processes,
    starter,
    the_keeper,
    the_server,
    wait_for,
)

# The server and its settings


def test_url_is_that_of_a_private_and_durable_server(folder: Path) -> None:
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


def test_default_folder_is_dot_queasy_in_the_working_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)

    assert ensure() == f"unix://{folder}/server.sock"


def test_running_server_is_found_without_starting_a_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = ensure(folder)
    before = processes(folder)

    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")

    assert ensure(folder) == url
    monkeypatch.undo()
    assert processes(folder) == before


def test_folder_with_special_characters_in_its_name_is_served(
    make_folder: Callable[[str], Path],
) -> None:
    folder = make_folder("büro 100% #1?")

    with client(ensure(folder)) as connected:
        assert connected.ping()


def test_folder_that_others_can_read_is_made_private(folder: Path) -> None:
    folder.mkdir(mode=0o755)

    ensure(folder)

    assert folder.stat().st_mode & 0o777 == 0o700


# Sharing


def test_ten_processes_that_start_together_share_one_server(folder: Path) -> None:
    script = """
import sys
from pathlib import Path
import redis
from queasy.store.embedded.server import ensure
print("ready", flush=True)
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

    assert line_from_each() == ["ready"] * 10
    wake_all()
    servers = set(line_from_each())
    wake_all()
    counts = set(line_from_each())
    for each in starters:
        each.communicate()

    assert {each.returncode for each in starters} == {0}
    assert servers == {str(the_server(folder))}
    assert counts == {"10"}


def test_threads_that_start_together_share_one_server(folder: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        urls = set(threads.map(ensure, [folder] * 8))

    assert len(urls) == 1
    assert len(processes(folder)["servers"]) == 1


def test_keeper_and_server_do_not_hold_the_pipes_of_the_starting_process(folder: Path) -> None:
    # capture_output waits until every process has closed the pipes. If the keeper or the server
    # had inherited them, this would wait until they exit.
    script = [sys.executable, "-c", SERVE_ONCE, str(folder)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=DEADLINE, check=True)

    with client(done.stdout.strip()) as connected:
        assert connected.ping()
    assert done.stderr == ""


def test_keeper_and_server_do_not_belong_to_the_terminal_session(folder: Path) -> None:
    ensure(folder)

    for pid in (the_keeper(folder), the_server(folder)):
        assert os.getsid(pid) != os.getsid(0)


# The stop after idle time


@pytest.mark.usefixtures("short_idle_time")
def test_server_stops_when_no_client_is_connected(folder: Path) -> None:
    with client(ensure(folder)) as connected:
        connected.set("kept", "yes")
    server = the_server(folder)

    wait_for(lambda: nothing_runs(folder), "the keeper to end")

    assert not alive(server)
    assert not (folder / "server.sock").exists()
    assert "fsync() on the AOF file" in (folder / "server.log").read_text()
    with client(ensure(folder)) as connected:
        assert connected.get("kept") == "yes"


@pytest.mark.usefixtures("short_idle_time")
def test_server_runs_while_a_client_is_connected(folder: Path) -> None:
    with client(ensure(folder)) as connected:
        server = the_server(folder)
        connected.blpop(["nothing"], timeout=2)  # five times the idle time
        assert connected.info("server")["process_id"] == server
        connected.client_kill_filter(skipme=True)  # also the connection of the keeper
        connected.blpop(["nothing"], timeout=2)
        assert connected.info("server")["process_id"] == server

    wait_for(lambda: nothing_runs(folder), "the keeper to end")


def test_ensure_restarts_the_idle_timer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEASY_EMBEDDED_IDLE", "1.5")
    ensure(folder)
    server = the_server(folder)

    until = time.monotonic() + 4
    while time.monotonic() < until:
        ensure(folder)
        time.sleep(0.2)

    assert the_server(folder) == server


@pytest.mark.usefixtures("short_idle_time")
def test_server_does_not_stop_while_a_process_searches_for_it(folder: Path) -> None:
    ensure(folder)
    server = the_server(folder)
    searching = keeper.try_lock(str(folder / keeper.START_LOCK)) or pytest.fail("lock not free")
    time.sleep(1.2)  # three times the idle time, without a client, as in a slow `ensure`
    assert alive(server)
    keeper.unlock(searching)

    wait_for(lambda: not alive(server), "the server to end")


@pytest.mark.usefixtures("short_idle_time")
def test_ensure_never_returns_a_server_that_is_about_to_stop(
    make_folder: Callable[[str], Path],
) -> None:
    rounds = 10

    def connect_and_leave(folder: Path) -> int:
        for _ in range(rounds):
            with client(ensure(folder)) as connected:
                connected.incr("visits")
            time.sleep(random.uniform(0.4, 0.65))  # about when the keeper decides to stop it
        with client(ensure(folder)) as connected:
            return int(connected.get("visits") or 0)

    folders = [make_folder(f"folder-{number}") for number in range(4)]
    with ThreadPoolExecutor(len(folders)) as threads:
        assert list(threads.map(connect_and_leave, folders)) == [rounds] * len(folders)


@pytest.mark.usefixtures("short_idle_time")
def test_server_stops_although_the_starting_process_blocked_all_signals(folder: Path) -> None:
    script = """
import signal, sys
from pathlib import Path
from queasy.store.embedded.server import ensure
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
ensure(Path(sys.argv[1]))
"""
    subprocess.run([sys.executable, "-c", script, str(folder)], check=True)

    wait_for(lambda: nothing_runs(folder), "the keeper to end")
    assert "Traceback" not in (folder / "server.log").read_text()
