"""The command line with odd arguments: an exit code and a message, never a traceback."""

# ruff: noqa: E501 - a table of odd words

import contextlib
import io
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queasy.cli import main

WORDS = st.sampled_from([
    "worker", "workers", "serve", "unserve", "--version", "--help", "-h", "--processes", "--queue", "--grace",
    "--capacity", "--max-jobs", "--max-memory", "--log-level", "--log-format", "--json", "--worker", "--release",
    "0", "-1", "nan", "inf", "1e999", "99999999999999999999", "x", "", ":", "a:b", "os:path", "os:", ":x", "..:x",
    "a..b:c", "nowhere.py:x", "/dev/null:x", "json:dumps", "\0:x", "a\0b:c", "é:é", "512M", "9" * 5000, "1K", "-5G",
    "\ud800:x", "os:path.join", "q", "a{b",
])  # fmt: skip


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    yield
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.mark.parametrize("processes", ["-1", "1001"])
def test_processes_out_of_range_names_the_range(processes: str) -> None:
    with pytest.raises(SystemExit, match="from 0 to 1000"):
        main(["worker", "a:b", "--processes", processes])


@given(st.lists(WORDS, max_size=6))
@example(["worker", "..:x"])
@example(["worker", "a..b:c", "--processes", "0"])
@example(["workers", "\0:x"])
@example(["workers", "..:x"])
@example(["workers", "a..b:c"])
@example(["workers", "a\0b:c"])
@example(["serve", "\ud800:x", "q"])
@example(["workers", "\0.py:x"])
@example(["worker", "a:b", "--processes", "0", "--grace", "nan"])
def test_any_arguments_exit_with_a_code_and_a_message(arguments: list[str]) -> None:
    said, told = io.StringIO(), io.StringIO()
    path = list(sys.path)
    with (
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(told),
        pytest.raises(SystemExit) as ended,
    ):
        main(arguments)
    sys.path[:] = path
    code = ended.value.code
    assert (
        code is not None or "--help" in arguments or "-h" in arguments or "--version" in arguments
    )
    assert isinstance(code, (int, str, type(None)))
    if isinstance(code, str):
        assert code.startswith("queasy: ")
    assert "Traceback" not in told.getvalue()
