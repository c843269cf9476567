"""The programs and commands in the documents are run."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from queasy import SyncClient
from queasy.cli import _parser
from tests.docs.pages import DOCS, ROOT, file_of, files_of_a_project, program, programs
from tests.servers import free_port, wait_until

ALONE = {
    name: code for name, code in programs().items() if "/" not in (file_of(code) or "")
}  # the others are parts of a project
LOGGED = {"docs/guides/testing.md-1": r"job\S* .*queue=emails job=wrong .*"}
"""What a program logs on purpose."""


def python(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=100
    )


@pytest.mark.parametrize("name", ALONE)
def test_program_in_a_document_runs_when_it_is_pasted(name: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(ALONE[name])
    done = python("-W", "error", "program.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(LOGGED.get(name, ""), done.stderr.strip()), done.stderr


def test_programs_and_examples_pass_a_strict_type_check(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)  # the same rules, and modules of a project found
    (tmp_path / "src").mkdir()
    for name, code in programs().items():
        file = tmp_path / "src" / (file_of(code) or re.sub(r"\W", "_", name) + ".py")
        file.parent.mkdir(exist_ok=True)
        file.write_text(code)
    check = ("-m", "basedpyright", "--level", "error", "--pythonpath", sys.executable)
    for folder, target in ((tmp_path, tmp_path / "src"), (ROOT, ROOT / "examples")):
        done = python(*check, target, cwd=folder)
        assert done.returncode == 0, done.stdout


def test_every_guide_begins_with_a_program_or_a_command() -> None:
    for page in (DOCS / "guides").glob("*.md"):
        if page.name != "security.md":  # its first example is a URL
            before = page.read_text().partition("```")[0]
            assert before.count("\n## ") <= 1, f"{page.name}: too much before the first example"


def test_demo_keeps_its_promises_and_draws_a_picture(tmp_path: Path) -> None:
    done = python(ROOT / "examples" / "demo.py", "--picture", "demo.svg", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every promise was kept." in done.stdout
    picture = (tmp_path / "demo.svg").read_text()
    assert "Every&#160;promise&#160;was&#160;kept." in picture
    assert "font-face" not in picture


def test_workers_of_the_readme_run_what_its_program_dispatches(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(program("app.py"))
    (tmp_path / "dispatch.py").write_text(program("dispatch.py"))
    assert "\nqueasy worker app:client\n" in (ROOT / "README.md").read_text()
    with running_worker(tmp_path, "app:client", "emails") as output:
        subprocess.run([sys.executable, "dispatch.py"], cwd=tmp_path, check=True, timeout=60)
        wait_until(lambda: "sending to bob@example.org" in output(), "both mails are sent")
        assert "sending to ada@example.org" in output()


def test_handlers_and_commands_of_the_guides_do_what_they_say(tmp_path: Path) -> None:
    (tmp_path / "handlers.py").write_text(program("handlers.py"))
    guides = "".join(page.read_text() for page in sorted((DOCS / "guides").glob("*.md")))
    commands = re.findall(r"^queasy (.* handlers:client.*)$", guides, re.M)
    orders = [line.partition("#")[0].split() for line in commands if "worker " not in line]
    assert {order[0] for order in orders} == {"workers", "unserve", "serve", "health"}
    orders.sort(key=lambda order: order[0] == "health")  # when all queues are served again
    with running_worker(tmp_path, "handlers:client", "emails") as output:
        with SyncClient(folder=tmp_path / ".queasy") as client:
            client.queue("emails").dispatch_many([{"to": "a@b.example"}, {"to": "nowhere"}])
        wait_until(lambda: "never sent: " in output(), "the fail handler ran")
        wait_until(lambda: "sending to a@b.example attempt 1" in output(), "the other is sent")
        for order in orders:
            done = python("-m", "queasy", *order, cwd=tmp_path)
            assert done.returncode == 0, done.stdout + done.stderr
            assert done.stderr == ""


def write_project(folder: Path) -> None:
    for file, code in files_of_a_project("shop").items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(code)


TEST_OF_A_PROJECT = """
import asyncio
import pytest
from queasy import SyncClient
from hasty import run_until_empty as run_for_a_second
from program import run_until_empty
from shop.handlers import client, confirmations, invoices


def test_order_is_confirmed(capsys):
    asyncio.run(confirm())
    assert "confirmed order-1" in capsys.readouterr().out


async def confirm():
    async with client:
        assert "{development}" not in str(client)
        await confirmations.dispatch({{"order": "order-1"}}, id="order-1")
        await run_until_empty(client, confirmations)


