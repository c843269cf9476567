"""A dispatch as a value: the data of a job, and how to put it. Every field is checked here."""

from __future__ import annotations

import base64
import functools
import os
import socket
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from queasy.codec import Codec, encode
from queasy.errors import InvalidOption, InvalidTime
from queasy.options import (
    Durability,
    IfExists,
    JobOptions,
    Replicated,
    Seconds,
    UpdateRunAt,
    When,
    check_bool,
    check_id,
    check_update_options,
    epoch,
    seconds,
)
from queasy.store.records import DEFAULT_FLAGS, DispatchItem, pack_options, when_arg

__all__ = [
    "Dispatch",
    "DispatchDefaults",
    "check_durability",
    "item_of",
    "new_client_id",
    "new_id",
    "new_ids",
]

RUN_AT_MODES: dict[Any, str] = {
    None: "t", True: "t", False: "f", "if_later": "l", "if_earlier": "e",
}  # fmt: skip
ONLY_IF_ABSENT = "1t11"
# The arguments that say what a dispatch changes in a job that exists.
UPDATES = ("update_data", "update_run_at", "update_options", "reset_counts")
DURABILITIES = ("ack", "fsynced", "replicated")


class Dispatch(msgspec.Struct, frozen=True):
    """One job for `dispatch_many` that needs more than its data.

    The arguments are those of `Queue.dispatch`.
    """

    data: Any
    id: str | None = None
    run_at: When | None = None
    delay: Seconds | None = None
    options: JobOptions | None = None
    update_data: bool | None = None
    update_run_at: UpdateRunAt | None = None
    update_options: bool | Collection[str] | None = None
    reset_counts: bool | None = None
    if_exists: IfExists | None = None

    def item(self, codec: Codec, max_payload: int) -> DispatchItem:
        """The item to send; raises InvalidInput when a field is not valid."""
        return self.item_with(encode(codec, self.data, max_payload))

    def item_with(self, payload: bytes) -> DispatchItem:
        """The item to send, with data that is already encoded."""
        id_ = new_id() if self.id is None else check_id(self.id)
        if self._has_only_data():
            return DispatchItem(id_, payload)
        return DispatchItem(id_, payload, self._when(), self._flags(), self._options())

    def _has_only_data(self) -> bool:
        """Whether no other field is given, as in most dispatches: they need no checks."""
        return (
            self.run_at is None
            and self.delay is None
            and self.options is None
            and self.update_data is None
            and self.update_run_at is None
            and self.update_options is None
            and self.reset_counts is None
            and self.if_exists is None
        )

    def _when(self) -> str:
        if self.run_at is None and self.delay is None:
            return ""
        if self.run_at is not None and self.delay is not None:
            raise InvalidTime("expected run_at or delay, got both")
        if self.run_at is not None:
            return when_arg(epoch(self.run_at, "run_at"), None)
        return when_arg(None, seconds(self.delay, "delay"))

    def _flags(self) -> str:
        if self._skips():
            return ONLY_IF_ABSENT
        mode = None
        if self.update_run_at is None or isinstance(self.update_run_at, (bool, str)):  # pyright: ignore[reportUnnecessaryIsInstance]
            mode = RUN_AT_MODES.get(self.update_run_at)
        if mode is None:
            raise InvalidOption(
                "update_run_at: expected True, False, 'if_later' or 'if_earlier', "
                f"got {self.update_run_at!r}"
            )
        data = True if self.update_data is None else check_bool(self.update_data, "update_data")
        reset = data if self.reset_counts is None else check_bool(self.reset_counts, "reset_counts")
        flags = f"{data:d}{mode}{reset:d}0"
        return "" if flags == DEFAULT_FLAGS else flags

    def _skips(self) -> bool:
        """Whether it leaves a job that exists as it is."""
        if self.if_exists not in (None, "update", "skip"):
            raise InvalidOption(f"if_exists: expected 'update' or 'skip', got {self.if_exists!r}")
        if self.if_exists != "skip":
            return False
        if updates := [name for name in UPDATES if getattr(self, name) is not None]:
            raise InvalidOption(
                f"if_exists: expected 'update', because {', '.join(updates)} is given, got 'skip', "
                f"which changes nothing in a job that exists: leave out {', '.join(updates)}, or "
                "use if_exists='update'"
            )
        return True

    def _options(self) -> bytes:
        if self.options is None and self.update_options is None:
            return b""
        options = JobOptions() if self.options is None else self.options
        if not isinstance(options, JobOptions):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(f"options: expected JobOptions, got {type(options).__name__}")
        update = True if self.update_options is None else check_update_options(self.update_options)
        return pack_options(options, update)


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchDefaults:
    """What a dispatch does not say: see `Client.queue`. An argument that it gives wins.

    The arguments are those of `Queue.dispatch`. `options` are merged: those that a dispatch does
    not set have the values given here. If a dispatch says `if_exists="skip"`, the arguments about
    updates do not apply to it.
    """

    options: JobOptions | None = None
    update_data: bool | None = None
    update_run_at: UpdateRunAt | None = None
    update_options: bool | Collection[str] | None = None
    reset_counts: bool | None = None
    if_exists: IfExists | None = None
    durability: Durability | None = None

    def __post_init__(self) -> None:
        self.complete(Dispatch(None)).item_with(b"")  # checks all but the durability
        if self.durability is not None:
            check_durability(self.durability)

    def complete(self, given: Dispatch) -> Dispatch:
        """The dispatch with these values for what it does not say."""
        skips = given.if_exists == "skip"
        names = ["if_exists"] if skips else ["if_exists", *UPDATES]
        found = {name: getattr(self, name) for name in names if getattr(given, name) is None}
        if isinstance(given.options, JobOptions) and isinstance(self.options, JobOptions):
            found["options"] = given.options.over(self.options)
        elif given.options is None:
            found["options"] = self.options
        return msgspec.structs.replace(given, **found)


