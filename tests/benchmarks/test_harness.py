"""The benchmark of Queasy, with so few jobs that its figures mean nothing: that it runs, so that
it can be trusted to run when they are to mean something. Its peers are not installed here.
"""

import json
import re
import sys
from pathlib import Path

import pytest
from benchmarks.harness import document
from benchmarks.harness.bench_server import bench_server
from benchmarks.harness.competitor import competitors
from benchmarks.harness.environment import PEERS, head
from benchmarks.harness.results import ALL, FIGURES, Results
from benchmarks.ours import OURS
from benchmarks.workloads import WORKLOADS, burst

from benchmarks import __main__ as program

SCALE = 0.0005  # 50 jobs

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the harness pins processes and reads /proc: NOT TESTED here"
)


# The others take as long again, and share their code with these.
QUICK = ["drain", "enqueue", "pickup", "burst", "bare"]
EXPECTED = set(FIGURES) - {"drain 2", "cpu"}
EXPECTED |= {"bare FCALL", "redis-py FCALL", "dispatch part", "lease part"}
SLOW = sorted({*WORKLOADS, *OURS} - set(QUICK))


@pytest.mark.parametrize(
    "workloads", [QUICK, pytest.param(SLOW, marks=pytest.mark.chaos)], ids=["quick", "slow"]
)
def test_a_run_of_queasy_alone_gives_its_figures(
    workloads: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "results.json"
    arguments = ["--rounds", "1", "--scale", str(SCALE), "--results", str(file)]
    chosen = ["--workloads", ",".join(workloads)]
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments, *chosen])

    assert program.main() == 0

    results = Results.load(file)
    found = set(results.figures["Queasy"])
    assert found == (EXPECTED if workloads == QUICK else set(ALL) - EXPECTED)
    assert all(results.best("Queasy", figure) is not None for figure in found)


@pytest.mark.parametrize("option", ["--peers", "--workloads"])
def test_a_name_that_nobody_has_is_refused_with_those_there_are(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks", option, "nobody"])
    with pytest.raises(SystemExit, match="2"):
        program.main()
    assert f"expected {option[2:]} among" in capsys.readouterr().err


def test_jobs_scheduled_too_late_are_scheduled_again_with_more_time() -> None:
    [queasy] = competitors([])
    queasy.set_up()
    queasy.about = queasy.about | {"lead": -20}  # due five seconds ago

    with bench_server() as server:
        found = burst.run(queasy, server, pinned=False, scale=SCALE)

    assert found["burst first"] > 0  # after its instant, as one that was due ahead


def test_the_document_and_its_plot_tell_what_was_measured(tmp_path: Path) -> None:
    names = {"Queasy": 1000.0, "Other": 100.0, "Careless": 500.0}
    promises = {"Careless": "at most once"}
    about = {
        "command": "python -m benchmarks",
        "date": "2026-11-15",
        "server": "Valkey 9",
        "python": "3.11",
        "cores": 2,
        "rounds": 2,
        "competitors": {
            name: {
                "packages": [f"{name}==1"],
                "promise": promises.get(name, "at least once"),
                "settings": "its best",
            }
            for name in names
        },
    }
    figures = {
        name: {figure: [(value, True), (value / 2, True)] for figure in FIGURES}
        for name, value in names.items()
    }
    file = tmp_path / "performance.md"
    file.write_text(f"before\n{document.BEGIN}\nold\n{document.END}\nafter\n")

    document.write(Results(about, json.loads(json.dumps(figures))), file)

    text = file.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    # The best peer of a drain is the best that loses nothing.
    assert "| 1,000 (50%) | Other 100 (50%) | 10.00 | at least 10 × | yes |" in text  # noqa: RUF001
    assert file.with_suffix(".svg").read_text().count(">Queasy<") == 8


@pytest.mark.parametrize("script", sorted(PEERS.glob("with_*")), ids=lambda script: script.stem)
def test_a_peer_says_what_it_is_and_pins_what_it_needs(script: Path) -> None:
    found = head(script)
    assert {"name", "promise", "settings", "jobs"} <= set(found["tool"]["bench"])
    assert all(re.search(r"(==|@)\d", dependency) for dependency in found["dependencies"])
