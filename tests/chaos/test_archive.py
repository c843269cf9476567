"""Kept histories can be checked again; in the published ones every promise is kept."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.archive import read_archive, write_archive
from tests.chaos.checker import FinalState, check
from tests.chaos.history import Ended, Fault, Settled, Started, StillRunning

ROOT = Path(__file__).parents[2]
PUBLISHED = sorted((ROOT / "docs" / "histories").glob("*.history.xz"))


def test_archive_is_read_as_it_was_written(tmp_path: Path) -> None:
    events = [
        Fault(1.5, "kill worker process", (7,)),
        Fault(2.0, "freeze supervisor and workers", (8, 9), 3.0),
    ]
    final = FinalState([1], ["q: waiting a"], ["wrong"], ["left"], [(1.0, 2.0)], durable=True)
    write_archive(tmp_path / "a.history.xz", events, final)
    read, after = read_archive(tmp_path / "a.history.xz")
    assert read == events
    assert (list(after.failed), list(after.remaining)) == ([1], ["q: waiting a"])
    assert (list(after.excused), after.durable) == ([(1.0, 2.0)], True)


def test_archive_without_its_last_line_is_rejected(tmp_path: Path) -> None:
    write_archive(tmp_path / "a.history.xz", [], FinalState())
    (tmp_path / "b.history.xz").touch()
    assert read_archive(tmp_path / "a.history.xz")[0] == []
    with pytest.raises((ValueError, EOFError)):
        read_archive(tmp_path / "b.history.xz")


def test_three_histories_are_published() -> None:
    assert len(PUBLISHED) >= 3


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.name)
def test_published_history_keeps_every_promise(path: Path) -> None:
    command = [sys.executable, "-m", "tests.chaos", "--check", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "jobs that did not end within the drain time | **0** |" in done.stdout


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.name)
def test_run_removed_from_a_published_history_is_reported_as_lost(path: Path) -> None:
    events, final = read_archive(path)
    finished = next(
        event.id
        for event in events
        if isinstance(event, Settled) and event.outcome == "finished" and event.id.startswith("j")
    )
    incomplete = [
        event
        for event in events
        if not (
            isinstance(event, Started | StillRunning | Ended | Settled) and event.id == finished
        )
    ]
    assert check(incomplete, final).violations["lost"]
