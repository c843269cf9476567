"""What the record of an error keeps of an exception, and what it never keeps."""

import enum
import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given

from queasy import Failure, JobError, Retry, redact_secrets
from queasy.attributes import has_details
from queasy.store.records import pack_ending
from tests.fuzz.strategies import ODD


class Carrying(Exception):
    def __init__(self, **attributes: Any) -> None:
        super().__init__("no")
        vars(self).update(attributes)


class Coded(Exception):
    code = "E42"
    _hidden = 1

    @property
    def computed(self) -> str:
        raise AssertionError("properties run code")


class Slotted(Exception):
    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


class Colour(enum.IntEnum):
    RED = 3


class State(enum.Enum):
    OPEN = "open"


def of(error: BaseException, **more: Any) -> JobError:
    made = JobError.of(error, **more)
    assert made is not None
    return made


def caught(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as raised:
        return raised


@pytest.mark.parametrize(
    ("error", "attributes"),
    [
        (ValueError("no"), {}),
        (KeyError("k"), {}),
        (Carrying(code=5, reason="full", fine=True), {"code": 5, "reason": "full", "fine": True}),
        (Carrying(ratio=0.5), {"ratio": 0.5}),
        (Carrying(none=None, _private=1, function=print, raw=b"x"), {}),
        (Carrying(body={"a": [1, (2,), {"b": None}]}), {"body": {"a": [1, [2], {"b": None}]}}),
        (Carrying(colour=Colour.RED), {"colour": 3}),
        (Carrying(big=2**70, nan=math.nan, far=math.inf), {}),
        (OSError(28, "full", "/x"), {"errno": 28, "strerror": "full", "filename": "/x"}),
        (SystemExit(3), {"code": 3}),
        (Coded("no"), {"code": "E42"}),
        (Slotted("full"), {"reason": "full"}),
        (Retry("busy", after=3), {}),
        (Failure("gone"), {}),
    ],
)  # fmt: skip
def test_error_has_the_attributes_of_its_exception_that_json_has(
    error: BaseException, attributes: dict[str, Any]
) -> None:
    assert of(error).attributes == attributes
    assert of(caught(error)).attributes == attributes
    json.dumps(attributes, allow_nan=False)


def test_attributes_of_a_failure_of_ones_own_class_are_kept() -> None:
    class Declined(Failure):
        def __init__(self, code: int) -> None:
            super().__init__("declined")
            self.code = code

    assert of(Declined(51)).attributes == {"code": 51}


@pytest.mark.parametrize(
    "name",
    ["password", "db_password", "PASSWD", "secret", "client_secret", "token", "access_token",
     "apiKey", "api-key", "authorization", "Cookie", "credentials", "sessionId", "private_key"],
)  # fmt: skip
def test_secret_is_redacted_also_inside_a_value(name: str) -> None:
    found = of(Carrying(**{name: "hunter2", "headers": {name: "hunter2", "host": "a"}})).attributes
    assert found == {name: "[redacted]", "headers": {name: "[redacted]", "host": "a"}}
    assert b"hunter2" not in pack_ending("", of(Carrying(**{name: ["hunter2"]})))


def test_password_in_a_url_is_redacted() -> None:
    found = of(Carrying(dsn="postgres://u:hunter2@h/db, http://x:y/@", urls=["redis://:p@h"]))
    assert found.attributes == {
        "dsn": "postgres://u:[redacted]@h/db, http://x:y/@", "urls": ["redis://:[redacted]@h"],
    }  # fmt: skip


def test_own_redaction_replaces_the_default() -> None:
    def redact(name: str, value: object) -> object:
        return len(str(value)) if name == "card" else redact_secrets(name, value)

    error = Carrying(card="4000", token="t", tokens=5)
    assert of(error, redact=redact).attributes == {
        "card": 4, "token": "[redacted]", "tokens": "[redacted]",
    }  # fmt: skip
    assert of(error, redact=lambda name, value: value).attributes["token"] == "t"
    made = of(error, redact=lambda name, value: value)
    assert JobError.of(made) == made, "an error that was made is not redacted again"


def test_value_is_redacted_when_its_redaction_fails() -> None:
    def broken(name: str, value: object) -> object:
        raise RuntimeError(str(value))

    assert of(Carrying(card="4000"), redact=broken).attributes == {"card": "[redacted]"}


def test_attributes_are_bounded_in_number_length_and_depth() -> None:
    many = of(Carrying(**{f"a{n}": n for n in range(50)}))
    assert len(many.attributes) == 20
    assert of(Carrying(text="x" * 9999)).attributes == {"text": "x" * 500}
    assert len(of(Carrying(items=list(range(999)))).attributes["items"]) == 20
    large = of(Carrying(**{f"a{n}": "x" * 500 for n in range(20)}))
    assert len(json.dumps(large.attributes)) <= 4_000
    loop: dict[str, Any] = {"a": 1}
    loop["self"] = loop
    assert "a" in of(Carrying(loop=loop)).attributes["loop"]
    assert len(pack_ending("", large)) < 16_000


def test_error_has_the_chain_of_its_causes() -> None:
    first = caught(OSError(28, "no space"))
    second = caught(Carrying(code=5), first)
    error = of(caught(ValueError("no"), second), kind="permanent")
    assert [(cause.type, cause.message) for cause in error.causes] == [
        ("Carrying", "no"), ("OSError", "[Errno 28] no space"),
    ]  # fmt: skip
    assert error.causes[0].attributes == {"code": 5}
    assert error.causes[1].attributes["errno"] == 28
    assert {cause.kind for cause in error.causes} == {"permanent"}


def test_members_of_a_group_are_its_causes() -> None:
    """So the code of an error that was raised in an `asyncio.TaskGroup` is recorded."""
    inner = ExceptionGroup("in", [KeyError("a")])
    group = caught(ExceptionGroup("out", [Carrying(code=51), inner]), OSError(28, "no"))
    error = of(group)
    assert [cause.type for cause in error.causes] == [
        "Carrying", "ExceptionGroup", "OSError", "KeyError",
    ]  # fmt: skip
    assert error.causes[0].attributes == {"code": 51}
    many = ExceptionGroup("many", [ValueError(str(number)) for number in range(99)])
    assert len(of(many).causes) == 5


def test_values_that_have_a_text_are_recorded_as_it() -> None:
    carried = of(
        Carrying(
            at=datetime(2026, 11, 20, tzinfo=UTC), price=Decimal("1.50"), id=UUID(int=5),
            state=State.OPEN, codes={7},
        )
    ).attributes  # fmt: skip
    assert carried == {
        "at": "2026-11-20 00:00:00+00:00",
        "price": "1.50",
        "id": "00000000-0000-0000-0000-000000000005",
        "state": "open",
        "codes": [7],
    }


@pytest.mark.parametrize(("suppress", "causes"), [(False, ["KeyError"]), (True, [])])
def test_error_raised_while_another_is_handled_has_it_as_its_cause_unless_suppressed(
    suppress: bool, causes: list[str]
) -> None:
    def again() -> None:
        try:
            raise KeyError("a")
        except KeyError:
            if suppress:
                raise ValueError("no") from None
            raise ValueError("no")  # noqa: B904

    with pytest.raises(ValueError, match="no") as info:
        again()
    assert [cause.type for cause in of(info.value).causes] == causes


def test_chain_is_bounded_and_may_be_a_circle() -> None:
    error: BaseException = ValueError("0")
    for number in range(1, 20):
        error = caught(ValueError(str(number)), error)
    assert [cause.message for cause in of(error).causes] == ["18", "17", "16", "15", "14"]
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert [cause.message for cause in of(one).causes] == ["two"]


def test_exception_whose_attributes_raise_is_recorded_without_them() -> None:
    class Rude(Exception):
        code = 5

        def __getattribute__(self, name: str) -> Any:
            if name == "code":
                raise RuntimeError("no")
            return super().__getattribute__(name)

    assert of(Rude("x")).message == "x"


@given(ODD)
def test_any_attribute_is_made_storable(value: object) -> None:
    error = of(Carrying(value=value, nested={"a": [value]}))
    assert pack_ending("", error)
    made = JobError(attributes={"value": value}, causes=(value,)).clean()  # type: ignore[arg-type]
    assert made.clean() == made
    assert pack_ending("", made)


def test_error_without_details_is_recorded_as_before() -> None:
    """Older clients, and the fast path of the server, know only these fields."""
    plain = of(caught(ValueError("no")))
    assert not has_details(ValueError("no"))
    record = msgspec.msgpack.decode(pack_ending("", plain))
    assert set(record["error"]) == {"type", "message", "traceback"}


def test_details_are_texts_on_the_wire_which_older_clients_ignore() -> None:
    """A client of revision 9 reads an error as a map of texts. It refuses any other job."""
    detailed = of(caught(Carrying(code=5), KeyError("k")))
    record = msgspec.msgpack.decode(pack_ending("", detailed), type=dict[str, dict[str, str]])
    assert json.loads(record["error"]["attributes"]) == {"code": 5}
    assert json.loads(record["error"]["causes"]) == [{"type": "KeyError", "message": "'k'"}]


def test_errors_with_details_can_be_compared_and_hashed() -> None:
    one, two = JobError(attributes={"code": 5}), JobError(attributes={"code": 6})
    assert one != two
    assert len({one, two, JobError(attributes={"code": 5})}) == 2
