"""The public attributes of an exception that JSON can represent, without secrets.

A record of an error may be read by many people, and stays for long. So what it may contain is
decided here, before it leaves the process.
"""

from __future__ import annotations

import inspect
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, time
from decimal import Decimal
from enum import Enum
from itertools import islice
from typing import Any, cast
from uuid import UUID

import msgspec

__all__ = [
    "Redact",
    "attribute_of",
    "attributes_of",
    "bounded",
    "chain_of",
    "has_details",
    "redact_secrets",
]

Redact = Callable[[str, Any], Any]
"""Takes the name of an attribute and its value, and returns the value to record."""

REDACTED = "[redacted]"
MAX_ATTRIBUTES = 20
MAX_NAME_CHARACTERS = 100
MAX_TEXT_CHARACTERS = 500
MAX_ITEMS = 20
MAX_DEPTH = 3
MAX_JSON_BYTES = 4_000  # of all attributes of one error
MAX_CAUSES = 5
MAX_CACHED_TYPES = 1000
MAX_INTEGER = 2**53  # JSON readers keep larger ones as doubles

_SECRETS = re.compile(
    "passw|passphrase|pwd|secret|token|credential|cookie|authorization|"
    "api_?key|access_?key|private_?key|session_?id",
    re.IGNORECASE,
)
# The password in a URL. Each part stops at a character that it cannot match: linear time. So a
# password with an unescaped `/`, `?` or `#`, which no valid URL has, is not found.
_URL_PASSWORD = re.compile(r"(://[^/?#@\s:]*:)[^/?#@\s]*@")
# Attributes of Python's own exceptions that are the object that was worked on, not a fact about
# the error.
_SUBJECTS = frozenset({"obj", "object"})
_OMITTED = object()
# For each type of exception: attributes that are not in its `__dict__`, and those of its
# `__dict__` that are not recorded.
_known_types: dict[type, tuple[tuple[str, ...], frozenset[str]]] = {}


def redact_secrets(name: str, value: Any) -> Any:
    """The value, or "[redacted]" if the name looks like that of a secret: a password, a token, an
    API key. In text, the password of each URL is replaced.
    """
    if _SECRETS.search(name.replace("-", "_")):
        return REDACTED
    return _URL_PASSWORD.sub(rf"\1{REDACTED}@", value) if isinstance(value, str) else value


def has_details(error: BaseException) -> bool:
    """Whether there is more to record than type, message and traceback. Most errors have nothing,
    and must cost nothing.
    """
    if error.__cause__ is not None or error.__context__ is not None:
        return True
    names, unrecorded = _known_types.get(type(error)) or _inspect_type(type(error))
    own = error.__dict__
    return bool(names or (own and not own.keys() <= unrecorded))


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """The causes of an error, nearest first, at most five. The members of a group are causes."""
    seen = {id(error)}
    waiting = deque(_direct_causes(error))
    while waiting and len(seen) <= MAX_CAUSES:
        cause = waiting.popleft()
        if id(cause) not in seen:
            seen.add(id(cause))
            yield cause
            waiting.extend(_direct_causes(cause))


def _direct_causes(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        yield from islice(cast("tuple[BaseException, ...]", error.exceptions), MAX_CAUSES)
    if error.__cause__ is not None:
        yield error.__cause__
    elif error.__context__ is not None and not error.__suppress_context__:
        yield error.__context__


def attributes_of(error: BaseException, redact: Redact) -> dict[str, Any]:
    """The attributes that are not None and that JSON can represent."""
    names, unrecorded = _known_types.get(type(error)) or _inspect_type(type(error))
    found = {name: attribute_of(error, name) for name in names}
    found |= {name: value for name, value in vars(error).items() if name not in unrecorded}
    return bounded({name: value for name, value in found.items() if value is not None}, redact)


def attribute_of(error: BaseException, name: str) -> Any:
    """The value of an attribute; None if the exception does not have it, or reading it raises."""
    try:
        return getattr(error, name, None)
    except Exception:  # a class may define how its attributes are read
        return None


def bounded(attributes: object, redact: Redact | None = None) -> dict[str, Any]:
    """A copy with only what JSON can represent, within the limits of a record."""
    if not isinstance(attributes, Mapping):
        return {}
    kept: dict[str, Any] = {}
    left = MAX_JSON_BYTES
    for given, value in cast("Mapping[object, Any]", attributes).items():
        if len(kept) == MAX_ATTRIBUTES:
            break
        if not isinstance(given, str) or given.startswith("_"):
            continue
        name = _text(given, MAX_NAME_CHARACTERS)
        copy = _copy(name, value, redact, MAX_DEPTH)
        size = 0 if copy is _OMITTED else len(msgspec.json.encode({name: copy}))
        if copy is not _OMITTED and size <= left:
            kept[name] = copy
            left -= size
    return kept


def _copy(name: str, value: Any, redact: Redact | None, depth: int) -> Any:
    """A copy that JSON can represent; _OMITTED if there is none, REDACTED if `redact` raises."""
    try:
        if redact is not None:
            value = redact(name, value)
        return _plain(name, value, redact, depth)
    except Exception:
        return REDACTED  # a redaction that fails must not let the value through


def _plain(name: str, value: Any, redact: Redact | None, depth: int) -> Any:
    match value:
        case None | bool():
            return value
        case int():
            return int(value) if -MAX_INTEGER <= value <= MAX_INTEGER else _OMITTED
        case float():
            return float(value) if math.isfinite(value) else _OMITTED
        case str():
            return _text(value, MAX_TEXT_CHARACTERS)
        case Mapping() if depth:
            items = cast("Mapping[object, Any]", value).items()
            copied = {
                _text(key, MAX_NAME_CHARACTERS): _copy(key, inner, redact, depth - 1)
                for key, inner in islice(items, MAX_ITEMS)
                if isinstance(key, str)
            }
            kept = {key: copy for key, copy in copied.items() if copy is not _OMITTED}
            return kept if kept or not value else _OMITTED
        case Enum():
            return _copy(name, value.value, redact, depth)
        case date() | time() | UUID() | Decimal():  # a datetime is a date
            return _text(str(value), MAX_TEXT_CHARACTERS)
        case list() | tuple() | set() | frozenset() if depth:
            parts = islice(cast("Iterable[Any]", value), MAX_ITEMS)
            copies = [_copy(name, part, redact, depth - 1) for part in parts]
            kept_parts = [copy for copy in copies if copy is not _OMITTED]
            return kept_parts if kept_parts or not value else _OMITTED
        case _:
            return _OMITTED


def _text(value: str, most: int) -> str:
    return value[:most].encode("utf-8", "backslashreplace").decode()[:most]


def _inspect_type(kind: type) -> tuple[tuple[str, ...], frozenset[str]]:
    """Find the attributes that a type keeps outside of `__dict__`: those of exceptions written in
    C (such as `errno`), of slots, and plain values of the class (such as `code = 5`).
    """
    names = dict.fromkeys(
        name
        for base in kind.__mro__
        if base not in (BaseException, Exception, object)
        for name, member in vars(base).items()
        if not name.startswith("_") and name not in _SUBJECTS and _is_value(member)
    )
    unrecorded = frozenset(getattr(kind, "_unrecorded", ()))
    if len(_known_types) >= MAX_CACHED_TYPES:
        _known_types.clear()
    learned = _known_types[kind] = (tuple(names), unrecorded)
    return learned


def _is_value(member: object) -> bool:
    # Not properties: reading one runs the application's code.
    return (
        isinstance(member, (str, int, float))
        or inspect.ismemberdescriptor(member)
        or inspect.isgetsetdescriptor(member)
    )
