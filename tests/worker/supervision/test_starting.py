"""Ways to start workers: from a script, by module name, with reload; and their replacement."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from queasy import SyncClient
from queasy.store.net.url import target_of
from tests.servers import Server, wait_until
from tests.worker.fleet import ON_ONE_SERVER, Fleet, wait_until_gone

pytestmark = ON_ONE_SERVER

CLIENT = """
import asyncio, os
from queasy import Client
client = Client(os.environ["TEST_URL"], prefix=os.environ["TEST_PREFIX"])
emails = client.queue("emails")
"""
BARE_CLIENT = 'client = Client()\nemails = client.queue("emails")\n'
HANDLER = """
@emails.handler
async def send(data): print("sent", data, "by", os.getpid(), flush=True)
"""


def run(script: Path, server: Server, prefix: str) -> "subprocess.Popen[str]":
    settings = {"TEST_URL": server.url, "TEST_PREFIX": prefix, "PYTHONWARNINGS": "error"}
    return subprocess.Popen(
        [sys.executable, str(script)], env={**os.environ, **settings},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_script_runs_its_own_handlers_in_processes(
    tmp_path: Path, server: Server, prefix: str, sync_client: SyncClient
) -> None:
    script = tmp_path / "shop.py"
    main = '\nif __name__ == "__main__":\n    asyncio.run(client.work(processes=2))\n'
    script.write_text(CLIENT + HANDLER + main)
    with run(script, server, prefix) as process:
        try:
            wait_until(lambda: len(sync_client.workers(["emails"])) == 2, "both children serve")
            children = [info.pid for info in sync_client.workers(["emails"])]
            sync_client.queue("emails").dispatch("a")
            assert process.stdout is not None
            word, data, _, pid = process.stdout.readline().split()
            assert (word, data) == ("sent", "a")
            assert int(pid) in children
            assert process.pid not in children
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
            wait_until_gone(children, 5)
        finally:
            process.kill()
    assert sync_client.workers(["emails"]) == []


def test_script_that_starts_workers_on_import_gets_advice(
    tmp_path: Path, server: Server, prefix: str
) -> None:
    script = tmp_path / "shop.py"
    script.write_text(CLIENT + HANDLER + "\nasyncio.run(client.work(processes=1))\n")
    with run(script, server, prefix) as process:
        try:
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode not in (0, None)
    assert 'if __name__ == "__main__"' in errors


def test_death_of_a_process_that_never_reached_the_server_is_not_about_jobs(fleet: Fleet) -> None:
    """Bug: with a wrong URL, `jobs_not_returned` was logged for each queue of each process that
    ended before it could say why it could not start.
    """
    with socket.create_server(("127.0.0.1", 0)) as silent:
        fleet.environment["TEST_URL"] = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        worker = fleet.start("--processes", "1")
        # The supervisor connects as soon as the process has said what it serves, as it does.
        connections = [silent.accept()[0] for _ in range(2)]
        os.kill(worker.children()[0], signal.SIGKILL)
        wait_until(lambda: bool(worker.events("process_died")), "the supervisor sees its end")
    for connection in connections:
        connection.close()
    assert worker.process.wait(60) == 1  # the next process is refused, and says why
    assert worker.events("jobs_not_returned") == []


def test_every_client_and_worker_process_has_an_id_of_its_own(
    fleet: Fleet, server: Server, prefix: str, sync_client: SyncClient
) -> None:
    fleet.serve("--queue", "plain", processes=2)
    workers = sync_client.workers(["plain"])
    holders = {holder.id for holder in sync_client.queue("plain").clients()}
    assert holders == {worker.id for worker in workers}
    others = [SyncClient(server.url, prefix=prefix) for _ in range(2)]
    assert len({sync_client.id, *(other.id for other in others), *holders}) == 5
    assert len({worker.group for worker in workers}) == 1, "both have one supervisor"
    assert len({worker.pid for worker in workers}) == 2


def test_module_named_as_a_handler_brings_its_handler_and_fail_handler(
    fleet: Fleet, tmp_path: Path, sync_client: SyncClient
) -> None:
    (tmp_path / "letters.py").write_text(
        "from queasy import Failure\n"
        "def handle(data): return Failure('no') if data == 'bad' else print('handled', data)\n"
        "def handle_failure(data, job, error): print('gave up', data, job.id, error.message)\n"
    )
    (tmp_path / "shop.py").write_text(CLIENT + '\nemails.handler("letters", timeout=30)\n')
    worker = fleet.serve(processes=1, app=f"{tmp_path / 'shop.py'}:client")
    emails = sync_client.queue("emails")
    emails.dispatch("good")
    emails.dispatch("bad", id="b")
    wait_until(lambda: "handled good" in worker.log, "the handler ran")
    wait_until(lambda: "gave up bad b no" in worker.log, "the fail handler ran")
    assert worker.stop() == 0


def test_reload_runs_new_code_and_keeps_the_old_if_it_is_broken(
    fleet: Fleet, tmp_path: Path, sync_client: SyncClient
) -> None:
    pytest.importorskip("watchfiles", reason="reload is an extra: NOT TESTED")
    script = tmp_path / "shop.py"
    script.write_text(CLIENT + HANDLER)
    worker = fleet.serve("--reload", processes=1, app=f"{script}:client", folder=tmp_path)
    emails = sync_client.queue("emails")

    def dispatch_until(word: str) -> None:
        emails.dispatch(word)
        wait_until(lambda: f"{word} by" in worker.log, f"{word} is sent")

    dispatch_until("first")
    script.write_text(CLIENT + HANDLER.replace("sent", "posted"))
    wait_until(lambda: len(worker.events("process_serving")) == 2, "a new child serves")
    wait_until(lambda: len(worker.events("process_exited")) == 1, "the old one has ended")
    dispatch_until("second")
    script.write_text("this is not Python")
    wait_until(lambda: bool(worker.events("worker_start_failed")), "it cannot start")
    dispatch_until("third")
    script.write_text(CLIENT + HANDLER.replace("sent", "mailed"))
    wait_until(lambda: len(worker.events("process_serving")) == 3, "the next serves")
    wait_until(lambda: worker.log.count("process_exited") >= 2, "the previous process has ended")
    dispatch_until("fourth")
    said = [line for line in worker.log.splitlines() if " by " in line]
    assert [line.split()[0] for line in said] == ["sent", "posted", "posted", "mailed"]
    assert worker.stop() == 0


def test_process_over_its_memory_limit_is_replaced_after_its_jobs_end(
    fleet: Fleet, sync_client: SyncClient
) -> None:
    worker = fleet.serve("--queue", "plain", "--max-memory", "200M", processes=1)
    plain = sync_client.queue("plain")
    plain.dispatch({"leak": 200}, id="leaks")  # below the limit at which it is killed at once
    plain.dispatch({"sleep": 9}, id="beside")
    fleet.journal.wait_for("end", id="leaks")
    wait_until(lambda: bool(worker.events("process_exited")), "it is replaced")
    (end,) = fleet.journal.wait_for("end", id="beside")
    (start,) = fleet.journal.lines("start", id="beside")
    assert end["pid"] == start["pid"], "it ended where it started"
    assert "why=memory" in worker.events("process_retiring")[0]
    plain.dispatch({}, id="next")
    (next_,) = fleet.journal.wait_for("end", id="next")
    assert next_["pid"] != end["pid"]
    assert worker.stop() == 0


ASCII_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_worker_and_client_work_in_an_ascii_locale(
    fleet: Fleet, tmp_path: Path, sync_client: SyncClient
) -> None:
    """Bug: Python decoded the Lua files as ASCII, and the worker crashed and started for ever."""
    script = tmp_path / "shop.py"
    script.write_text(
        CLIENT.replace("emails", "größe") + HANDLER.replace("emails", "größe"), "utf-8"
    )
    fleet.environment |= ASCII_LOCALE
    dispatch = (
        "import os; from queasy import SyncClient\n"
        "client = SyncClient(os.environ['TEST_URL'], prefix=os.environ['TEST_PREFIX'])\n"
        "client.queue('gr\\u00f6\\u00dfe').dispatch('a'); client.close()\n"
    )
    subprocess.run([sys.executable, "-c", dispatch], env=fleet.environment, check=True)
    worker = fleet.serve("--queue", "größe", processes=1, app=f"{script}:client")
    wait_until(lambda: sync_client.queue("größe").counts().waiting == 0, "the job was taken")
    listed = subprocess.run(
        [sys.executable, "-m", "queasy", "workers", f"{script}:client"],
        env=fleet.environment, check=True, capture_output=True,
    )  # fmt: skip
    assert b"gr\\xf6\\xdfe" in listed.stdout
    assert worker.stop() == 0


def test_worker_whose_start_raises_an_unexpected_error_ends_with_1(
    fleet: Fleet, tmp_path: Path
) -> None:
    """Bug: the supervisor started another process for ever, and never said why."""
    script = tmp_path / "shop.py"
    broken = "\nimport socket\nsocket.gethostname = lambda: b'\\xe2'.decode('ascii')\n"
    script.write_text(CLIENT + HANDLER + broken)
    worker = fleet.start("--processes", "2", app=f"{script}:client")
    assert worker.process.wait(30) == 1
    assert "UnicodeDecodeError" in worker.log.splitlines()[-1]


@pytest.mark.parametrize("url", [None, ""])
@pytest.mark.parametrize("forbid", ["variable", "flag"])
@pytest.mark.parametrize("processes", ["0", "1"])
def test_worker_without_a_url_ends_with_1_if_the_embedded_server_is_forbidden(
    fleet: Fleet, tmp_path: Path, url: str | None, forbid: str, processes: str
) -> None:
    """Bug: a missing or empty QUEASY_URL started an embedded server on a production host."""
    script = tmp_path / "shop.py"
    script.write_text("import os\nfrom queasy import Client\n" + BARE_CLIENT + HANDLER)
    if url is not None:
        fleet.environment["QUEASY_URL"] = url
    flags = ["--processes", processes]
    if forbid == "variable":
        fleet.environment["QUEASY_EMBEDDED"] = "0"
    else:
        flags.append("--require-url")
    worker = fleet.start(*flags, app=f"{script}:client", folder=tmp_path)
    assert worker.process.wait(30) == 1
    assert "Set QUEASY_URL to the address of a server" in worker.log.splitlines()[-1]
    assert not (tmp_path / ".queasy").exists()


@pytest.mark.parametrize(("processes", "what"), [(0, "worker_started"), (1, "process_serving")])
def test_start_up_events_name_the_server(
    fleet: Fleet, server: Server, tmp_path: Path, processes: int, what: str
) -> None:
    """Bug: no line of the log said which server a worker used."""
    script = tmp_path / "shop.py"
    script.write_text(CLIENT + HANDLER)
    worker = fleet.serve(processes=processes, app=f"{script}:client")
    wait_until(lambda: bool(worker.events(what)), "it serves")
    (line,) = worker.events(what)
    assert f"server={target_of(server.url, None)}" in line
    assert worker.stop() == 0
