"""The Lua library is put together from modules, and stays within the limits of Lua 5.1."""

import re
from pathlib import Path

import pytest

from queasy.store import library

FOLDER = Path(library.__file__).parent / "lua"
MOST_NAMES = 100  # Lua 5.1 has room for 200
MOST_COLUMNS = 100
MOST_LINES = 55
TOKEN = re.compile(r"--[^\n]*|'(?:[^'\\\n]|\\.)*'|[A-Za-z_]\w*|[^\sA-Za-z_]")
OPENING = {"function", "do", "if", "repeat"}
CLOSING = {"end", "until"}
HEADER = re.compile(
    r"^-- (\w+): [^\n]+\n(?:-- \S[^\n]*\n)*--   keys +\S.*?--   args +\S.*?--   reply +\S.*?"
    r"--   writes \S.*?\nfunction API\.\1\(",
    re.MULTILINE | re.DOTALL,
)


def names_at_the_top(text: str) -> list[str]:
    """The names that `local` declares outside every block."""
    tokens = [token for token in TOKEN.findall(text) if not token.startswith(("--", "'"))]
    names: list[str] = []
    depth = 0
    for at, token in enumerate(tokens):
        if token == "local" and depth == 0:
            after = at + 2 if tokens[at + 1] == "function" else at + 1
            names.append(tokens[after])
            while tokens[after + 1 : after + 2] == [","]:
                after += 2
                names.append(tokens[after])
        depth += (token in OPENING) - (token in CLOSING)
    assert depth == 0, "the blocks do not match"
    return names


def test_names_at_the_top_are_those_outside_of_blocks() -> None:
    text = "local a, b = 1\nlocal function c(x)\n  local d\n  if x then local e end\nend\nlocal f"
    assert names_at_the_top(text) == ["a", "b", "c", "f"]


def test_the_library_leaves_room_for_names_at_the_top() -> None:
    names = names_at_the_top(library.source())
    assert set(library.MODULES) <= set(names)
    assert len(names) <= MOST_NAMES, names


def test_every_file_is_part_of_the_library() -> None:
    assert {file.stem for file in FOLDER.glob("*.lua")} == {"prelude", *library.MODULES}


@pytest.mark.parametrize("name", [name for name in library.MODULES if name != "api"])
def test_a_module_declares_its_exports_and_each_of_them_is_used(name: str) -> None:
    text = (FOLDER / f"{name}.lua").read_text()
    declared = re.search(r"\nreturn \{\n(.*)\n\}\n$", text, re.DOTALL)
    assert declared is not None
    exports = set(re.findall(r"(\w+) = ", declared[1]))
    others = "".join((FOLDER / f"{other}.lua").read_text() for other in library.MODULES)
    used = set(re.findall(rf"(?<![\w.]){name}\.(\w+)", others))
    assert exports <= used, "an export that no module uses"


def test_every_registered_function_has_a_header() -> None:
    text = (FOLDER / "api.lua").read_text()
    registered = set(re.findall(r"^register\('(\w+)', \w+, API\.\1\b", text, re.MULTILINE))
    assert registered == set(HEADER.findall(text))
    assert len(registered) > 20


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.lua")), ids=lambda file: file.stem)
def test_lines_and_functions_are_short(file: Path) -> None:
    lines = file.read_text().splitlines()
    assert [line for line in lines if len(line) > MOST_COLUMNS] == []
    begin = 0
    for number, line in enumerate(lines):
        if re.match(r"(local )?function ", line):
            begin = number
        if line == "end":
            assert number - begin < MOST_LINES, lines[begin]
