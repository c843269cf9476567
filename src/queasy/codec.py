"""How data becomes a payload and back."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, cast, runtime_checkable

import msgspec

from queasy.errors import InvalidOption, InvalidPayload, UndecodablePayload

__all__ = ["Codec", "CodecName", "JsonCodec", "RawCodec"]

CodecName = Literal["json", "raw"]
QUOTE = ord('"')
# What is surely no bytes, as a whole, and no `Dispatch`.
PLAIN = frozenset({str, int, float, bool, type(None), dict, list, tuple})


@runtime_checkable
class Codec(Protocol):
    """Anything with `encode` and `decode`: a queue's own way to write its payloads."""

    def encode(self, data: Any, /) -> bytes: ...

    def decode(self, payload: bytes, /) -> Any: ...


class JsonCodec:
    """JSON. Dataclasses, datetimes, UUIDs and msgspec structs are written as JSON has them.

    With `type`, payloads are validated against it when they are read.
    """

    def __init__(self, type: Any = Any) -> None:  # noqa: A002 - the word msgspec uses
        encoder = msgspec.json.Encoder()
        self._write, self._write_lines = encoder.encode, encoder.encode_lines
        self._read = msgspec.json.Decoder(type).decode

    def encode(self, data: Any, /) -> bytes:
        payload = self._write(data)
        # The encoder writes bytes as a string: only what became one need be looked at.
        if payload[0] == QUOTE and isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError("JSON has no bytes; use codec='raw'")
        # JSON has no NaN and the encoder writes null: refuse rather than change the data.
        # (`in` would first try to read the word as a number, and take three times as long.)
        if payload.find(b"null") >= 0 and _holds_nan(data):
            raise ValueError("JSON cannot hold NaN or infinity")
        return payload

    def encode_lines(self, plain: Sequence[Any], /) -> list[bytes] | None:
        """Of what is `PLAIN`, many for less than one by one; None if one is better looked at."""
        lines = self._write_lines(plain)
        payloads = lines.split(b"\n")
        payloads.pop()
        if len(payloads) != len(plain):  # one holds JSON of the caller's own making
            return None
        if b"null" in lines:
            pairs = zip(payloads, plain, strict=True)
            if any(payload.find(b"null") >= 0 and _holds_nan(data) for payload, data in pairs):
                return None
        return payloads

    def decode(self, payload: bytes, /) -> Any:
        return self._read(payload)


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
    if not isinstance(codec, Codec):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(f"codec: expected encode and decode methods, got {codec!r}")
    return codec


def encode(codec: Codec, data: object, limit: int) -> bytes:
    """The payload of `data`, or a typed error that says why there is none."""
    try:
        payload = codec.encode(data)
    except Exception as error:
        # A codec is the user's code: whatever it raises means "not encodable".
        raise InvalidPayload(
            f"data of type {type(data).__name__} cannot be encoded: {error}. Convert it to what "
            "the codec knows, or give the queue another codec"
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
    """The payloads of all, for less than one by one; None if one is wrong, or more than data."""
    kinds = set(map(type, data))
    payloads: Sequence[bytes] | None = None
    if type(codec) is JsonCodec and kinds <= PLAIN:  # its own: another may do more in `encode`
        with contextlib.suppress(Exception):
            payloads = codec.encode_lines(data)
    elif type(codec) is RawCodec and kinds == {bytes}:
        payloads = cast("Sequence[bytes]", data)
    if payloads is None or max(map(len, payloads)) > limit:
        return None
    return payloads


def decode(codec: Codec, payload: bytes, queue: str, job_id: str) -> Any:
    try:
        return codec.decode(payload)
    except Exception as error:
        raise UndecodablePayload(f"job {job_id!r} of queue {queue!r}: {error}") from error


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
