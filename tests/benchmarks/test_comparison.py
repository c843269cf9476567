"""`--against`: which options are accepted, how ratios are computed, and when a run fails."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.harness.comparison import Comparison, ratio
from benchmarks.harness.competitor import ROOT, other_code
from benchmarks.harness.results import Results

from benchmarks import __main__ as program

OTHER = "Queasy at old"


def compared(*rounds: tuple[dict[str, float], dict[str, float]]) -> tuple[Comparison, Results]:
    """The comparison and the results of rounds, each given as the metrics of both codes."""
    results = Results({}, {"Queasy": {}, OTHER: {}})
    comparison = Comparison(OTHER)
    for pair in rounds:
        comparison.add(*pair)
        for name, found in zip(("Queasy", OTHER), pair, strict=True):
            for metric, value in found.items():
                results.metrics[name].setdefault(metric, []).append((value, True))
    return comparison, results


@pytest.mark.parametrize(
    ("metric", "ours", "theirs", "expected"),
    [
        ("drain", 200.0, 100.0, 2.0),
        ("pickup p50", 2.0, 1.0, 0.5),  # milliseconds: less is better
        ("supervisor", 0.0, 0.0, 1.0),
        ("supervisor", 0.0, 0.5, float("inf")),
    ],
)
def test_ratio_is_above_one_where_this_code_is_better(
    metric: str, ours: float, theirs: float, expected: float
) -> None:
    assert ratio(metric, ours, theirs) == expected


def test_table_shows_the_median_of_the_rounds_and_the_ratio_of_the_best_rounds() -> None:
    comparison, results = compared(
        ({"drain": 90.0}, {"drain": 100.0}),
        ({"drain": 120.0}, {"drain": 100.0}),
        ({"drain": 99.0}, {"drain": 110.0}),
    )

    table = comparison.table(results)

    assert "| drain, 1 process, jobs/s | 120 | 110 | 0.90 | 1.09 | 0.90 to 1.20 |" in table
    assert "None of 1 metrics is below 0.95" in table


def test_metric_is_slower_only_if_median_and_best_are_both_below_the_limit() -> None:
    comparison, results = compared(
        ({"drain": 80.0, "bulk": 80.0}, {"drain": 100.0, "bulk": 100.0}),
        ({"drain": 80.0, "bulk": 100.0}, {"drain": 100.0, "bulk": 100.0}),
        ({"drain": 80.0, "bulk": 80.0}, {"drain": 100.0, "bulk": 100.0}),
    )

    assert comparison.slower(results) == ["drain"]
    assert "1 of 2 metrics below 0.95 of Queasy at old: drain" in comparison.table(results)


def test_metrics_of_the_bare_server_are_controls_and_never_count_as_slower() -> None:
    comparison, results = compared(({"blpop p50": 2.0}, {"blpop p50": 1.0}))

    assert comparison.slower(results) == []
    assert "(control)" in comparison.table(results)


def test_workload_that_failed_with_one_code_has_no_ratio() -> None:
    comparison, _ = compared(({"drain": 1.0}, {}))

    assert comparison.ratios == {}


def test_other_code_is_imported_from_its_checkout(tmp_path: Path) -> None:
    package = tmp_path / "old" / "src" / "queasy"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()

    other = other_code(tmp_path / "old")

    assert other.name == OTHER
    assert other.environment["PYTHONPATH"].startswith(str(tmp_path / "old" / "src"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--against", "/nowhere"], "expected a checkout with src/queasy in it, got /nowhere"),
        (["--against", str(ROOT), "--document"], "expected --against or --document, got both"),
    ],
)
def test_wrong_use_of_against_is_rejected(
    arguments: list[str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    with pytest.raises(SystemExit, match="2"):
        program.parse()
    assert expected in capsys.readouterr().err


def test_order_of_the_codes_is_swapped_every_round_in_both_placements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--workloads", "drain", "--against", str(ROOT)])
    options, [queasy], other = program.parse()
    assert other is not None
    run = program.Program(options, [queasy], other)
    run.server = run.other_server = None  # type: ignore[assignment]
    run.results = SimpleNamespace(add=lambda *_, **__: None)  # type: ignore[assignment]
    seen: list[tuple[bool, bool]] = []

    def workload(competitor: Any, server: Any, *, pinned: bool, scale: float) -> dict[str, float]:
        seen.append((competitor is queasy, pinned))
        return {"drain": 1.0}

    monkeypatch.setitem(program.ALL, "drain", workload)
    for number in range(4):
        run._run_round(number, [queasy])

    first_of_each_round = seen[::2]
    assert first_of_each_round == [(True, True), (False, True), (True, False), (False, False)]
    assert run.comparison is not None
    assert run.comparison.ratios == {"drain": [1.0] * 4}


@pytest.mark.skipif(sys.platform != "linux", reason="the harness pins processes: NOT TESTED here")
def test_run_against_this_very_checkout_prints_a_table_of_ratios(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--rounds", "1", "--scale", "0.0005", "--workloads", "drain,bare"]
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments, "--against", str(ROOT)])

    assert program.main() in (0, 1)  # so few jobs may well differ by 5%

    printed = capsys.readouterr().out
    assert f"| metric | Queasy | Queasy at {ROOT.name} | median ratio |" in printed
    assert "| drain, 1 process, jobs/s |" in printed
    assert "one awaited dispatch / bare FCALL" in printed
