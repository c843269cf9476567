"""Tracebacks as text: equal to Python's own, from a cache. And floods of log lines."""

import logging
import traceback
from collections.abc import Callable

import pytest

from queasy import Failure
from queasy.trace import MAX_CACHED_STACKS, _stack_texts, trace_of
from queasy.worker.events import MAX_LINES_PER_SECOND, Flood, report_suppressed


class Own(Exception):
    pass


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def speechless() -> None:
    raise Speechless


def plain(text: str) -> None:
    raise ValueError(text)


def recursive(depth: int) -> None:
    if depth:
        recursive(depth - 1)
    raise Own("deep")


def chained() -> None:
    try:
        plain("first")
    except ValueError as error:
        raise Own("second") from error


def in_passing() -> None:
    try:
        plain("first")
    except ValueError:
        raise Own("second")  # noqa: B904 - that is the case


def hidden() -> None:
    try:
        plain("first")
    except ValueError:
        raise Own("second") from None


def noted() -> None:
    error = Own("noted")
    error.add_note("a note")
    raise error


def grouped() -> None:
    raise ExceptionGroup("several", [Own("a"), ValueError("b")])


def misspelt() -> None:
    "".lowre()  # type: ignore[attr-defined]


def raised_by(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError


CASES: dict[str, Callable[[], object]] = {
    "message": lambda: plain("text"),
    "two lines": lambda: plain("one\ntwo"),
    "no message": lambda: plain(""),
    "recursion": lambda: recursive(20),
    "chained": chained,
    "in passing": in_passing,
    "hidden": hidden,
    "noted": noted,
    "grouped": grouped,
    "misspelt": misspelt,
    "syntax": lambda: compile("1 +", "<text>", "exec"),
    "speechless": speechless,
    "exit": lambda: exec("raise SystemExit(3)"),
}


@pytest.mark.parametrize("case", CASES)
def test_traceback_text_equals_that_of_python(case: str) -> None:
    for _ in range(2):  # the second time from the cache
        error = raised_by(CASES[case])
        assert trace_of(error) == "".join(traceback.format_exception(error))


def test_traceback_of_an_exception_never_raised_equals_that_of_python() -> None:
    error = Failure("not raised")
    assert trace_of(error) == "".join(traceback.format_exception(error))


def test_same_place_with_another_message_is_not_confused() -> None:
    first, second = (raised_by(lambda text=text: plain(text)) for text in ("a", "b"))
    assert trace_of(first) != trace_of(second)


def test_traceback_cache_is_bounded() -> None:
    for n in range(MAX_CACHED_STACKS + 10):
        scope: dict[str, Callable[[], object]] = {}
        exec(f"def fails():\n    raise ValueError({n})", scope)
        trace_of(raised_by(scope["fails"]))
    assert len(_stack_texts) <= MAX_CACHED_STACKS


def test_flood_of_log_lines_is_suppressed_and_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("queasy.worker.events.time.monotonic", lambda: now)
    flood = Flood(logging.getLogger("queasy.test"), "lines")
    assert sum(flood.admit() for _ in range(MAX_LINES_PER_SECOND + 7)) == MAX_LINES_PER_SECOND
    report_suppressed(now)
    assert not caplog.messages
    now += 1.0
    report_suppressed(now)
    assert caplog.messages == ["log_lines_suppressed what=lines count=7"]
    assert flood.admit()


def test_suppressed_lines_are_reported_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    flood = Flood(logging.getLogger("queasy.test"), "lines")
    for _ in range(MAX_LINES_PER_SECOND + 1):
        flood.admit()
    report_suppressed()
    report_suppressed()
    assert caplog.messages == ["log_lines_suppressed what=lines count=1"]
    assert flood.admit()  # another worker of this process starts afresh
