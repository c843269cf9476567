"""What a supervisor needs of the machine: limits, and orphans when it is PID 1."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from queasy import SyncClient
from tests.servers import wait_until
from tests.worker.fleet import APP, ON_ONE_SERVER, ROOT, Fleet, children_of, state_of

pytestmark = ON_ONE_SERVER


@contextmanager
def running(fleet: Fleet, log: Path, *prefix: str) -> Iterator["subprocess.Popen[bytes]"]:
    """`queasy worker` with two processes, started by another command."""
    command = [*prefix, sys.executable, "-m", "queasy", "worker", APP, "--processes", "2"]
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, cwd=ROOT, env=fleet.environment, stdout=output, stderr=output,
            stdin=subprocess.DEVNULL,
        ) as process,
    ):  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def test_supervisor_as_pid_1_reaps_orphans_and_reads_exit_codes(
    fleet: Fleet, sync_client: SyncClient, tmp_path: Path
) -> None:
    """Bug: processes that handlers left behind stayed zombies."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if os.geteuid():
        unshare.append("--map-root-user")
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no PID namespaces: NOT TESTED")
    log = tmp_path / "log"
    with running(fleet, log, *unshare) as process:
        wait_until(lambda: log.read_text().count("process_serving") == 2, "both serve")
        (supervisor,) = children_of(process.pid)
        sync_client.queue("plain").dispatch_many([{"orphan": True}] * 20)
        fleet.journal.wait_for("orphaned", 20)
        wait_until(lambda: len(children_of(supervisor)) == 2, "only the two children are left")
        victim = children_of(supervisor)[0]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: log.read_text().count("process_serving") == 3, "another replaces it")
        assert "how='signal 9'" in log.read_text()
        assert not [pid for pid in children_of(supervisor) if state_of(pid) == b"Z"]
        os.kill(supervisor, signal.SIGTERM)
        assert process.wait(20) == 0
    assert " grace=7 " in log.read_text()  # `docker stop` waits for ten seconds


def test_supervisor_without_enough_files_names_the_limit_and_ends(
    fleet: Fleet, tmp_path: Path
) -> None:
    """Bug: with `ulimit -n 24` it tried for ever to start a worker, and did not say why."""
    log = tmp_path / "log"
    with running(fleet, log, "sh", "-c", 'ulimit -n 24; exec "$@"', "sh") as process:
        assert process.wait(60) == 1
    last = log.read_text().splitlines()[-1]
    assert last.startswith(f"queasy: {APP}: no worker could start: [Errno 24] Too many open files")
    assert "this process may open 24 files" in last