def check_durability(value: Durability) -> Durability:
    if value in DURABILITIES or isinstance(value, Replicated):  # pyright: ignore[reportUnnecessaryIsInstance]
        return value
    raise InvalidOption(
        f"durability: expected 'ack', 'fsynced', 'replicated' or Replicated(2), got {value!r}"
    )


def item_of(job: object, codec: Codec, max_payload: int) -> DispatchItem:
    """The item to send for a `Dispatch`, or for data alone."""
    if isinstance(job, Dispatch):
        return job.item(codec, max_payload)
    return DispatchItem(new_id(), encode(codec, job, max_payload))


# Ids are made in blocks, because a system call for each would cost more than everything else.
_IDS_PER_BLOCK = 256
_spare_ids: list[str] = []
# A forked child must not use the ids of its parent.
os.register_at_fork(after_in_child=_spare_ids.clear)


def new_id() -> str:
    """A unique id of twelve characters: 72 random bits, and the longest that the server stores in
    16 bytes.
    """
    try:
        return _spare_ids.pop()  # safe between threads
    except IndexError:
        ids = new_ids(_IDS_PER_BLOCK)
        mine = ids.pop()
        _spare_ids.extend(ids)
        return mine


# The first six bits of an id never stand for "-": a command line would take the id for an option.
_FIRST_BYTE = bytes(byte ^ 0x80 if byte >> 2 == 62 else byte for byte in range(256))


def new_ids(count: int) -> list[str]:
    random = bytearray(os.urandom(9 * count))
    random[::9] = random[::9].translate(_FIRST_BYTE)
    text = base64.urlsafe_b64encode(random).decode()
    return [text[at : at + 12] for at in range(0, len(text), 12)]


def new_client_id(group: str | None = None) -> str:
    """A unique id for a client that waits for jobs. It says on which host the client runs, and
    which clients end together: those of one `group`, or of this process. The server does not rely
    on the waiters of one host or group.
    """
    number = _process_number(os.getpid()) if group is None else zlib.crc32(group.encode())
    return f"h{_host():08x}-g{number:08x}-{new_id()}"


@functools.cache
def _process_number(_pid: int) -> int:
    """A random number for a process. A forked process gets another one."""
    return int.from_bytes(os.urandom(4))


@functools.cache
def _host() -> int:
    """A number for this host: the same for all its containers."""
    name = os.environ.get("QUEASY_HOST", "")
    if not name:
        try:
            name = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        except OSError:
            name = socket.gethostname()
    return zlib.crc32(name.encode())
