"""Reads the records of jobs that the server sends. Milliseconds become seconds here."""

from __future__ import annotations

import struct
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

import msgspec

from queasy.codec import Codec
from queasy.job import NOT_CANCELLED, CancelFlag, Job, JobError, State
from queasy.options import DURATION_OPTIONS, OPTION_NAMES, JobOptions
from queasy.store.records import decode_text

__all__ = ["JobReader"]

# The `info` record of a job that was scheduled and has nothing else to record: the key
# `dispatched_at`, followed by a double of 8 bytes.
SCHEDULED = b"\x81\xaddispatched_at\xcb"
SCHEDULED_BYTES = len(SCHEDULED) + 8


class _Info(msgspec.Struct):
    """The `info` record of a job, as Lua packs it."""

    dispatched_at: float = 0.0
    retry_count: int = 0
    stall_count: int = 0
    timeout_count: int = 0
    expiry_count: int = 0
    options: dict[str, float] = {}
    limits: dict[str, float] = {}
    error: dict[str, str] | None = None
    companions: int | None = None
    origin: _Origin | None = None


class _Origin(msgspec.Struct):
    """In the `info` of a job in a fail queue: the job that was given up."""

    id: str = ""
    token: str = "0"
    failed_at: float = 0.0
    dispatched_at: float = 0.0
    run_at: float = 0.0
    retry_count: int = 0
    stall_count: int = 0
    timeout_count: int = 0
    expiry_count: int = 0
    options: dict[str, float] = {}
    limits: dict[str, float] = {}
    error: dict[str, str] | None = None


class _Note(msgspec.Struct):
    """The facts that a list adds to a job: was its cancel requested, when did it fail or break."""

    cancelled: bool = False
    at: float = 0.0


_info_decoder = msgspec.msgpack.Decoder(_Info)
_note_decoder = msgspec.msgpack.Decoder(_Note)
# The server keeps tokens as doubles.
MAX_TOKEN = 2**53
_read_ints = msgspec.json.Decoder(list[int]).decode
_read_floats = msgspec.json.Decoder(list[float]).decode
_double = struct.Struct(">d")
_NO_INFO = _Info()
_NO_NOTE = _Note()
_NO_OPTIONS = JobOptions()


def _numbers(tokens: list[bytes], run_ats: list[bytes]) -> tuple[list[int], list[float]] | None:
    """The tokens and times as numbers; None if one is invalid. Converting them one by one takes
    twice as long.
    """
    try:
        ints = _read_ints(b"[" + b",".join(tokens) + b"]")
        floats = _read_floats(b"[" + b",".join(run_ats) + b"]")
    except msgspec.DecodeError:  # also for an infinite time, which JSON does not have
        return None
    if not len(ints) == len(tokens) == len(floats):
        return None
    return ints, floats


def _read_options(wire: dict[str, float], limits: JobOptions) -> JobOptions:
    """The options that a job has itself; the others are those of `limits`."""
    if not wire:
        return limits
    known: dict[str, Any] = {
        name: value / 1000 if name in DURATION_OPTIONS else int(value)
        for name, value in wire.items()
        if name in OPTION_NAMES
    }
    if known.get("timeout") == 0:  # an older client accepted it, and every run failed
        del known["timeout"]
    return replace(limits, **known)


def _options_then(own: dict[str, float], limits: dict[str, float]) -> JobOptions:
    """The options that were in force when a job was given up."""
    return _options_then_of(tuple(own.items()), tuple(limits.items()))


# Most jobs of a queue are given up under the same limits. Reading them again took a seventh of a
# worker's time for a job that fails and its fail handler.
@lru_cache(maxsize=256)
def _options_then_of(
    own: tuple[tuple[str, float], ...], limits: tuple[tuple[str, float], ...]
) -> JobOptions:
    try:
        of_queue = _read_options(dict(limits), _NO_OPTIONS)
    except (ValueError, OverflowError):
        # Another program configured the queue. The job is still read if its limits are invalid.
        of_queue = _NO_OPTIONS
    return _read_options(dict(own), of_queue)


def _read_error(wire: dict[str, str] | None) -> JobError | None:
    if wire is None:
        return None
    return JobError(
        type=wire.get("type", ""),
        message=wire.get("message", ""),
        kind=cast("Any", wire.get("kind", "retriable")),
        traceback=wire.get("traceback", ""),
        attributes=_read_attributes(wire["attributes"]) if "attributes" in wire else {},
        causes=_read_causes(wire["causes"]) if "causes" in wire else (),
    )


