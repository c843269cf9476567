"""Values of the wrong type or range, for every kind of argument."""

# ruff: noqa: E501 - tables of odd things; an error is one of two ways to be right

import datetime as dt
import decimal
import fractions
import math
import uuid
from typing import Any

from hypothesis import strategies as st

SURROGATES = st.text(st.characters(), max_size=20)  # with lone surrogates and NUL
IDS = st.one_of(
    st.text(max_size=600), SURROGATES, st.sampled_from(["", "\0", "x" * 512, "x" * 513, "é" * 256]),
    st.sampled_from(["a:b", "{", "}", "{}", "*", "?", "[", "]", ":", "~x", " ", "\r\n", "+", "-"]),
)  # fmt: skip
NAMES = st.one_of(
    st.text(max_size=220), SURROGATES,
    st.sampled_from(["", "q", "*", "a*b?[c]", "\0", "{", "}", "{q}", "q}-fail", "a:b", "é", "x" * 201]),
)  # fmt: skip


class Odd:
    """An object of an unexpected type."""

    def __repr__(self) -> str:
        return "<odd>"


class NoZone(dt.tzinfo):
    """A time zone that does not know its offset."""

    def utcoffset(self, when: dt.datetime | None) -> None:
        return None


NUMBERS = st.one_of(
    st.integers(), st.floats(), st.booleans(), st.decimals(), st.fractions(),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, -0.0, 10**400, 2**31,
                     2**31 + 1, 2**63, 1e11, 253_402_300_800.0]),
)  # fmt: skip
TIMES = st.one_of(
    st.datetimes(), st.datetimes(timezones=st.timezones()), st.timedeltas(), st.dates(), st.times(),
    st.sampled_from([
        dt.datetime.min, dt.datetime.max, dt.datetime.min.replace(tzinfo=dt.UTC),
        dt.datetime.max.replace(tzinfo=dt.UTC), dt.datetime(2030, 1, 1, tzinfo=NoZone()),
        dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=14))),
        dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-14))),
        dt.timedelta.max, dt.timedelta.min,
    ]),
)  # fmt: skip
ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(), NUMBERS, TIMES, st.text(max_size=10), SURROGATES, st.binary(max_size=10),
    st.builds(Odd), st.just(Odd), st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2), st.sets(st.text(max_size=3)),
    st.uuids(), st.just(decimal.Decimal("NaN")), st.just(fractions.Fraction(1, 3)),
    st.just(print), st.just(uuid), st.complex_numbers(),
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
REPLIES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | st.binary(max_size=20) | st.booleans() | st.floats()
    | st.sampled_from([b"ok", b"lost", b"", b"1", b"-1", b"nan", b"9" * 5000, b"\xdd\xff\xff\xff\xff",
                       b"\xc1", b"\x80", b"\x81\xa1", b"\x91" * 3000])
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=9),
    max_leaves=30,
)  # fmt: skip
