"""A dispatch as a value: its arguments are checked, and encoded as docs/protocol.md says."""

import math
import os
import string
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queasy import (
    Dispatch,
    InvalidId,
    InvalidInput,
    InvalidOption,
    InvalidPayload,
    InvalidTime,
    JobOptions,
    JsonCodec,
    QueasyError,
)
from queasy.dispatch import item_of, new_id, new_ids
from queasy.store.records import DispatchItem
from tests.fuzz.strategies import IDS, NUMBERS, ODD, TIMES
from tests.unit.ids import short

NAN, INF = math.nan, math.inf
CODEC, LIMIT = JsonCodec(), 1000
WHEN = 1_900_000_000

BAD_DISPATCHES: list[tuple[dict[str, Any], type[QueasyError], str]] = [
    ({"id": ""}, InvalidId, "1 to 512 bytes"),
    ({"id": "x" * 513}, InvalidId, "got 513; use a hash of it"),
    ({"id": "é" * 257}, InvalidId, "got 514; use a hash of it"),
    ({"id": 42}, InvalidId, r"expected a str, got int; use str\(42\)$"),
    ({"id": 10**400}, InvalidId, "expected a str, got int$"),
    ({"id": True}, InvalidId, "expected a str, got bool$"),
    ({"id": b"bytes"}, InvalidId, "expected a str"),
    ({"id": "\ud800"}, InvalidId, "UTF-8"),
    ({"run_at": NAN}, InvalidTime, "run_at"),
    ({"run_at": INF}, InvalidTime, "run_at"),
    ({"run_at": -1.0}, InvalidTime, "run_at"),
    ({"run_at": 1e30}, InvalidTime, "run_at"),
    ({"run_at": 10**400}, InvalidTime, "run_at"),
    ({"run_at": 1_790_000_000_000}, InvalidTime, "milliseconds"),
    ({"run_at": 60}, InvalidTime, "use a delay"),
    ({"run_at": "tomorrow"}, InvalidTime, "run_at"),
    ({"run_at": True}, InvalidTime, "run_at"),
    ({"run_at": datetime(2030, 1, 1)}, InvalidTime, "time zone"),
    ({"delay": -1}, InvalidTime, "delay"),
    ({"delay": NAN}, InvalidTime, "delay"),
    ({"delay": INF}, InvalidTime, "delay"),
    ({"delay": 10**400}, InvalidTime, "delay"),
    ({"delay": "5"}, InvalidTime, "delay"),
    ({"delay": timedelta(seconds=-1)}, InvalidTime, "delay"),
    ({"delay": 1, "run_at": 1.0}, InvalidTime, "both"),
    ({"update_data": "yes"}, InvalidOption, "update_data"),
    ({"update_run_at": "sometimes"}, InvalidOption, "if_later"),
    ({"update_run_at": 1}, InvalidOption, "if_later"),
    ({"update_run_at": []}, InvalidOption, "if_later"),
    ({"update_options": {"colour"}}, InvalidOption, "colour"),
    ({"update_options": "max_retries"}, InvalidOption, "names of options"),
    ({"update_options": 3}, InvalidOption, "update_options"),
    ({"reset_counts": 0}, InvalidOption, "reset_counts"),
    ({"options": {"max_retries": 3}}, InvalidOption, "JobOptions"),
    ({"if_exists": "replace"}, InvalidOption, "'update' or 'skip', got 'replace'"),
    ({"if_exists": False}, InvalidOption, "'update' or 'skip', got False"),
    ({"if_exists": "skip", "update_data": True}, InvalidOption, "because update_data is given"),
    ({"if_exists": "skip", "update_run_at": "if_later"}, InvalidOption, "leave out update_run_at"),
    ({"if_exists": "skip", "update_options": False}, InvalidOption, "update_options"),
    (
        {"if_exists": "skip", "reset_counts": True, "update_data": False},
        InvalidOption,
        "leave out update_data, reset_counts, or use if_exists='update'",
    ),
]


def item(**arguments: Any) -> DispatchItem:
    return Dispatch({"to": "x"}, **arguments).item(CODEC, LIMIT)


@pytest.mark.parametrize(("arguments", "error", "says"), BAD_DISPATCHES, ids=short)
def test_bad_argument_is_refused_with_a_typed_error(
    arguments: dict[str, Any], error: type[QueasyError], says: str
) -> None:
    with pytest.raises(error, match=says):
        item(**arguments)


def test_payload_is_encoded_and_its_size_checked() -> None:
    assert item().payload == b'{"to":"x"}'
    with pytest.raises(InvalidPayload, match="the limit is 5"):
        Dispatch("too long").item(CODEC, 5)


# What is sent


def test_dispatch_of_data_alone_sends_nothing_else() -> None:
    sent = item(id="a")
    assert sent == DispatchItem("a", b'{"to":"x"}')
    assert sent == item(id="a", update_data=True, update_run_at=True, reset_counts=True)