def _read_attributes(text: str) -> dict[str, Any]:
    """The attributes of an error; none if another program wrote something else."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return {}


def _read_causes(text: str) -> tuple[JobError, ...]:
    try:
        return msgspec.json.decode(text, type=tuple[JobError, ...])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return ()


def _read_origin(
    origin: _Origin | None, queue: str, payload: bytes, codec: Codec | None
) -> Job | None:
    if origin is None:
        return None
    return Job(
        id=origin.id,
        queue=queue,
        state="failed",
        payload=payload,
        token=int(origin.token),
        retry_count=origin.retry_count,
        stall_count=origin.stall_count,
        timeout_count=origin.timeout_count,
        expiry_count=origin.expiry_count,
        options=_options_then(origin.options, origin.limits),
        error=_read_error(origin.error),
        # As in `info`: the record has the run_at only if it differs from the time of the dispatch.
        # Records of revision 10 have neither the limits nor the run_at.
        run_at_epoch=(origin.run_at or origin.dispatched_at) / 1000 if origin.limits else 0.0,
        dispatched_at_epoch=origin.dispatched_at / 1000,
        ended_at_epoch=origin.failed_at / 1000,
        codec=codec,
    )


class JobReader:
    """Reads the jobs of one queue.

    `queue` is its name as people see it. `base_queue` is the same or, for a fail queue, the queue
    whose jobs were given up.

    With the queue's `limits`, jobs that were just leased carry the options in force, not only
    their own.
    """

    def __init__(
        self, base_queue: str, queue: str, codec: Codec | None, limits: JobOptions | None = None
    ) -> None:
        self._base_queue = base_queue
        self._queue = queue
        self._codec = codec
        self._limits = limits or _NO_OPTIONS

    def count(self, flat: list[bytes]) -> int:
        """How many jobs a flat list of leased jobs has: id, token, run_at, data, info of each."""
        count, rest = divmod(len(flat), 5)
        if rest:
            raise ValueError(f"expected five values for each job, got {len(flat)}")
        return count

    def taken(self, flat: list[bytes], client: str) -> list[Job]:
        """The jobs of a flat list, leased to `client`."""
        ids, tokens, run_ats, payloads, infos = (flat[n::5] for n in range(5))
        numbers = _numbers(tokens, run_ats)
        if numbers is None:  # `_job` finds the jobs whose numbers are invalid
            rows = zip(ids, tokens, run_ats, payloads, infos, strict=True)
            return [self._leased_general(client, *row) for row in rows]
        rows = zip(ids, *numbers, payloads, infos, strict=True)
        return [self._leased(client, *row) for row in rows]

    def handed(self, message: bytes, client: str) -> Job:
        """The job of a hand-off message, leased to `client`.

        The message is `job:token:run_at:length of the id:length of the info:`, then id, info and
        data. Anything else, which any client may publish, raises ValueError.
        """
        _, token_text, run_at_text, id_length, info_length, rest = message.split(b":", 5)
        info_at = int(id_length)
        data_at = info_at + int(info_length)
        token, run_at = int(token_text), float(run_at_text)
        if not (0 < info_at <= data_at <= len(rest) and 0 < token <= MAX_TOKEN):
            raise ValueError("not a hand-off of the server")
        info, payload = rest[info_at:data_at], rest[data_at:]
        return self._leased(client, rest[:info_at], token, run_at, payload, info)

    def _leased(
        self, client: str, id_: bytes, token: int, run_at: float, payload: bytes, info: bytes
    ) -> Job:
        # Nearly every job has no info, or only the one that `SCHEDULED` describes. A worker reads
        # many: keep it fast.
        due = dispatched_at = run_at / 1000
        if info:
            if len(info) != SCHEDULED_BYTES or not info.startswith(SCHEDULED):
                return self._leased_general(client, id_, token, run_at, payload, info)
            (milliseconds,) = _double.unpack_from(info, len(SCHEDULED))
            dispatched_at = milliseconds / 1000 or due
        return Job(
            id=id_.decode("utf-8", "surrogateescape"), queue=self._queue, state="active",
            payload=payload, token=token, client=client, options=self._limits,
            flag=CancelFlag(), run_at_epoch=due, dispatched_at_epoch=dispatched_at,
            codec=self._codec,
        )  # fmt: skip

    def _leased_general(
        self, client: str, id_: bytes, token: bytes | int, run_at: bytes | float, payload: bytes,
        info: bytes,
    ) -> Job:  # fmt: skip
        """A leased job with any info. If its token, time or info is invalid, it is unreadable."""
        return self._job(
            id_, "active", run_at, token, client, info, payload, b"", self._limits, CancelFlag()
        )

    def row(self, row: list[bytes]) -> Job:
        """The job of one row of a list; `info` and `note` are MessagePack."""
        id_, state, run_at, token, client, info, payload, note, *_ = row
        return self._job(
            id_, cast("State", state.decode()), run_at, token, decode_text(client), info, payload,
            note, _NO_OPTIONS, NOT_CANCELLED,
        )  # fmt: skip

    def _job(
        self, id_: bytes, state: State, run_at: bytes | float, token_word: bytes | int, client: str,
        info_record: bytes, payload: bytes, note_record: bytes, limits: JobOptions,
        flag: CancelFlag,
    ) -> Job:  # fmt: skip
        info, note, options, origin, problem = _NO_INFO, _NO_NOTE, limits, None, None
        due, token = 0.0, 0
        try:
            token = int(token_word or 0)
            due = float(run_at or 0) / 1000
            info = _info_decoder.decode(info_record) if info_record else _NO_INFO
            note = _note_decoder.decode(note_record) if note_record else _NO_NOTE
            if info.limits:  # of a job that was given up
                options = _options_then(info.options, info.limits)
            else:
                options = _read_options(info.options, limits)
            origin = _read_origin(info.origin, self._base_queue, payload, self._codec)
        except Exception as error:
            # Another program wrote it. One bad record, whatever is wrong with it, must not make
            # the other jobs of its page or batch unreadable.
            problem = JobError("Unreadable", f"the job's record cannot be read: {error}", "broken")
        return Job(
            id=decode_text(id_),
            queue=self._queue,
            state=state,
            payload=payload,
            token=token,
            client=client,
            retry_count=info.retry_count,
            stall_count=info.stall_count,
            timeout_count=info.timeout_count,
            expiry_count=info.expiry_count,
            options=options,
            error=problem or _read_error(info.error),
            readable=problem is None,
            companions=info.companions,
            flag=CancelFlag(on=True) if note.cancelled else flag,
            origin=origin,
            run_at_epoch=due,
            dispatched_at_epoch=info.dispatched_at / 1000 or due,
            ended_at_epoch=note.at / 1000,
            codec=self._codec,
        )
