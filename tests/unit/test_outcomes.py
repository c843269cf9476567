"""How a run ends, as a value: what handlers return or raise."""

import math
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from queasy import (
    Failure,
    InvalidTime,
    PermanentError,
    QueasyError,
    Retry,
)
from queasy.outcomes import RetryLater
from queasy.worker.execution.executor import outcome_of


def test_a_retry_whose_time_was_changed_is_a_retry() -> None:
    """It could not be written, and held up every report of its queue."""
    verdict = Retry("later")
    verdict.after = timedelta(seconds=5)  # type: ignore[assignment]
    assert outcome_of(verdict) == RetryLater(outcome_of(verdict).error, None, 5.0)  # type: ignore[union-attr]
    verdict.after = "soon"  # type: ignore[assignment]
    assert outcome_of(verdict) == RetryLater(outcome_of(verdict).error)  # type: ignore[union-attr]


def test_a_retry_says_when() -> None:
    assert (Retry().message, Retry().at, Retry().after) == ("", None, None)
    retry = Retry("busy", after=timedelta(minutes=1))
    assert (str(retry), retry.message, retry.at, retry.after) == ("busy", "busy", None, 60.0)
    assert Retry(at=datetime(2030, 1, 1, tzinfo=UTC)).at == 1893456000.0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"at": 1e9, "after": 1}, "expected at or after, got both"),
        ({"at": 60}, "at: expected a time"),
        ({"at": datetime(2030, 1, 1)}, "at: expected an aware datetime"),
        ({"after": -1}, "after: expected 0 to"),
        ({"after": math.nan}, "after: expected 0 to"),
        ({"after": "5"}, "after: expected seconds or a timedelta"),
    ],
)
def test_a_retry_at_no_time_is_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidTime, match=says):
        Retry("later", **arguments)


def test_a_failure_has_two_names_and_neither_is_an_error_of_queasy() -> None:
    assert Failure().message == ""
    assert (str(PermanentError("gone")), PermanentError("gone").message) == ("gone", "gone")
    assert issubclass(PermanentError, Failure)
    assert not issubclass(Failure, QueasyError)
    assert not issubclass(Retry, QueasyError)


def test_verdicts_survive_pickling() -> None:
    retry = pickle.loads(pickle.dumps(Retry("busy", after=5)))
    assert (retry.message, retry.at, retry.after) == ("busy", None, 5.0)
    assert pickle.loads(pickle.dumps(PermanentError("gone"))).message == "gone"
