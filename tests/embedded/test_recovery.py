"""A server starts again after processes were killed or files deleted, and keeps its data."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from queasy.store.embedded import keeper
from queasy.store.embedded.server import ensure, find_server
from tests.embedded.processes import (
    DEADLINE,
    SERVE_ONCE,
    alive,
    client,
    is_free,
    processes,
    starter,
    stop,
    the_keeper,
    the_server,
    wait_for,
    wait_written,
)


def test_data_survives_a_stop(folder: Path) -> None:
    with client(ensure(folder)) as connected:
        connected.set("kept", "yes")
    stop(folder)

    with client(ensure(folder)) as connected:
        assert connected.get("kept") == "yes"


def test_server_starts_with_its_data_after_keeper_and_server_were_killed(folder: Path) -> None:
    with client(ensure(folder)) as connected:
        connected.set("kept", "yes")
    wait_written(folder, "kept")
    killed = [the_keeper(folder), the_server(folder)]
    for pid in killed:
        os.kill(pid, signal.SIGSTOP)  # so that neither can clean up after the other
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not any(map(alive, killed)), "both to be dead")
    assert (folder / "server.sock").exists()

    with client(ensure(folder)) as connected:
        assert connected.get("kept") == "yes"
    assert the_server(folder) not in killed


def test_killed_server_is_replaced_and_its_keeper_exits(folder: Path) -> None:
    with client(ensure(folder)) as connected:
        connected.set("kept", "yes")
    wait_written(folder, "kept")
    keeper_before, server_before = the_keeper(folder), the_server(folder)
    os.kill(server_before, signal.SIGKILL)

    with client(ensure(folder)) as connected:
        assert connected.get("kept") == "yes"
    assert the_keeper(folder) != keeper_before
    assert the_server(folder) != server_before


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only: a signal when the parent dies")
def test_server_of_a_killed_keeper_exits_cleanly(folder: Path) -> None:
    ensure(folder)
    server = the_server(folder)
    os.kill(the_keeper(folder), signal.SIGKILL)

    wait_for(lambda: not alive(server), "the server to end")
    assert "fsync() on the AOF file" in (folder / "server.log").read_text()


def test_server_of_a_killed_keeper_is_not_used(folder: Path) -> None:
    with client(ensure(folder)) as connected:
        connected.set("kept", "yes")
    keeper_before, server_before = the_keeper(folder), the_server(folder)
    os.kill(keeper_before, signal.SIGKILL)
    # The first sign of its death; the server has not received the signal yet.
    wait_for(lambda: is_free(folder / keeper.KEEPER_LOCK), "the keeper to die")

    with client(ensure(folder)) as connected:
        assert connected.get("kept") == "yes"
    assert not alive(server_before)
    assert the_keeper(folder) != keeper_before


def test_orphaned_server_is_stopped_cleanly_and_replaced(folder: Path) -> None:
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
        wait_for(lambda: keeper.probe(str(socket), timeout=1) == "ready", "the orphan to serve")
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


def test_server_starts_after_a_starting_process_was_killed_at_any_moment(folder: Path) -> None:
    script = "import queasy.store.embedded.server; print('imported', flush=True)\n" + SERVE_ONCE
    for moment in range(8):
        killed = starter(folder, script)
        assert killed.stdout
        assert killed.stdout.readline() == "imported\n"
        time.sleep(moment * 0.02)
        killed.kill()
        killed.communicate()

        with client(ensure(folder)) as connected:
            connected.incr("recoveries")
            assert connected.get("recoveries") == str(moment + 1)
        assert len(processes(folder)["servers"]) == 1
        stop(folder)


def test_deleted_folder_gets_a_new_server_and_the_old_one_exits(folder: Path) -> None:
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


def test_deleted_socket_does_not_lead_to_two_servers_on_the_same_data(folder: Path) -> None:
    with client(ensure(folder)) as connected:
        connected.set("kept", "yes")
        old = the_server(folder)
        (folder / keeper.SOCKET).unlink()

        with client(ensure(folder)) as newly:
            assert newly.get("kept") == "yes"
    assert not alive(old)


def test_file_truncated_by_a_crash_is_loaded(folder: Path) -> None:
    with client(ensure(folder)) as connected:
        connected.set("kept", "yes")
    stop(folder)
    (written,) = (folder / "data").glob("*.incr.aof")
    with written.open("ab") as file:
        file.write(b"*3\r\n$3\r\nSET\r\n$4\r\nhal")

    with client(ensure(folder)) as connected:
        assert connected.get("kept") == "yes"


def test_ensure_waits_until_all_data_is_loaded(folder: Path) -> None:
    many = 400_000
    with client(ensure(folder)) as connected:
        script = "for i = 1, ARGV[1] do redis.call('SET', 'key:' .. i, i) end"
        connected.eval(script, 0, many)
    stop(folder)

    with client(ensure(folder)) as connected:
        assert connected.dbsize() == many
