"""What the documents show is run; what they list is complete."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

import queasy
from queasy import SyncClient
from queasy.cli import _parser
from queasy.store.keys import NAMES
from queasy.store.library import PREFIX, source
from queasy.worker.supervision.watchdog import KILL_AFTER_GRACE
from tests.servers import wait_until

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def programs() -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for document in DOCUMENTS:
        for number, code in enumerate(
            re.findall(r"```python\n(.*?)```", document.read_text(), re.S)
        ):
            found.append((f"{document.name}-{number + 1}", code))
    return found


@pytest.mark.parametrize(("name", "code"), programs(), ids=[name for name, _ in programs()])
def test_a_program_in_a_document_runs_when_it_is_pasted(
    name: str, code: str, tmp_path: Path
) -> None:
    script = tmp_path / "program.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_the_programs_and_examples_pass_a_strict_type_check(tmp_path: Path) -> None:
    for name, code in programs():
        (tmp_path / f"{name.replace('.', '_').replace('-', '_')}.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--level", "error", tmp_path, ROOT / "examples"],
        cwd=ROOT, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_the_documents_show_programs() -> None:
    assert len(programs()) >= 4


def test_links_between_documents_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_make_targets_in_the_documents_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for document in DOCUMENTS:
        for target in re.findall(r"`make ([a-z-]+)", document.read_text()):
            assert re.search(rf"^{target}:", makefile, re.M), f"{document.name}: make {target}"


def test_the_protocol_names_every_key_and_function() -> None:
    protocol = (ROOT / "docs" / "protocol.md").read_text()
    functions = re.findall(r"^register\('(\w+)'", source(), re.M)
    assert len(functions) >= 20
    for function in functions:
        assert f"`{function}`" in protocol, f"{PREFIX}{function} is not in the protocol"
    for name in NAMES:
        assert f"`{name}`" in protocol, f"key {name} is not in the protocol"


def test_the_keys_are_in_the_same_order_in_lua_and_python() -> None:
    declared = re.search(r"local NAMES = \{(.*?)\}", source(), re.S)
    assert declared is not None
    assert tuple(re.findall(r"'(\w+)'", declared[1])) == NAMES


def test_the_demo_keeps_its_promises(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "demo.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every promise was kept." in done.stdout


def program(marker: str) -> str:
    """The program in the documents that begins with this comment."""
    (code,) = [code for _, code in programs() if code.startswith(f"# {marker}\n")]
    return code


def test_the_workers_of_the_readme_run_what_its_program_dispatches(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(program("app.py"))
    (tmp_path / "dispatch.py").write_text(program("dispatch.py"))
    assert "\nqueasy worker app:client\n" in (ROOT / "README.md").read_text()
    with running_worker(tmp_path, "app:client") as output:
        subprocess.run([sys.executable, "dispatch.py"], cwd=tmp_path, check=True, timeout=60)
        wait_until(lambda: "sending to bob@example.org" in output(), "both mails are sent")
        assert "sending to ada@example.org" in output()


def test_the_handlers_of_the_workers_page_do_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "handlers.py").write_text(program("handlers.py"))
    commands = re.findall(r"^queasy .*$", (ROOT / "docs" / "workers.md").read_text(), re.M)
    orders = [line.partition("#")[0].split()[1:] for line in commands if "worker " not in line]
    assert ["workers", "handlers:client"] in orders
    with running_worker(tmp_path, "handlers:client") as output:
        with SyncClient(folder=tmp_path / ".queasy") as client:
            client.queue("emails").dispatch_many([{"to": "a@b.example"}, {"to": "nobody"}])
        wait_until(lambda: "never sent: " in output(), "the fail handler ran")
        wait_until(lambda: "sending to a@b.example attempt 1" in output(), "the other is sent")
        for order in orders:
            done = subprocess.run(
                [sys.executable, "-m", "queasy", *order],
                cwd=tmp_path, capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            assert done.stderr == ""


def test_the_errors_of_a_dispatch_are_those_there_are() -> None:
    page = (ROOT / "docs" / "lifecycle.md").read_text()
    table = page.partition("## When a dispatch raises")[2].partition("\n## ")[0]
    named = {getattr(queasy, name) for name in re.findall(r"^\| `(\w+)`", table, re.M)}
    assert named >= {queasy.InvalidInput, queasy.Unreachable, queasy.Unanswered, queasy.NotDurable}
    rare = {queasy.ServerError, queasy.Unsupported, queasy.ProtocolError}
    tree = [queasy.ServerError]
    for kind in tree:
        tree += kind.__subclasses__()
    assert set(tree) - rare == named - {queasy.InvalidInput}


def test_the_services_of_the_workers_page_have_time_to_stop() -> None:
    page = (ROOT / "docs" / "workers.md").read_text()
    started = re.search(r"^ExecStart=\S+/queasy (.*)$", page, re.M)
    in_list = re.search(r'command: \["queasy", ("worker".*)\]$', page, re.M)
    assert started is not None
    assert in_list is not None
    for words in (started[1].split(), re.findall(r'"(.*?)"', in_list[1])):
        grace = _parser().parse_args(words).grace
        for wait in re.findall(
            r"^(?:TimeoutStopSec=|terminationGracePeriodSeconds: )(\d+)$", page, re.M
        ):
            assert int(wait) > grace + KILL_AFTER_GRACE


@contextmanager
def running_worker(folder: Path, app: str) -> Generator[Callable[[], str]]:
    """`queasy worker` in a folder; gives what it printed so far, and stops it in the end."""
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "queasy", "worker", app, "--processes", "2"],
            cwd=folder, stdout=file, stderr=file, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    try:
        wait_until(lambda: log.read_text().count("process_serving") == 2, "both children serve")
        yield log.read_text
        process.terminate()
        assert process.wait(30) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
