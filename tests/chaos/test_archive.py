"""Histories that are kept can be checked again; those that are published keep every promise."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.archive import read_archive, write_archive
from tests.chaos.checker import Aftermath, check
from tests.chaos.history import Alive, Ended, Fault, Settled, Started

ROOT = Path(__file__).parents[2]
PUBLISHED = sorted((ROOT / "docs" / "histories").glob("*.history.xz"))


def test_a_history_is_read_as_it_was_written(tmp_path: Path) -> None:
    events = [Fault(1.5, "kill child", (7,)), Fault(2.0, "freeze worker", (8, 9), 3.0)]
    aftermath = Aftermath([1], ["q: waiting a"], ["wrong"], ["left"], [(1.0, 2.0)], durable=True)
    write_archive(tmp_path / "a.history.xz", events, aftermath)
    read, after = read_archive(tmp_path / "a.history.xz")
    assert read == events
    assert (list(after.given_up), list(after.remaining)) == ([1], ["q: waiting a"])
    assert (list(after.forgiven), after.durable) == ([(1.0, 2.0)], True)


def test_a_history_without_its_end_is_refused(tmp_path: Path) -> None:
    write_archive(tmp_path / "a.history.xz", [], Aftermath())
    (tmp_path / "b.history.xz").touch()
    assert read_archive(tmp_path / "a.history.xz")[0] == []
    with pytest.raises((ValueError, EOFError)):
        read_archive(tmp_path / "b.history.xz")


def test_some_are_published() -> None:
    assert len(PUBLISHED) >= 3


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.name)
def test_what_is_published_keeps_every_promise(path: Path) -> None:
    command = [sys.executable, "-m", "tests.chaos", "--check", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "jobs still there when all had time to end | **0** |" in done.stdout


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.name)
def test_what_is_left_out_of_what_is_published_is_missed(path: Path) -> None:
    events, aftermath = read_archive(path)
    finished = next(
        event.id
        for event in events
        if isinstance(event, Settled) and event.word == "finished" and event.id.startswith("j")
    )
    told = [
        event
        for event in events
        if not (isinstance(event, Started | Alive | Ended | Settled) and event.id == finished)
    ]
    assert check(told, aftermath).broken["lost"]
