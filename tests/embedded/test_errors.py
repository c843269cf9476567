"""Folders and servers that cannot be used raise an error that says what to do."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from queasy.errors import EmbeddedServerError
from queasy.store.embedded.server import ensure
from tests.embedded.processes import (
    AS_ROOT,
    fake_server,
    nothing_runs,
    wait_for,
)


def test_file_in_place_of_the_folder_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()

    for folder in (file, file / ".queasy"):
        with pytest.raises(EmbeddedServerError, match="cannot keep its data") as refused:
            ensure(folder)
        assert str(folder) in str(refused.value)
        assert "QUEASY_URL" in str(refused.value)


@pytest.mark.skipif(AS_ROOT, reason="root may write everywhere")
def test_read_only_folder_is_rejected(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(EmbeddedServerError, match=r"cannot keep its data.*QUEASY_URL"):
            ensure(tmp_path / ".queasy")
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.skipif(not AS_ROOT, reason="only root can change the owner of a folder")
def test_folder_of_another_user_is_rejected(folder: Path) -> None:
    folder.mkdir()
    os.chown(folder, 12345, -1)

    with pytest.raises(EmbeddedServerError, match="belongs to user 12345"):
        ensure(folder)


def test_folder_with_other_files_is_rejected_and_left_unchanged(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir(mode=0o755)
    (project / "main.py").touch()

    with pytest.raises(EmbeddedServerError, match=r"not a folder of Queasy.*main\.py"):
        ensure(project)
    assert [entry.name for entry in project.iterdir()] == ["main.py"]
    assert project.stat().st_mode & 0o777 == 0o755


def test_error_quotes_the_log_of_a_server_that_does_not_start(folder: Path) -> None:
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "appendonly.aof.manifest").write_text("not a manifest\n")

    with pytest.raises(EmbeddedServerError, match="it ended with status 1") as failed:
        ensure(folder)
    assert "manifest" in str(failed.value)
    assert str(folder / "server.log") in str(failed.value)
    wait_for(lambda: nothing_runs(folder), "the keeper to end")


@pytest.mark.usefixtures("no_wheel")
def test_error_names_a_server_that_exits_at_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = fake_server(tmp_path / "bin" / "valkey-server", "Valkey server v=9.0.0 sha=0")
    fake.write_text(fake.read_text() + "echo no such luck >&2; exit 3\n")
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")

    with pytest.raises(EmbeddedServerError, match=r"(?s)status 3.*no such luck") as failed:
        ensure(folder)
    assert str(fake) in str(failed.value)


def test_error_names_a_python_that_cannot_be_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for unusable in ("/nowhere/python", ""):  # an embedded interpreter has ""
        monkeypatch.setattr(sys, "executable", unusable)
        with pytest.raises(EmbeddedServerError, match=f"Python .'{unusable}'. could not be run"):
            ensure(folder)


def test_invalid_idle_time_is_rejected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for invalid in ("soon", "0", "-1", "nan", "inf"):
        monkeypatch.setenv("QUEASY_EMBEDDED_IDLE", invalid)
        with pytest.raises(EmbeddedServerError, match=f"expected seconds above 0, got '{invalid}'"):
            ensure(folder)


@pytest.mark.parametrize("name", ["server.log", "server.lock", "keeper.lock", "start.lock"])
def test_symbolic_link_in_the_folder_is_not_followed(
    folder: Path, tmp_path: Path, name: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder.mkdir(mode=0o700)
    (folder / ".gitignore").write_text("*\n")
    (folder / name).symlink_to(victim)
    with pytest.raises(EmbeddedServerError):
        ensure(folder)
    assert victim.read_text() == "precious"
    (folder / name).unlink()