@pytest.mark.parametrize(
    ("arguments", "sign", "milliseconds"),
    [
        ({"delay": 0}, "+", 0),
        ({"delay": 1.5}, "+", 1500),
        ({"delay": timedelta(hours=1)}, "+", 3_600_000),
        ({"run_at": WHEN}, "", WHEN * 1000),
        ({"run_at": WHEN + 0.25}, "", WHEN * 1000 + 250),
        ({"run_at": datetime.fromtimestamp(WHEN, UTC)}, "", WHEN * 1000),
        ({"run_at": datetime(1971, 1, 1, tzinfo=UTC)}, "", 31_536_000_000),
    ],
    ids=short,
)
def test_time_is_sent_in_milliseconds(
    arguments: dict[str, Any], sign: str, milliseconds: int
) -> None:
    sent = item(**arguments).when
    assert sent.startswith("+") == (sign == "+")
    assert float(sent) == milliseconds


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        ({"update_run_at": False}, "1f10"),
        ({"update_run_at": "if_later"}, "1l10"),
        ({"update_run_at": "if_earlier"}, "1e10"),
        ({"update_data": False}, "0t00"),  # counts are reset with the data, unless asked for
        ({"update_data": False, "reset_counts": True}, "0t10"),
        ({"reset_counts": False}, "1t00"),
        ({"update_data": False, "update_run_at": False, "reset_counts": False}, "0f00"),
        ({"if_exists": "skip"}, "1t11"),
        ({"if_exists": "update", "update_run_at": False}, "1f10"),
        ({"if_exists": "update"}, ""),
    ],
    ids=short,
)
def test_flags_say_what_an_update_changes(arguments: dict[str, Any], flags: str) -> None:
    assert item(**arguments).flags == flags


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ({"options": JobOptions()}, None),
        ({"options": JobOptions(max_retries=1)},
         {"set": {"max_retries": 1}, "update": ["max_retries"]}),
        ({"options": JobOptions(timeout=2), "update_options": False},
         {"set": {"timeout": 2000}, "update": []}),
        ({"options": JobOptions(timeout=2), "update_options": ["max_stalls", "timeout"]},
         {"set": {"timeout": 2000}, "update": ["max_stalls", "timeout"]}),
        ({"update_options": {"timeout"}}, {"set": {}, "update": ["timeout"]}),
        ({"update_options": False}, None),
    ],
    ids=short,
)  # fmt: skip
def test_options_are_sent_with_the_names_to_update(
    arguments: dict[str, Any], sent: dict[str, Any] | None
) -> None:
    packed = item(**arguments).options
    assert (msgspec.msgpack.decode(packed) if packed else None) == sent


def test_data_and_a_dispatch_of_it_send_the_same() -> None:
    plain, wrapped = item_of(5, CODEC, LIMIT), item_of(Dispatch(5), CODEC, LIMIT)
    assert (plain.payload, plain.when, plain.flags) == (wrapped.payload, wrapped.when, "")
    assert plain.id != wrapped.id


ARGUMENTS: dict[str, st.SearchStrategy[Any]] = {
    "id": IDS | ODD,
    "run_at": TIMES | NUMBERS,
    "delay": TIMES | NUMBERS,
    "update_data": st.booleans() | ODD,
    "update_run_at": st.sampled_from([True, False, "if_later", "if_earlier"]) | ODD,
    "update_options": st.booleans() | ODD,
    "reset_counts": st.booleans() | ODD,
    "if_exists": st.sampled_from(["update", "skip"]) | ODD,
    "options": ODD,
}


@pytest.mark.parametrize("name", ARGUMENTS)
@given(data=st.data())
def test_any_argument_is_encoded_or_refused_with_what_was_expected(
    name: str, data: st.DataObject
) -> None:
    value = data.draw(ARGUMENTS[name])
    try:
        sent = item(**{name: value})
    except QueasyError as error:
        refused = error
    else:
        assert name != "id" or value in (None, sent.id)
        assert not sent.when or math.isfinite(float(sent.when))
        assert len(sent.flags) in (0, 4)
        return
    assert isinstance(refused, InvalidInput)
    assert "expected" in str(refused)


# Ids


def test_made_up_ids_are_twelve_characters_and_never_the_same() -> None:
    ids = [new_id() for _ in range(1000)] + new_ids(1000)
    assert len(set(ids)) == 2000
    assert {len(id_) for id_ in ids} == {12}


def test_no_id_begins_with_a_hyphen() -> None:
    ids = new_ids(20_000)
    assert {id_[0] for id_ in ids} == set(string.ascii_letters + string.digits + "_")
    assert "-" in {id_[1] for id_ in ids}


def test_forked_process_makes_up_other_ids() -> None:
    new_id()  # a supply is there before the fork
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, "".join(new_id() for _ in range(300)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    assert os.waitpid(child, 0)[1] == 0
    others = {text[at : at + 12] for at in range(0, len(text), 12)}
    assert len(others) == 300
    assert not others & {new_id() for _ in range(300)}


def test_time_that_looks_like_milliseconds_says_so() -> None:
    with pytest.raises(InvalidTime, match="divide by 1000"):
        item(run_at=time.time() * 1000)
