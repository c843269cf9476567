"""The Lua library of the dialects keeps the rules of the native one."""

import re

import pytest

from queasy.interop.library import LIBRARY
from tests.store.test_library import HEADER, MOST_COLUMNS, MOST_LINES

FILES = sorted(LIBRARY.folder.glob("*.lua"))


def test_every_file_is_part_of_the_library() -> None:
    assert {file.stem for file in FILES} == set(LIBRARY.modules)


def test_every_registered_function_has_a_header() -> None:
    text = (LIBRARY.folder / "api.lua").read_text()
    registered = set(re.findall(r"^register\('(\w+)', API\.\1\b", text, re.MULTILINE))
    assert registered == set(HEADER.findall(text))
    assert len(registered) > 10


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
