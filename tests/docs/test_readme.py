"""The README is short before its first code, and its figures are those that were measured."""

import re

from tests.docs.pages import DOCS, ROOT

README = (ROOT / "README.md").read_text()
SCREEN, LINE, COLUMNS, ROW = 45, 24, 110, 1.5
"""Lines of a screen, pixels of a line, characters of a line, lines of a row of a table: roughly as
GitHub shows a README.
"""


def rendered_lines(text: str) -> float:
    lines = 0.0
    for block in filter(None, re.split(r"\n{2,}", text)):
        if picture := re.match(r'<img src="([^"]+)" width="(\d+)"', block):
            size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', (ROOT / picture[1]).read_text())
            assert size is not None
            lines += int(picture[2]) * float(size[2]) / float(size[1]) / LINE
        elif block.startswith("|"):
            lines += ROW * block.count("\n")  # the rule below the header is not a row
        else:
            shown = re.sub(r"\]\([^)]*\)", "]", block.replace("\n", " "))
            lines += -(-len(shown) // COLUMNS)
    return lines


def test_first_code_is_on_the_first_screen() -> None:
    assert rendered_lines(README.partition("```")[0]) <= SCREEN


def test_figures_stand_in_the_documents_that_measured_them() -> None:
    measured = "".join(page.read_text() for page in DOCS.glob("*.md"))
    rows = re.findall(r"^\|.*\|$", README.partition("```")[0], re.M)
    figures = [one for row in rows for one in re.findall(r"\d[\d,.]*\d", row)]
    assert len(figures) >= 8
    for figure in figures:
        assert re.search(rf"(?<![\d,.]){re.escape(figure)}(?![\d,.]*\d)", measured), figure


def test_its_two_commands_are_there() -> None:
    assert re.findall(r"^make (\w+)", README, re.M) == ["demo", "test"]
