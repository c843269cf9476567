"""What the documents show is run; what they list is complete."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from queasy.store.keys import NAMES
from queasy.store.library import PREFIX, source

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


def test_the_programs_pass_a_strict_type_check(tmp_path: Path) -> None:
    for name, code in programs():
        (tmp_path / f"{name.replace('.', '_').replace('-', '_')}.py").write_text(code)
    (tmp_path / "demo.py").write_text((ROOT / "examples" / "demo.py").read_text())
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--level", "error", tmp_path],
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
