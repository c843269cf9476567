"""How a run ends, as a value: what handlers return or raise."""

import contextlib
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
from queasy.handler import HandlerOptions
from queasy.job import JobError
from queasy.outcomes import Fail, Finish, RetryLater
from queasy.worker.execution.executor import outcome_of, outcome_of_error


def test_retry_with_an_invalid_time_set_later_uses_the_backoff() -> None:
    """It could not be written, and held up every report of its queue."""
    verdict = Retry("later")
    verdict.after = timedelta(seconds=5)  # type: ignore[assignment]
    assert outcome_of(verdict) == RetryLater(outcome_of(verdict).error, None, 5.0)  # type: ignore[union-attr]
    verdict.after = "soon"  # type: ignore[assignment]
    assert outcome_of(verdict) == RetryLater(outcome_of(verdict).error)  # type: ignore[union-attr]


def test_retry_keeps_its_time_as_seconds() -> None:
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
def test_retry_with_an_invalid_time_is_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidTime, match=says):
        Retry("later", **arguments)


def test_failure_and_permanent_error_are_not_queasy_errors() -> None:
    assert Failure().message == ""
    assert (str(PermanentError("gone")), PermanentError("gone").message) == ("gone", "gone")
    assert issubclass(PermanentError, Failure)
    assert not issubclass(Failure, QueasyError)
    assert not issubclass(Retry, QueasyError)


def test_verdicts_survive_pickling() -> None:
    retry = pickle.loads(pickle.dumps(Retry("busy", after=5)))
    assert (retry.message, retry.at, retry.after) == ("busy", None, 5.0)
    assert pickle.loads(pickle.dumps(PermanentError("gone"))).message == "gone"


# What a result or an exception means for the job


class Busy(Exception):
    def __init__(self, retry_at: Any) -> None:
        super().__init__("busy")
        self.retry_at = retry_at


@pytest.mark.parametrize("result", [None, 0, False, "text", Exception("returned, not raised")])
def test_any_other_result_finishes_the_job(result: object) -> None:
    assert outcome_of(result) == Finish()


def test_failure_is_permanent_and_carries_its_message() -> None:
    for verdict in (Failure("gone"), PermanentError("gone")):
        outcome = outcome_of(verdict)
        assert isinstance(outcome, Fail)
        assert outcome.error is not None
        assert (outcome.error.kind, outcome.error.message) == ("permanent", "gone")
        assert outcome.error.type == type(verdict).__name__


def raising(on_exception: str) -> HandlerOptions:
    return HandlerOptions.of({"on_exception": on_exception})


def test_raised_verdict_means_the_same_as_a_returned_one() -> None:
    for verdict in (Retry("busy", after=5), Retry(at=1.9e9), Failure("gone")):
        for on_exception in ("retry", "fail"):
            assert outcome_of_error(verdict, raising(on_exception)) == outcome_of(verdict)


def test_exception_is_retried_or_fails_the_job_as_the_handler_asks() -> None:
    error = ValueError("not an address")
    retried, failed = (outcome_of_error(error, raising(choice)) for choice in ("retry", "fail"))
    assert retried == RetryLater(JobError.of(error))
    assert failed == Fail(JobError.of(error, "permanent"))


def test_exception_with_a_retry_at_is_retried_at_that_time() -> None:
    for at in (1.9e9, datetime.fromtimestamp(1.9e9, UTC)):
        for on_exception in ("retry", "fail"):
            outcome = outcome_of_error(Busy(at), raising(on_exception))
            assert isinstance(outcome, RetryLater)
            assert (outcome.at, outcome.after) == (1.9e9, None)


def test_exception_with_an_unusable_retry_at_is_retried_after_the_backoff() -> None:
    for at in ("soon", 60, math.nan):
        outcome = outcome_of_error(Busy(at), raising("fail"))
        assert isinstance(outcome, RetryLater)
        assert (outcome.at, outcome.after) == (None, None)


class Forwarding(Exception):
    """Looks attributes up in what it carries, as many classes do."""

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["extra"][name]


@pytest.mark.parametrize("cause", [None, KeyError("first")], ids=["alone", "with a cause"])
def test_exception_whose_attributes_cannot_be_read_is_recorded_as_itself(
    cause: Exception | None,
) -> None:
    """Bug: the job was retried for the KeyError of `error.retry_at`, and had no traceback."""
    outcome: Any = None
    try:
        raise Forwarding("refused") from cause
    except Forwarding as error:
        with contextlib.suppress(KeyError):  # pytest cannot show an error whose context it is
            outcome = outcome_of_error(error, raising("fail"))
    assert isinstance(outcome, Fail)
    assert outcome.error is not None
    assert (outcome.error.type, outcome.error.message) == ("Forwarding", "refused")
    assert "Forwarding: refused\n" in outcome.error.traceback  # Python 3.13 adds a line after it
