"""The benchmark harness: that it runs, with so few jobs that the metrics mean nothing.

Peers are not installed here.
"""

import json
import re
import sys
from pathlib import Path

import pytest
from benchmarks.harness import document
from benchmarks.harness.bench_server import bench_server
from benchmarks.harness.competitor import competitors
from benchmarks.harness.environment import PEERS, script_metadata
from benchmarks.harness.results import ALL, METRICS, Results
from benchmarks.ours import OURS
from benchmarks.workloads import WORKLOADS, burst

from benchmarks import __main__ as program

SCALE = 0.0005  # 50 jobs

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the harness pins processes and reads /proc: NOT TESTED here"
)


# The slow workloads take as long again, and share their code with these.
QUICK = ["drain", "enqueue", "pickup", "burst", "bare"]
EXPECTED = set(METRICS) - {"drain 2", "cpu", "plain", "sleep", "spin", "spin 2"}
EXPECTED |= {"bare FCALL", "redis-py FCALL", "dispatch ratio", "lease ratio"}
SLOW = sorted({*WORKLOADS, *OURS} - set(QUICK))


@pytest.mark.parametrize(
    "workloads", [QUICK, pytest.param(SLOW, marks=pytest.mark.chaos)], ids=["quick", "slow"]
)
def test_run_without_peers_measures_every_metric_of_its_workloads(
    workloads: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "results.json"
    arguments = ["--rounds", "1", "--scale", str(SCALE), "--results", str(file)]
    chosen = ["--workloads", ",".join(workloads)]
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments, *chosen])

    assert program.main() == 0

    results = Results.load(file)
    found = set(results.metrics["Queasy"])
    assert found == (EXPECTED if workloads == QUICK else set(ALL) - EXPECTED)
    assert all(results.best("Queasy", metric) is not None for metric in found)


@pytest.mark.parametrize("option", ["--peers", "--workloads"])
def test_unknown_name_is_rejected_with_the_list_of_known_names(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks", option, "unknown"])
    with pytest.raises(SystemExit, match="2"):
        program.main()
    assert f"expected {option[2:]} among" in capsys.readouterr().err


def test_burst_that_was_due_before_it_was_scheduled_is_repeated_with_more_time() -> None:
    [queasy] = competitors([])
    queasy.set_up()
    queasy.about = queasy.about | {"lead": -20}  # due five seconds before it is scheduled

    with bench_server() as server:
        found = burst.run(queasy, server, pinned=False, scale=SCALE)

    assert found["burst first"] > 0  # the first job started after the instant


def test_document_and_plot_show_the_measured_metrics(tmp_path: Path) -> None:
    names = {"Queasy": 1000.0, "Other": 100.0, "Lossy": 500.0}
    promises = {"Lossy": "at most once"}
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
    metrics = {
        name: {metric: [(value, True), (value / 2, True)] for metric in METRICS}
        for name, value in names.items()
    }
    file = tmp_path / "performance.md"
    file.write_text(f"before\n{document.BEGIN}\nold\n{document.END}\nafter\n")

    document.write(Results(about, json.loads(json.dumps(metrics))), file)

    text = file.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    # The peer for the drain is the best of those that deliver at least once.
    assert "| 1,000 (50%) | Other 100 (50%) | 10.00 | at least 10 × | yes |" in text  # noqa: RUF001
    assert file.with_suffix(".svg").read_text().count(">Queasy<") == 8


@pytest.mark.parametrize("script", sorted(PEERS.glob("with_*")), ids=lambda script: script.stem)
def test_peer_script_describes_itself_and_pins_its_dependencies(script: Path) -> None:
    found = script_metadata(script)
    assert {"name", "promise", "settings", "jobs"} <= set(found["tool"]["bench"])
    assert all(re.search(r"(==|@)\d", dependency) for dependency in found["dependencies"])
