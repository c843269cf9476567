"""What the pages on reliability name exists, and agrees with the tests."""

import re

from tests.chaos.checker import PROMISES
from tests.chaos.scenes import SCENES
from tests.chaos.test_checker import (
    FALSE_HISTORIES,
    test_checker_reports_a_defect_of_the_final_state,
)
from tests.docs.pages import DOCS, ROOT

RELIABILITY = (DOCS / "reliability.md").read_text()
FAULTS = (DOCS / "internals" / "fault-injection.md").read_text()
BUGS = (DOCS / "internals" / "bugs-found.md").read_text()
NAMES = {
    name
    for path in (ROOT / "tests").rglob("*.py")
    for name in re.findall(r"^(?:async )?def (\w+)", path.read_text(), re.M)
}


def test_every_bug_has_a_test_that_exists() -> None:
    rows = [line.split(" | ") for line in BUGS.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 60
    for row in rows:
        kept = re.findall(r"`([\w/.]+)`", row[3])
        assert kept, row[0]
        for name in kept:
            assert name in NAMES or (ROOT / name).exists(), f"{name}: {row[0]}"


def test_every_scene_is_described() -> None:
    for name in SCENES:
        assert f"`{name}`" in FAULTS, name


def test_every_promise_is_reported_as_kept() -> None:
    for about in PROMISES.values():
        assert f"| {about} | **0** |" in RELIABILITY, about


def test_number_of_seeded_lies_is_the_documented_one() -> None:
    (mark,) = test_checker_reports_a_defect_of_the_final_state.pytestmark  # type: ignore[attr-defined]
    seeded = len(FALSE_HISTORIES) + len(mark.args[1])
    assert f"each of {seeded} seeded lies" in " ".join(FAULTS.split())


def test_make_targets_that_documents_name_exist() -> None:
    targets = re.findall(r"^make (\w+)", RELIABILITY + FAULTS, re.M)
    makefile = (ROOT / "Makefile").read_text()
    assert {"chaos", "soak", "faults"} <= set(targets)
    assert all(re.search(rf"^{target}:", makefile, re.M) for target in targets)
