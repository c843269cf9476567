"""Progress and a summary for long test runs: `pytest -p tests.progress`.

Prints a line every 20 seconds, and at the end a summary that can be pasted into a document.
"""

from __future__ import annotations

import platform
import sys
import threading
import time
from collections import Counter

import pytest

EVERY = 20.0


class Progress:
    """Counts the tests of a run, in all processes of pytest-xdist."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._command = " ".join(["pytest", *config.invocation_params.args])
        self._began = time.monotonic()
        self._total = 0
        self._outcomes: Counter[str] = Counter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._print_regularly, daemon=True)

    def pytest_sessionstart(self) -> None:
        self._thread.start()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._total = max(self._total, len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._total = max(self._total, len(ids))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A test that passes counts by its call; failures and skips count wherever they happen.
        if report.when == "call" or report.outcome != "passed":
            self._outcomes[report.outcome] += 1

    def _print_regularly(self) -> None:
        while not self._stop.wait(EVERY):
            done = self._outcomes.total()
            left = max(0, self._total - done)
            self._write(f"\n{done} of {self._total} tests done, {left} left, {self._counts()}")

    def _write(self, line: str) -> None:
        writer = self._config.get_terminal_writer()
        writer.line(line)
        writer.flush()

    def _counts(self) -> str:
        minutes = (time.monotonic() - self._began) / 60
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in self._outcomes.items())
        return f"{outcomes or 'none finished'} in {minutes:.1f} minutes"

    def pytest_sessionfinish(self) -> None:
        self._stop.set()

    def pytest_terminal_summary(self) -> None:
        python = f"Python {platform.python_version()} on {sys.platform}"
        self._write(f"\n{self._command}\n  {python}: {self._counts()}")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # only in the process that prints
        config.pluginmanager.register(Progress(config))
