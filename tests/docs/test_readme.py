"""The README is short before its first code, and its figures are those that were measured."""

import re

from tests.docs.pages import DOCS, ROOT

README = (ROOT / "README.md").read_text()
SCREEN = 40


def test_first_code_is_on_the_first_screen() -> None:
    before = README.partition("```")[0]
    assert before.count("\n") <= SCREEN


def test_figures_stand_in_the_documents_that_measured_them() -> None:
    measured = "".join(page.read_text() for page in DOCS.glob("*.md"))
    rows = re.findall(r"^\|.*\|$", README.partition("```")[0], re.M)
    figures = [one for row in rows for one in re.findall(r"\d[\d,.]*\d", row)]
    assert len(figures) >= 8
    for figure in figures:
        assert re.search(rf"(?<![\d,.]){re.escape(figure)}(?![\d,.]*\d)", measured), figure


def test_its_two_commands_are_there() -> None:
    assert re.findall(r"^make (\w+)", README, re.M) == ["demo", "test"]
