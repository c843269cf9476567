"""The options of a job, and the checks that every value from a caller passes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Literal, cast

from queasy.errors import InvalidId, InvalidInput, InvalidOption, InvalidQueue, InvalidTime

__all__ = [
    "Budget",
    "Durability",
    "IfExists",
    "JobOptions",
    "Replicated",
    "RunTimeout",
    "Seconds",
    "Unlimited",
    "UpdateRunAt",
    "When",
]

Seconds = float | timedelta
"""A duration: seconds, or a timedelta."""

When = datetime | float
"""A point in time: an aware datetime, or seconds since the epoch."""

UpdateRunAt = bool | Literal["if_later", "if_earlier"]

IfExists = Literal["update", "skip"]

Unlimited = Literal["unlimited"]
"""The one word for "no limit"."""

Budget = int | Unlimited
"""How often something may happen to a job."""

RunTimeout = Seconds | Unlimited
"""How long a run may take."""

MAX_ID_BYTES = 512
MAX_NAME_BYTES = 200
MAX_COUNT = 2**31  # a limit of so many is no limit: see UNLIMITED in lua/job.lua
MAX_REPLICAS = 1000
# A double is exact to the microsecond well beyond the year 10,000. A later time is a mistake in
# units, most likely milliseconds.
EARLIEST_EPOCH = 1e8  # 1973: a smaller number is a duration
LATEST_EPOCH = 253_402_300_800.0  # the year 10,000
MAX_LEASE_SECONDS = 86_400.0  # the same as in lua/arguments.lua
MAX_DURATION_SECONDS = 100 * 366 * 86_400.0  # a timeout of so many is no limit
UNLIMITED: Unlimited = "unlimited"
COUNT_LIMITS = ("max_retries", "max_stalls", "max_timeouts", "max_expiries")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Limits of one job. An option left out (None) has the queue's value: see `Queue.configure`.

    A job is given up when it fails after `max_retries` retries, or when it has stalled
    `max_stalls` times, timed out `max_timeouts` times, or lost its pull lease `max_expiries`
    times. Between retries it waits `min_backoff` seconds, doubled each time, up to `max_backoff`.
    `timeout` is how many seconds a run may take. Workers enforce it; a pull lease lasts as many
    seconds as it asked for. "unlimited" means no limit.
    """

    max_retries: Budget | None = None
    max_stalls: Budget | None = None
    max_timeouts: Budget | None = None
    max_expiries: Budget | None = None
    min_backoff: Seconds | None = None
    max_backoff: Seconds | None = None
    timeout: RunTimeout | None = None

    def __post_init__(self) -> None:
        for name in COUNT_LIMITS:
            value = getattr(self, name)
            if value is not None and check_budget(value, name) != value:
                object.__setattr__(self, name, UNLIMITED)
        for name in ("min_backoff", "max_backoff"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, seconds(value, name))
        if self.timeout is not None:
            object.__setattr__(self, "timeout", check_run_timeout(self.timeout))

    def over(self, others: JobOptions) -> JobOptions:
        """These options and, for those left out, `others`."""
        given = {name: getattr(self, name) for name in OPTION_NAMES}
        return replace(others, **{name: it for name, it in given.items() if it is not None})

    def given(self) -> dict[str, float | Unlimited]:
        """The options that were given a value; durations in seconds."""
        pairs = ((name, getattr(self, name)) for name in OPTION_NAMES)
        return {name: value for name, value in pairs if value is not None}


@dataclass(frozen=True, slots=True)
class Replicated:
    """A durability: the dispatch returns when this many replicas have the job.

    `"replicated"` asks for one. If a failover must lose nothing, ask for all: any of them may
    become the primary.
    """

    replicas: int = 1

    def __post_init__(self) -> None:
        check_whole(self.replicas, "replicas", 1, MAX_REPLICAS)


Durability = Literal["ack", "fsynced", "replicated"] | Replicated


def replicas_of(durability: Durability) -> int:
    """How many replicas must confirm a write."""
    if isinstance(durability, Replicated):
        return durability.replicas
    return 1 if durability == "replicated" else 0


OPTION_NAMES = tuple(field.name for field in fields(JobOptions))
DURATION_OPTIONS = frozenset({"min_backoff", "max_backoff", "timeout"})


def check_optional_count(value: object, name: str) -> None:
    if value is not None:
        check_whole(value, name, 0, MAX_COUNT)


def check_budget(value: object, name: str) -> Budget:
    """A limit of a count. The largest number means the same as "unlimited"."""
    if value == UNLIMITED:
        return UNLIMITED
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_COUNT:
        raise InvalidOption(
            f"{name}: expected a whole number from 0 to {MAX_COUNT}, or {UNLIMITED!r}, "
            f"got {value!r}"
        )
    return UNLIMITED if value == MAX_COUNT else value


def check_run_timeout(value: object) -> float | Unlimited:
    """How long a run may take. The longest duration means the same as "unlimited"."""
    if value == UNLIMITED:
        return UNLIMITED
    if value is None or isinstance(value, str):
        raise InvalidTime(
            f"timeout: expected seconds, a timedelta or {UNLIMITED!r}, got {value!r}; "
            f"for no limit write {UNLIMITED!r}"
        )
    length = positive_seconds(value, "timeout", f"more than 0 seconds, or {UNLIMITED!r}")
    return UNLIMITED if length == MAX_DURATION_SECONDS else length