def test_handler_that_raises_ends_the_test():
    with pytest.raises(TimeoutError):
        asyncio.run(write_invoice_without_an_order())


async def write_invoice_without_an_order():
    async with client:
        await invoices.dispatch({{}})
        await run_for_a_second(client, invoices)


@pytest.mark.parametrize("time", [1, 2])
def test_begins_with_empty_queues(time):
    with SyncClient() as server:
        for queue in map(server.queue, (confirmations, invoices)):
            for one in (queue, queue.fail_queue):
                assert one.counts().waiting == 0
                one.dispatch({{"order": "left over"}})
"""


def test_project_of_the_layout_guide_is_tested_on_a_server_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUEASY_URL", "redis://127.0.0.1:1/shared")
    write_project(tmp_path)
    (tmp_path / "conftest.py").write_text(program("conftest.py"))
    (tmp_path / "program.py").write_text(program("test_emails.py"))
    hasty = program("test_emails.py").replace("asyncio.timeout(10)", "asyncio.timeout(1)")
    (tmp_path / "hasty.py").write_text(hasty)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_shop.py").write_text(
        TEST_OF_A_PROJECT.format(development=tmp_path / ".queasy")
    )
    with tempfile.TemporaryDirectory() as temporary:  # tmp_path may be too long for a socket
        monkeypatch.setenv("TMPDIR", temporary)
        done = python(
            "-m", "pytest", "-q", "-p", "no:asyncio", "-W", "error", "tests", cwd=tmp_path
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "4 passed" in done.stdout
        left = [*tmp_path.rglob(".queasy"), *Path(temporary).rglob(".queasy")]
    assert not left, "expected the server's folder to be removed"


def test_project_of_the_layout_guide_runs(tmp_path: Path) -> None:
    write_project(tmp_path)
    guide = (DOCS / "guides" / "project-layout.md").read_text()
    assert "\nqueasy worker shop.handlers:client\n" in guide
    assert "\npython -m shop.web\n" in guide
    port = str(free_port())
    log = tmp_path / "web.log"
    with log.open("wb") as errors:
        web = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "shop.web"],
            cwd=tmp_path, env={**os.environ, "PORT": port}, stderr=errors,
        )  # fmt: skip
    try:
        with running_worker(tmp_path, "shop.handlers:client", "invoices") as output:
            post = urllib.request.Request(f"http://127.0.0.1:{port}/order-17", method="POST")

            def ordered() -> bool:
                try:
                    with urllib.request.urlopen(post, timeout=30) as answer:
                        return answer.status == 202
                except urllib.error.URLError:  # it does not listen yet
                    assert web.poll() is None, log.read_text()
                    return False

            wait_until(ordered, "the web application dispatches")
            wait_until(lambda: "confirmed order-17" in output(), "the confirmation is sent")
            wait_until(lambda: "wrote the invoice of order-17" in output(), "the invoice is there")
    finally:
        web.terminate()
        web.wait()


def test_web_application_of_the_layout_guide_imports_no_handler() -> None:
    files = files_of_a_project("shop")
    assert sorted(files) == ["shop/handlers.py", "shop/queues.py", "shop/web.py"]
    assert "shop.handlers" not in files["shop/web.py"] + files["shop/queues.py"]


def test_services_of_the_deployment_guide_have_time_to_stop() -> None:
    page = (DOCS / "guides" / "deployment.md").read_text()
    started = re.search(r"^ExecStart=\S+/queasy (.*)$", page, re.M)
    in_list = re.search(r'command: \["queasy", ("worker".*)\]$', page, re.M)
    assert started is not None
    assert in_list is not None
    for words in (started[1].split(), re.findall(r'"(.*?)"', in_list[1])):
        grace = _parser().parse_args(words).grace
        for wait in re.findall(
            r"^(?:TimeoutStopSec=|terminationGracePeriodSeconds: )(\d+)$", page, re.M
        ):
            assert int(wait) >= grace + 15  # a worker is killed ten seconds after its grace


@contextmanager
def running_worker(folder: Path, app: str, queue: str) -> Generator[Callable[[], str]]:
    """Run `queasy worker` in a folder: gives what it printed so far, and stops it at the end."""
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "queasy", "worker", app, "--processes", "2"],
            cwd=folder, stdout=file, stderr=file, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    try:
        with SyncClient(folder=folder / ".queasy") as client:
            wait_until(lambda: len(client.workers([queue])) == 2, "both processes serve")
        yield log.read_text
        process.terminate()
        assert process.wait(30) == 0, log.read_text()
    except TimeoutError as late:
        late.add_note(log.read_text())
        raise
    finally:
        process.kill()
        process.wait()
