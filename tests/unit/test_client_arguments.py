"""The arguments of a client are checked when it is made: no server is contacted."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from queasy import (
    Client,
    InvalidInput,
    InvalidOption,
    InvalidQueue,
)
from tests.unit.ids import short

BAD_NAMES = [
    "",
    "a{b",
    "a}b",
    "a b",
    "a\tb",
    "a\nb",
    "a\0b",
    "a\x7fb",
    "x" * 201,
    5,
    None,
    "\ud800",
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_queue_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidQueue, match="queue name"):
        Client("redis://127.0.0.1:1").queue(name)
    with pytest.raises(InvalidQueue, match="prefix"):
        Client("redis://127.0.0.1:1", prefix=name)


@pytest.mark.parametrize(
    "arguments",
    [
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": math.nan},
        {"max_payload": 0},
        {"max_payload": "1"},
    ],
)
def test_bad_client_arguments_are_refused(arguments: dict[str, Any]) -> None:
    (name,) = arguments
    with pytest.raises(InvalidInput, match=name):
        Client("redis://127.0.0.1:1", **arguments)


def test_url_and_folder_together_are_refused() -> None:
    with pytest.raises(InvalidOption, match="got url and folder"):
        Client("redis://127.0.0.1:1", folder="somewhere")


@pytest.mark.parametrize("folder", [5, "", "a\0b"], ids=short)
def test_bad_folder_is_refused(folder: Any) -> None:
    with pytest.raises(InvalidOption, match="folder"):
        Client(folder=folder)


@pytest.mark.parametrize("lease", [0, 2.9, 601, "3", None, math.nan])
@pytest.mark.parametrize("processes", [0, 2])
def test_lease_of_a_worker_outside_its_range_is_refused(lease: Any, processes: int) -> None:
    client = Client("redis://127.0.0.1:1")
    client.queue("q").handler(lambda data: None)
    with pytest.raises(InvalidInput, match="lease: expected"):
        client.worker(lease=lease, processes=processes)


def test_command_line_refuses_a_lease_outside_its_range(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "queasy", "worker", "absent:client", "--lease", "2"]
    for processes in ("0", "2"):
        answer = subprocess.run(
            [*command, "--processes", processes], capture_output=True, text=True, cwd=tmp_path
        )
        assert answer.returncode == 1
        assert "lease: expected 3 to 600 seconds, got 2.0" in answer.stderr
