"""Data becomes a payload and comes back; what cannot be encoded is refused with the reason."""

import datetime as dt
import decimal
import math
import uuid
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queasy import (
    Client,
    InvalidOption,
    InvalidPayload,
    Job,
    JsonCodec,
    RawCodec,
    UndecodablePayload,
)
from queasy.codec import codec_of, encode, encode_many
from tests.fuzz.strategies import JSON, ODD
from tests.unit.ids import short

LIMIT = 1024
ENDLESS = 2**40
JSON_CODEC, RAW_CODEC = JsonCodec(), RawCodec()


class Unencodable:
    pass


BAD_DATA: list[Any] = [
    Unencodable(),
    b"bytes",
    {"a": {1, Unencodable()}},
    "\ud800",
    math.nan,
    [math.inf],
    {"deep": [{"x": math.nan}]},
]


@dataclass
class Letter:
    to: str
    copies: int = 1


@dataclass
class Order:
    at: dt.datetime
    id: uuid.UUID
    of: tuple[int, int]
    price: decimal.Decimal
    names: dict[int, str]


class Holder(msgspec.Struct):
    number: float


# What comes back


@given(JSON)
def test_json_data_comes_back_unchanged(data: Any) -> None:
    assert JSON_CODEC.decode(encode(JSON_CODEC, data, ENDLESS)) == data


@given(st.binary(max_size=300))
def test_raw_bytes_come_back_unchanged(data: bytes) -> None:
    for given_as in (data, bytearray(data), memoryview(data)):
        payload = encode(RAW_CODEC, given_as, ENDLESS)
        assert (type(payload), RAW_CODEC.decode(payload)) == (bytes, data)


@pytest.mark.parametrize(
    ("data", "payload"),
    [
        (None, b"null"),
        ({"none": None}, b'{"none":null}'),
        ("null", b'"null"'),
        ((1, (2,)), b"[1,[2]]"),
        (Letter("x"), b'{"to":"x","copies":1}'),
        (dt.datetime(2030, 1, 1, tzinfo=dt.UTC), b'"2030-01-01T00:00:00Z"'),
        (uuid.UUID(int=7), b'"00000000-0000-0000-0000-000000000007"'),
    ],
)
def test_json_codec_writes_what_json_has_for_a_value(data: Any, payload: bytes) -> None:
    assert JSON_CODEC.encode(data) == payload


def test_json_codec_with_a_type_decodes_to_that_type() -> None:
    codec = JsonCodec(Letter)
    assert codec.decode(codec.encode(Letter("x", 2))) == Letter("x", 2)


def test_values_json_does_not_have_come_back_as_texts_and_lists_unless_there_is_a_type() -> None:
    """As the guide to dispatching says."""
    data = {"at": dt.datetime(2030, 1, 1, tzinfo=dt.UTC), "id": uuid.UUID(int=7), "of": (1, 2)}
    data |= {"price": decimal.Decimal("1.10"), "names": {1: "one"}}
    payload = JSON_CODEC.encode(data)
    assert JSON_CODEC.decode(payload) == {
        "at": "2030-01-01T00:00:00Z", "id": str(uuid.UUID(int=7)), "of": [1, 2],
        "price": "1.10", "names": {"1": "one"},
    }  # fmt: skip
    assert JsonCodec(Order).decode(payload) == Order(**data)


# What is refused


@pytest.mark.parametrize("data", BAD_DATA)
def test_data_that_json_cannot_hold_is_refused(data: object) -> None:
    with pytest.raises(InvalidPayload, match=f"type {type(data).__name__} cannot be encoded"):
        encode(JSON_CODEC, data, LIMIT)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"bytes", "JSON has no bytes; use codec='raw'"),
        (bytearray(b"bytes"), "JSON has no bytes"),
        (memoryview(b"bytes"), "JSON has no bytes"),
        (math.nan, "JSON cannot hold NaN or infinity"),
        ({"x": (-math.inf,)}, "JSON cannot hold NaN or infinity"),
        (Holder(math.nan), "JSON cannot hold NaN or infinity"),
    ],
)
def test_error_says_what_json_cannot_hold(data: Any, reason: str) -> None:
    with pytest.raises(InvalidPayload, match=reason):
        encode(JSON_CODEC, data, LIMIT)


@pytest.mark.parametrize("data", [{"x": None}, "null", ["null", None], Holder(1.5)], ids=short)
def test_null_in_the_data_is_not_taken_for_nan(data: Any) -> None:
    assert encode(JSON_CODEC, data, LIMIT) == msgspec.json.encode(data)


@pytest.mark.parametrize("data", ["text", 5, None, ["x"]], ids=short)
def test_raw_codec_takes_nothing_but_bytes(data: Any) -> None:
    with pytest.raises(InvalidPayload, match=f"expected bytes, got {type(data).__name__}"):
        encode(RAW_CODEC, data, LIMIT)


def test_payload_at_the_limit_is_accepted_and_one_byte_more_is_refused() -> None:
    assert encode(RAW_CODEC, b"x" * LIMIT, LIMIT) == b"x" * LIMIT
    with pytest.raises(InvalidPayload, match=r"1025 bytes, the limit is 1024.*max_payload"):
        encode(RAW_CODEC, b"x" * (LIMIT + 1), LIMIT)