def check_whole(value: object, name: str, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidOption(
            f"{name}: expected a whole number from {least} to {most}, got {value!r}"
        )
    return value


def seconds(value: object, name: str, expected: str = "") -> float:
    """A duration as seconds; an error says what was `expected`."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidTime(f"{name}: expected seconds or a timedelta, got {value!r}")
    value = _as_float(value)
    if not math.isfinite(value) or not 0 <= value <= MAX_DURATION_SECONDS:
        expected = expected or f"0 to {MAX_DURATION_SECONDS:.0f} seconds"
        raise InvalidTime(f"{name}: expected {expected}, got {value!r}")
    return value + 0.0  # and never -0.0, which would be sent as "+-0.0"


def positive_seconds(value: object, name: str, expected: str = "more than 0 seconds") -> float:
    """A duration above 0 as seconds."""
    length = seconds(value, name, expected)
    if length <= 0:
        raise InvalidOption(f"{name}: expected {expected}, got {value!r}")
    return length


def lease_seconds(value: object) -> float:
    """The length of a lease as seconds."""
    length = seconds(value, "seconds")
    if length > MAX_LEASE_SECONDS:
        raise InvalidOption(
            f"seconds: expected a lease of at most {MAX_LEASE_SECONDS:.0f} seconds, got {value!r}; "
            "a lease can be extended as often as you like"
        )
    return length


def epoch(value: object, name: str) -> float:
    """A point in time as seconds since the epoch."""
    given_as_datetime = isinstance(value, datetime)
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise InvalidTime(
                f"{name}: expected an aware datetime, got {value!r} without a time zone; "
                "use datetime.now(timezone.utc) or .astimezone()"
            )
        value = value.timestamp()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidTime(f"{name}: expected a datetime or seconds since the epoch, got {value!r}")
    value = _as_float(value)
    if 0 < value < EARLIEST_EPOCH and not given_as_datetime:
        raise InvalidTime(
            f"{name}: expected a time, got {value!r}; for seconds from now use a delay"
        )
    if not math.isfinite(value) or not 0 <= value <= LATEST_EPOCH:
        hint = " (milliseconds? give seconds)" if 1e11 < value / 1000 < LATEST_EPOCH else ""
        if math.isfinite(value) and abs(value / 1000 - time.time()) < MAX_DURATION_SECONDS:
            hint = " (these look like milliseconds: divide by 1000)"
        raise InvalidTime(f"{name}: expected a time from 1970 to 9999, got {value!r}{hint}")
    return float(value)


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def check_known_id(value: object) -> str:
    """An id to look up. The server may have longer ids than `check_id` allows: ids in a fail queue
    carry a token, and other programs may have dispatched under any id.
    """
    if not isinstance(value, str):
        raise InvalidId(f"id: expected a str, got {type(value).__name__}{_text_hint(value)}")
    if not value or len(value) > 2 * MAX_ID_BYTES or not _encodable(value):
        raise InvalidId(f"id: expected 1 to {MAX_ID_BYTES} bytes of text, got {value[:40]!r}")
    return value


def _encodable(value: str) -> bool:
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def check_id(value: object) -> str:
    return _check_text(value, "id", MAX_ID_BYTES, InvalidId)


def check_name(value: object, what: str = "queue name") -> str:
    """A name that becomes part of a key: the name of a queue, or the prefix of every key."""
    value = _check_text(value, what, MAX_NAME_BYTES, InvalidQueue)
    for character in value:
        if character in "{}" or character.isspace() or not character.isprintable():
            raise InvalidQueue(
                f"{what}: expected no braces, spaces or control characters, got {value!r}"
            )
    return value


def _text_hint(value: object) -> str:
    """What to write in place of an id that is not text."""
    if hasattr(value, "id"):
        return "; give its .id"
    # Python refuses to write numbers of thousands of digits.
    if type(value) is int and abs(value) < 10**40:
        return f"; use str({value})"
    return ""


def _check_text(value: object, what: str, max_bytes: int, error: type[InvalidInput]) -> str:
    if not isinstance(value, str):
        hint = _text_hint(value) if error is InvalidId else ""
        raise error(f"{what}: expected a str, got {type(value).__name__}{hint}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise error(f"{what}: expected text that UTF-8 can hold, got {value[:40]!r}") from None
    if not 1 <= size <= max_bytes:
        hint = "; use a hash of it" if size and error is InvalidId else ""
        raise error(f"{what}: expected 1 to {max_bytes} bytes, got {size}{hint}")
    return value


def check_update_options(value: object) -> bool | frozenset[str]:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidOption(f"update_options: expected a bool or names of options, got {value!r}")
    names = frozenset(map(str, cast("Iterable[object]", value)))
    unknown = sorted(names - frozenset(OPTION_NAMES))
    if unknown:
        raise InvalidOption(
            f"update_options: unknown {', '.join(unknown)}; expected {', '.join(OPTION_NAMES)}"
        )
    return names


def check_bool(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidOption(f"{name}: expected True or False, got {value!r}")
    return value
