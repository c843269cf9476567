"""Options of jobs: what is accepted, what is refused, and what the error says."""

import math
from datetime import timedelta
from typing import Any

import pytest

from queasy import InvalidOption, InvalidTime, JobOptions, Replicated
from queasy.options import seconds
from tests.unit.ids import short

NAN, INF = math.nan, math.inf
COUNTS = ("max_retries", "max_stalls", "max_timeouts", "max_expiries")
DURATIONS = ("min_backoff", "max_backoff", "timeout")
MOST = 2**31
LONGEST = 100 * 366 * 86_400


@pytest.mark.parametrize("name", COUNTS)
def test_count_from_zero_to_its_limit_is_kept(name: str) -> None:
    for value in (0, 1, MOST - 1, "unlimited", None):
        assert getattr(JobOptions(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "most"), [*((name, 2**31) for name in COUNTS), ("timeout", LONGEST)]
)
def test_largest_limit_is_no_limit(name: str, most: int) -> None:
    """The server has no other way to write "unlimited"."""
    assert JobOptions(**{name: most}) == JobOptions(**{name: "unlimited"})
    assert JobOptions(**{name: "unlimited"}).given() == {name: "unlimited"}


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [-1, 1.5, True, "3", MOST + 1, 2**40, NAN, [1]], ids=short)
def test_bad_count_is_refused_with_its_name_range_and_value(name: str, value: Any) -> None:
    with pytest.raises(
        InvalidOption, match=f"^{name}: expected .* 0 to {MOST}, or 'unl.*', got "
    ) as caught:
        JobOptions(**{name: value})
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize(
    ("value", "kept"),
    [(1, 1.0), (0.25, 0.25), (timedelta(minutes=2), 120.0), (LONGEST - 1, LONGEST - 1.0)],
    ids=short,
)
def test_duration_is_kept_as_seconds(name: str, value: Any, kept: float) -> None:
    found = getattr(JobOptions(**{name: value}), name)
    assert (found, type(found)) == (kept, float)


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize(
    "value", [-0.1, NAN, INF, -INF, LONGEST + 1, 10**400, timedelta(seconds=-1)], ids=short
)
def test_duration_out_of_range_is_refused_with_its_name_and_range(name: str, value: Any) -> None:
    expected = f"0 to {LONGEST} seconds"
    if name == "timeout":
        expected = "more than 0 seconds, or 'unlimited'"
    with pytest.raises(InvalidTime, match=f"^{name}: expected {expected}, got "):
        JobOptions(**{name: value})


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize("value", ["1s", True, [], b"1"], ids=short)
def test_duration_of_the_wrong_type_is_refused_with_its_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidTime, match=f"^{name}: expected seconds.* a timedelta.*, got "):
        JobOptions(**{name: value})


@pytest.mark.parametrize("value", [0, 0.0, timedelta(0)], ids=short)
def test_timeout_of_zero_is_refused_because_every_run_would_fail(value: Any) -> None:
    with pytest.raises(
        InvalidOption, match=r"^timeout: expected more than 0 seconds, or 'unlimited'"
    ):
        JobOptions(timeout=value)
    assert JobOptions(min_backoff=value, max_backoff=value).given() == {
        "min_backoff": 0.0,
        "max_backoff": 0.0,
    }


def test_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="colour"):
        JobOptions(colour="red")  # type: ignore[call-arg]


def test_given_options_are_those_with_a_value() -> None:
    assert JobOptions().given() == {}
    options = JobOptions(max_retries=0, min_backoff=timedelta(seconds=2), timeout=None)
    assert options.given() == {"max_retries": 0, "min_backoff": 2.0}


def test_equal_options_are_equal_however_they_were_written() -> None:
    assert JobOptions(timeout=timedelta(seconds=5)) == JobOptions(timeout=5)
    assert len({JobOptions(timeout=5), JobOptions(timeout=5.0), JobOptions()}) == 2


def test_options_cannot_be_changed_afterwards() -> None:
    with pytest.raises(AttributeError):
        JobOptions().timeout = 5  # type: ignore[misc]


def test_negative_zero_seconds_are_plain_zero() -> None:
    """Bug: a delay of -0.0 was sent to the server as "+-0.0"."""
    assert str(seconds(-0.0, "delay")) == "0.0"


def test_number_of_replicas_is_kept_and_is_one_by_default() -> None:
    assert (Replicated().replicas, Replicated(2).replicas) == (1, 2)
    assert len({Replicated(2), Replicated(2), Replicated(3)}) == 2


@pytest.mark.parametrize("value", [0, -1, 1001, 1.5, True, "2", None], ids=short)
def test_bad_number_of_replicas_is_refused(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^replicas: expected a whole number from 1 to 1000"):
        Replicated(value)