class Answers:
    """A codec that returns, or raises, the same for all data."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def encode(self, data: Any, /) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    decode = encode


@pytest.mark.parametrize("answer", ["text", None, 5, bytearray(b"x")], ids=short)
def test_codec_that_does_not_return_bytes_is_refused(answer: Any) -> None:
    with pytest.raises(InvalidPayload, match=f"returned {type(answer).__name__}, expected bytes"):
        encode(Answers(answer), 1, LIMIT)


def test_any_exception_of_a_codec_means_not_encodable() -> None:
    with pytest.raises(InvalidPayload, match="cannot be encoded: 'missing'") as caught:
        encode(Answers(KeyError("missing")), 1, LIMIT)
    assert isinstance(caught.value.__cause__, KeyError)


LETTERS = JsonCodec(Letter)


def test_payload_that_cannot_be_decoded_names_its_job_and_queue() -> None:
    with pytest.raises(UndecodablePayload, match=r"'a'.*'emails'") as caught:
        _ = Job(id="a", queue="emails", state="due", payload=b"{not json", codec=JSON_CODEC).data
    assert isinstance(caught.value.__cause__, msgspec.DecodeError)
    with pytest.raises(UndecodablePayload, match=r"\$\.to"):
        _ = Job(id="a", queue="emails", state="due", payload=b'{"to":7}', codec=LETTERS).data


class Model:
    """As a model of pydantic: it has annotations, and msgspec does not know it."""

    to: str


@dataclass
class Envelope:
    letters: dict[str, list[Model]]
    inside: "Envelope | None" = None


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (Model, "got Model. For a model of pydantic give the queue a codec of your own"),
        (list[Model], "got Model"),
        (Envelope, "got Model"),
        (complex, "got complex"),
        (7, "Type '7' is not supported"),
        (Letter | Envelope, "Type unions may not contain more than one"),
    ],
)
def test_type_that_cannot_be_decoded_is_refused_when_the_codec_is_made(
    wanted: Any, says: str
) -> None:
    """Bug: it was accepted, and every job of the queue was set aside as broken."""
    with pytest.raises(InvalidOption, match=f"^JsonCodec: expected a type that msgspec .*{says}"):
        JsonCodec(wanted)


class Nested(msgspec.Struct):
    letter: Letter
    inside: "list[Nested]"
    when: dt.datetime | None = None


class PydanticModel(Model):
    def model_dump(self, *, mode: str) -> dict[str, str]:
        return {"mode": mode}


def test_pydantic_model_is_refused_with_what_to_dispatch_instead() -> None:
    with pytest.raises(
        InvalidPayload, match=r"dispatch model\.model_dump\(mode='json'\), or use a"
    ):
        encode(JSON_CODEC, PydanticModel(), LIMIT)
    for codec, data in ((JSON_CODEC, Model()), (RAW_CODEC, PydanticModel())):
        with pytest.raises(InvalidPayload, match="or give the queue another codec") as caught:
            encode(codec, data, LIMIT)
        assert "pydantic" not in str(caught.value)


@pytest.mark.parametrize("wanted", [Any, object, int | None, dict[str, Letter], Nested])
def test_type_that_can_be_decoded_is_accepted(wanted: Any) -> None:
    JsonCodec(wanted)


# Many at once


@given(st.lists(JSON | ODD, min_size=1, max_size=8))
def test_many_payloads_are_those_of_one_by_one_or_none(data: list[Any]) -> None:
    """The fast path for many may decline, but must never answer differently."""
    for codec in (JSON_CODEC, RAW_CODEC):
        many = encode_many(codec, data, LIMIT)
        if many is not None:
            assert list(many) == [encode(codec, one, LIMIT) for one in data]


@pytest.mark.parametrize("bad", [*BAD_DATA, "x" * LIMIT, msgspec.Raw(b"[1,\n2]")])
def test_many_payloads_are_declined_when_one_needs_a_closer_look(bad: Any) -> None:
    assert encode_many(JSON_CODEC, [1, bad, 2], LIMIT) is None
    assert encode_many(JSON_CODEC, [1, {"inside": bad}, 2], LIMIT) is None or bad == b"bytes"


def test_many_plain_payloads_are_not_declined() -> None:
    assert encode_many(JSON_CODEC, [1, "a", None, {}, [], 0.5, True], LIMIT) is not None
    assert encode_many(RAW_CODEC, [b"a", b"b"], LIMIT) == [b"a", b"b"]


def test_codec_of_your_own_encodes_each_by_itself() -> None:
    class Loud(JsonCodec):
        def encode(self, data: object, /) -> bytes:
            return super().encode(str(data).upper())

    assert encode_many(Loud(), ["a"], LIMIT) is None
    assert encode(Loud(), "a", LIMIT) == b'"A"'


# Which codec


def test_codec_is_named_or_an_object_with_both_methods() -> None:
    assert isinstance(codec_of("json"), JsonCodec)
    assert isinstance(codec_of("raw"), RawCodec)
    own = Answers(b"")
    assert codec_of(own) is own


@pytest.mark.parametrize("codec", ["yaml", object(), 5, JsonCodec, Answers])
def test_bad_codec_is_refused(codec: Any) -> None:
    """Bug: a codec's class was accepted in place of an object, and every job was set aside."""
    with pytest.raises(InvalidOption, match=r"codec: expected .* object"):
        Client("redis://127.0.0.1:1").queue("q", codec=codec)
