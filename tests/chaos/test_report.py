"""The report of several runs, as Markdown."""

from collections import Counter

from tests.chaos.figures import Figures
from tests.chaos.report import markdown


def figures(kills: int, lost: int) -> Figures:
    return Figures(
        scenes=Counter({"processes": 1}),
        counts=Counter({"runs": 1000 * kills, "dispatches refused": 0}),
        faults=Counter({"kill supervisor": kills}),
        violations=Counter({"lost": lost}),
        recovery={"job after kill supervisor": [13.0] * kills},
        seconds=90.0,
        seeds=[f"processes {kills}"],
    )


def test_report_of_several_runs_has_a_column_for_each_and_sums_the_violations() -> None:
    lines = list(markdown([figures(2, 0), figures(3, 1)]))

    assert "Run 2: 1 x processes in 90 seconds" in lines
    assert "| accepted jobs lost | **1** |" in lines
    assert "| fault | run 1 | run 2 |" in lines
    assert "| kill supervisor | 2 | 3 |" in lines
    assert "| runs | 2,000 | 3,000 |" in lines
    assert "| dispatches refused | 0 | 0 |" in lines
    recovery = "13.000 / 13.00 / 13.00"
    assert f"| job after kill supervisor | {recovery} (2) | {recovery} (3) |" in lines
