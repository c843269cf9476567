"""The report of several runs, as Markdown, and what it counts."""

from collections import Counter
from pathlib import Path

from tests.chaos.checker import FinalState, check
from tests.chaos.figures import Figures, count
from tests.chaos.history import read_folder
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


def test_runs_that_were_frozen_are_counted_from_the_logs_of_supervisors(tmp_path: Path) -> None:
    (tmp_path / "worker-1.log").write_text(
        '{"event":"process_frozen","runs":3,"pid":1}\n'
        '{"event":"process_frozen","runs":2,"pid":2}\n'
        '{"event":"process_thawed","runs":3,"pid":1}\n'
        '{"event":"process_died","why":"lost","runs":2,"pid":2}\n'
        '{"event":"process_died","why":"memory","runs":9,"pid":3}\n'
    )
    events = list(read_folder(tmp_path))
    counts = count("paths", "1", events, check(events, FinalState()), 1.0).counts
    frozen = (counts["runs frozen"], counts["runs thawed"])
    assert (*frozen, counts["runs killed after their lease was lost"]) == (5, 3, 2)
