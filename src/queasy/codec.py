"""Codecs: how data becomes a payload and back."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, cast, runtime_checkable

import msgspec

from queasy.errors import InvalidOption, InvalidPayload

__all__ = ["Codec", "CodecName", "JsonCodec", "RawCodec"]

CodecName = Literal["json", "raw"]
QUOTE = ord('"')
# Types that are neither bytes nor a `Dispatch`, nor a subclass of them.
PLAIN = frozenset({str, int, float, bool, type(None), dict, list, tuple})


@runtime_checkable
class Codec(Protocol):
    """An object with `encode` and `decode`, for the payloads of a queue."""

    def encode(self, data: Any, /) -> bytes: ...

    def decode(self, payload: bytes, /) -> Any: ...


class JsonCodec:
    """JSON. Dataclasses, datetimes, UUIDs and msgspec structs are encoded, too.

    With a `type`, payloads are validated against it when they are decoded. It may consist of all
    that msgspec can decode: the types of JSON, dataclasses, TypedDicts, msgspec structs and so on.
    """

    def __init__(self, type: Any = Any) -> None:  # noqa: A002 - the word msgspec uses
        encoder = msgspec.json.Encoder()
        self._write, self._write_lines = encoder.encode, encoder.encode_lines
        self._read = _decoder(type).decode

    def encode(self, data: Any, /) -> bytes:
        payload = self._write(data)
        # The encoder writes bytes as a string, so only a payload that is a string can be wrong.
        if payload[0] == QUOTE and isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError("JSON has no bytes; use codec='raw'")
        # JSON has no NaN, and the encoder writes null: refuse it rather than change the data.
        # (`in` would take three times as long: it first tries to read b"null" as a number.)
        if payload.find(b"null") >= 0 and _holds_nan(data):
            raise ValueError("JSON cannot hold NaN or infinity")
        return payload

    def encode_lines(self, plain: Sequence[Any], /) -> list[bytes] | None:
        """Payloads of `PLAIN` data, faster than one by one; None if one of them needs a check."""
        lines = self._write_lines(plain)
        payloads = lines.split(b"\n")
        payloads.pop()
        if len(payloads) != len(plain):  # one of them contains raw JSON with a newline
            return None
        if b"null" in lines:
            pairs = zip(payloads, plain, strict=True)
            if any(payload.find(b"null") >= 0 and _holds_nan(data) for payload, data in pairs):
                return None
        return payloads

    def decode(self, payload: bytes, /) -> Any:
        return self._read(payload)


def _decoder(type_: Any) -> msgspec.json.Decoder[Any]:
    """A decoder; raises InvalidOption for a type of which it would refuse every payload."""
    try:
        decoder = msgspec.json.Decoder(type_)
        unknown = [one.__name__ for one in _undecodable_in(type_)]
    except TypeError as problem:  # such as a union of two dataclasses
        raise InvalidOption(
            f"JsonCodec: expected a type that msgspec can decode: {problem}"
        ) from None
    if unknown:
        raise InvalidOption(
            "JsonCodec: expected a type that msgspec can decode (a dataclass, TypedDict or msgspec "
            f"struct, or types of JSON), got {', '.join(unknown)}. For a model of pydantic give "
            "the queue a codec of your own: an object whose encode(data) returns "
            "data.model_dump_json().encode(), and whose decode(payload) returns "
            "Model.model_validate_json(payload)"
        )
    return decoder


def _undecodable_in(type_: object) -> Iterator[type]:
    """The classes inside a type of which no decoded JSON is an instance."""
    seen: set[int] = set()
    stack: list[Any] = [msgspec.inspect.type_info(type_)]
    while stack:
        part = stack.pop()
        if isinstance(part, tuple):
            stack.extend(cast("tuple[Any, ...]", part))
        elif isinstance(part, msgspec.inspect.CustomType):
            if not any(issubclass(kind, part.cls) for kind in PLAIN):
                yield part.cls
        elif (
            isinstance(part, (msgspec.inspect.Type, msgspec.inspect.Field)) and id(part) not in seen
        ):
            seen.add(id(part))  # a type may contain itself
            stack.extend(getattr(part, name) for name in part.__struct_fields__)


class RawCodec:
    """Bytes in, the same bytes out."""

    def encode(self, data: Any, /) -> bytes:
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"expected bytes, got {type(data).__name__}")
        return bytes(data)  # pyright: ignore[reportUnknownArgumentType]

    def decode(self, payload: bytes, /) -> bytes:
        return payload


_NAMED: Mapping[str, Codec] = {"json": JsonCodec(), "raw": RawCodec()}


def codec_of(codec: CodecName | Codec) -> Codec:
    if isinstance(codec, str):
        found = _NAMED.get(codec)
        if found is None:
            raise InvalidOption(f"codec: expected 'json', 'raw' or an object, got {codec!r}")
        return found
    if isinstance(codec, type) or not isinstance(codec, Codec):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(
            f"codec: expected an object with encode and decode methods, got {codec!r}"
        )
    return codec


def encode(codec: Codec, data: object, limit: int) -> bytes:
    """The payload of `data`; raises InvalidPayload when it cannot be encoded or is too large."""
    try:
        payload = codec.encode(data)
    except Exception as error:
        # A codec is the user's code: any exception means that the data cannot be encoded.
        advice = "Convert it to what the codec supports, or give the queue another codec"
        if isinstance(codec, JsonCodec) and hasattr(type(data), "model_dump"):
            advice = (
                "For a model of pydantic dispatch model.model_dump(mode='json'), or use a codec "
                "of your own"
            )
        raise InvalidPayload(
            f"data of type {type(data).__name__} cannot be encoded: {error}. {advice}"
        ) from error
    if not isinstance(payload, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidPayload(f"the codec returned {type(payload).__name__}, expected bytes")
    if len(payload) > limit:
        raise InvalidPayload(
            f"the payload has {len(payload)} bytes, the limit is {limit}: store it elsewhere and "
            "dispatch a reference, or raise max_payload on the client"
        )
    return payload


def encode_many(codec: Codec, data: Sequence[object], limit: int) -> Sequence[bytes] | None:
    """All payloads, faster than one by one; None if they must be encoded one by one."""
    kinds = set(map(type, data))
    payloads: Sequence[bytes] | None = None
    if type(codec) is JsonCodec and kinds <= PLAIN:  # a subclass may have its own `encode`
        with contextlib.suppress(Exception):
            payloads = codec.encode_lines(data)
    elif type(codec) is RawCodec and kinds == {bytes}:
        payloads = cast("Sequence[bytes]", data)
    if payloads is None or max(map(len, payloads)) > limit:
        return None
    return payloads


def _holds_nan(data: object) -> bool:
    stack: list[object] = [data]
    while stack:
        item = stack.pop()
        if isinstance(item, float):
            if not math.isfinite(item):
                return True
        elif isinstance(item, Mapping):
            stack.extend(cast("Mapping[object, object]", item).values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            stack.extend(cast("list[object]", item))
        elif not isinstance(item, (str, bytes, int, type(None))):
            stack.append(msgspec.to_builtins(item, builtin_types=(float,)))
    return False
