"""The Lua libraries of the dialects keep the rules of the native one."""

import re

import pytest

from queasy.interop.library import LIBRARY
from queasy.interop.node_library import NODE
from queasy.store.library import Library
from tests.store.test_library import HEADER, MOST_COLUMNS, MOST_LINES

LIBRARIES = [LIBRARY, NODE]
FILES = sorted(file for library in LIBRARIES for file in library.folder.glob("*.lua"))


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_every_file_is_part_of_the_library(library: Library) -> None:
    assert {file.stem for file in library.folder.glob("*.lua")} == set(library.modules)


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_every_registered_function_has_a_header(library: Library) -> None:
    text = (library.folder / "api.lua").read_text()
    registered = set(re.findall(r"^register\('(\w+)', API\.\1\b", text, re.MULTILINE))
    assert registered == set(HEADER.findall(text))
    assert len(registered) >= 8


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_lines_and_functions_are_short(file: object) -> None:
    lines = file.read_text().splitlines()  # type: ignore[attr-defined]
    assert [line for line in lines if len(line) > MOST_COLUMNS] == []
    begin = 0
    for number, line in enumerate(lines):
        if re.match(r"(local )?function ", line):
            begin = number
        if line == "end":
            assert number - begin < MOST_LINES, lines[begin]
