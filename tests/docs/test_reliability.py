"""What the page on reliability names is there."""

import re
from pathlib import Path

from tests.chaos.checker import PROMISES
from tests.chaos.scenes import SCENES
from tests.chaos.test_checker import (
    FALSE_HISTORIES,
    test_checker_reports_a_defect_of_the_final_state,
)

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()
TESTS = {
    name
    for path in (ROOT / "tests").rglob("*.py")
    for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.M)
}


def test_every_test_that_keeps_a_defect_mended_exists() -> None:
    named = re.findall(r"`(test_\w+)`", PAGE)
    assert len(named) > 20
    assert set(named) <= TESTS
    for path in re.findall(r"`(tests/[\w/]+(?:\.py)?/?)`", PAGE):
        assert (ROOT / path).exists(), path


def test_every_scene_and_every_promise_is_described() -> None:
    for name in SCENES:
        assert f"`{name}`" in PAGE, name
    for about in PROMISES.values():
        assert f"| {about} | **0** |" in PAGE, about


def test_the_lies_are_as_many_as_it_says() -> None:
    (left,) = (mark.args[1] for mark in test_checker_reports_a_defect_of_the_final_state.pytestmark)  # type: ignore[attr-defined]
    assert f"each of {len(FALSE_HISTORIES) + len(left)} seeded lies" in " ".join(PAGE.split())


def test_the_targets_it_names_are_in_the_makefile() -> None:
    targets = re.findall(r"^make (\w+)", PAGE, re.M)
    makefile = (ROOT / "Makefile").read_text()
    assert {"chaos", "soak", "faults"} <= set(targets)
    assert all(re.search(rf"^{target}:", makefile, re.M) for target in targets)
