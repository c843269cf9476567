"""A job and its error as values: what they show, what they cut short, what they never show."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queasy import Job, JobError, JsonCodec, UndecodablePayload
from queasy.job import MAX_MESSAGE_CHARACTERS, MAX_TRACEBACK_CHARACTERS
from tests.fuzz.strategies import ODD

JOB = Job(id="a", queue="emails", state="active", payload=b'{"to":"secret"}', codec=JsonCodec())


class Unshowable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def test_error_of_nothing_is_none() -> None:
    assert JobError.of(None) is None


def test_error_of_a_text_is_its_message() -> None:
    assert JobError.of("no use") == JobError(message="no use")
    assert JobError.of(5, "permanent") == JobError(message="5", kind="permanent")


def test_error_of_an_exception_has_its_type_message_and_traceback() -> None:
    error = JobError.of(raised(KeyError("password")), "permanent")
    assert error is not None
    assert (error.type, error.message, error.kind) == ("KeyError", "'password'", "permanent")
    assert "raise error" in error.traceback


def test_exception_that_cannot_be_shown_is_named_by_its_type() -> None:
    error = JobError.of(raised(Unshowable()))
    assert error is not None
    assert (error.type, error.kind) == ("Unshowable", "retriable")
    assert error.message == "<Unshowable that cannot be shown: RuntimeError>"


def test_error_with_wrong_fields_is_made_storable() -> None:
    odd = JobError(message=5, type="\ud800", kind="odd")  # type: ignore[arg-type]
    assert JobError.of(odd) == JobError(message="5", type="\\ud800", kind="retriable")


@given(ODD, ODD, ODD, st.text(st.characters(), max_size=50))
def test_any_error_is_made_storable(message: object, type_: object, kind: object, at: str) -> None:
    clean = JobError(type_, message, kind, at).clean()  # type: ignore[arg-type]
    for text in (clean.type, clean.message, clean.traceback):
        text.encode()
    assert clean.kind in ("permanent", "retriable", "stall", "timeout", "expiry", "broken")
    assert clean.clean() == clean


def test_message_keeps_its_start_and_traceback_its_end() -> None:
    error = JobError(
        message="a" + "x" * MAX_MESSAGE_CHARACTERS, traceback="x" * MAX_TRACEBACK_CHARACTERS + "z"
    ).clean()
    assert (len(error.message), error.message[0]) == (MAX_MESSAGE_CHARACTERS, "a")
    assert (len(error.traceback), error.traceback[-1]) == (MAX_TRACEBACK_CHARACTERS, "z")


def test_repr_of_a_job_never_shows_its_payload() -> None:
    assert "secret" not in repr(JOB)
    assert repr(JOB).startswith("Job(id='a', queue='emails', state='active'")


def test_data_of_a_job_is_its_payload_decoded() -> None:
    assert JOB.data == {"to": "secret"}
    assert Job(id="a", queue="q", state="due", payload=b"raw").data == b"raw"
    broken = Job(id="a", queue="q", state="due", payload=b"{", codec=JsonCodec())
    with pytest.raises(UndecodablePayload, match=r"'a'.*'q'"):
        _ = broken.data
