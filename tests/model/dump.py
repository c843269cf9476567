"""The full state of a queue, of the server and of the model, in one comparable form.

The state of the server is read with plain commands, in the round trip of the tested call.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import hiredis
import msgspec

from queasy.store.keys import NAMES, QueueKeys
from tests.model.model import Queue
from tests.model.values import Call, Held

State = dict[str, Any]

ZSETS = {"waiting", "waiters", "leases", "clients", "cancels", "failed_at", "broken_at", "callers"}
UPDATES = ("update_data", "reset")
WORDS = {
    "c": "created", "u": "updated", "b": "blocked", "n": "unchanged",
    "x": "cancelled", "r": "requested", "a": "active", "-": "absent",
    "q": "requeued", "e": "exists", "l": "later", "t": "dequeued",
}  # fmt: skip


class Link:
    """A fast connection: requests are packed by hand, replies are parsed by hiredis."""

    def __init__(self, url: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(30)
        self._socket.connect(url.removeprefix("unix://"))
        self._reader = hiredis.Reader()

    def call(self, requests: bytes, replies: int) -> list[Any]:
        self._socket.sendall(requests)
        return [self._next() for _ in range(replies)]

    def _next(self) -> Any:
        while (reply := self._reader.gets()) is False:
            received = self._socket.recv(1 << 18)
            if not received:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(received)
        return reply

    def close(self) -> None:
        self._socket.close()


def pack(*args: str | bytes | int) -> bytes:
    out = [b"*%d\r\n" % len(args)]
    for arg in args:
        raw = arg if isinstance(arg, bytes) else str(arg).encode()
        out.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
    return b"".join(out)


def function(name: str, keys: Sequence[str], *args: str | bytes | int) -> bytes:
    return pack("FCALL", f"queasy_test_{name}", len(keys), *keys, *args)


class Dumper:
    """Reads one queue: the requests, packed once, and the last state."""

    def __init__(self, keys: QueueKeys) -> None:
        reads = [
            pack("ZRANGE", key, 0, -1, "WITHSCORES") if name in ZSETS else pack("HGETALL", key)
            for name, key in zip(NAMES, keys.all, strict=True)
        ]
        self.requests, self.replies = b"".join(reads), len(reads)
        self.audit = function("audit", keys.all, "0", 0, 1000)
        self._last: list[Any] = []
        self.state: State = {}

    def read(self, replies: list[Any]) -> bool:
        """Update `state`. Returns whether it changed."""
        if replies == self._last:
            return False
        for reply in replies:
            if isinstance(reply, Exception):
                raise AssertionError(f"the state cannot be read: {reply}")
        raw = {
            name: {key.decode(): value for key, value in pairs(reply)}
            for name, reply in zip(NAMES, replies, strict=True)
        }
        self._last, self.state = replies, _normal(raw)
        return True


def audit_problems(reply: list[Any]) -> list[Any]:
    problems, tallies, sizes = reply
    return problems if tallies == sizes else [*problems, f"tallies {tallies}, sizes {sizes}"]


def pairs(flat: list[Any]) -> Iterable[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _normal(raw: dict[str, dict[str, bytes]]) -> State:
    state: State = {name: raw[name] for name in ("data", "workers")}
    for name in ("waiting", "clients", "waiters", "callers"):
        state[name] = {key: float(score) for key, score in raw[name].items()}
    for name in ("leases", "cancels"):
        state[name] = set(raw[name])
    for name in ("failed", "broken"):
        order = raw[f"{name}_at"]  # from ZRANGE, so in order
        state[name] = [(id_, *split(raw[name].get(id_, b""))) for id_ in order]
        state[f"{name}_ids"] = set(raw[name])
    state["info"] = {id_: unpack(value) for id_, value in raw["info"].items()}
    state["active"] = {id_: _active(value) for id_, value in raw["active"].items()}
    state["blocked"] = {id_: _blocked(value) for id_, value in raw["blocked"].items()}
    state["calls"] = {caller: _call(value) for caller, value in raw["calls"].items()}
    state["requests"] = {client: _request(value) for client, value in raw["requests"].items()}
    state["meta"] = {
        name: unpack(value) if name == "limits" else float(value)
        for name, value in raw["meta"].items()
    }
    state["waiter_info"] = {name: unpack(value) for name, value in raw["waiter_info"].items()}
    stats = raw["stats"].items()
    state["stats"] = {
        kind.removeprefix("total:"): int(value)
        for kind, value in stats
        if kind.startswith("total:")
    }
    return state


@lru_cache(4096)
def unpack(raw: bytes) -> Any:
    return _tidy(msgspec.msgpack.decode(raw))


@lru_cache(4096)
def split(raw: bytes) -> tuple[Any, bytes]:
    """A record, and the payload that follows it."""
    end = _end(raw, 0)
    return unpack(raw[:end]), raw[end:]


def _tidy(value: Any) -> Any:
    """Replace empty arrays by empty maps, because Lua packs its empty table as an array."""
    if isinstance(value, dict):
        return {key: _tidy(inner) for key, inner in value.items()}
    return {} if value == [] else value


def _end(raw: bytes, at: int) -> int:
    """The end of the msgpack value that begins at `at`. msgspec decodes only whole messages."""
    kind = raw[at]
    if kind < 0x80 or kind >= 0xE0 or kind in (0xC0, 0xC2, 0xC3):
        return at + 1
    if kind < 0xA0:  # small map, small array
        return _end_of(raw, at + 1, (kind & 15) * (2 if kind < 0x90 else 1))
    if kind < 0xC0:
        return at + 1 + (kind & 31)
    if kind in (0xD9, 0xDA, 0xDB):
        width = 1 << (kind - 0xD9)
        return at + 1 + width + int.from_bytes(raw[at + 1 : at + 1 + width])
    widths = {
        0xCA: 4,
        0xCB: 8,
        0xCC: 1,
        0xCD: 2,
        0xCE: 4,
        0xCF: 8,
        0xD0: 1,
        0xD1: 2,
        0xD2: 4,
        0xD3: 8,
    }
    return at + 1 + widths[kind]


def _end_of(raw: bytes, at: int, values: int) -> int:
    for _ in range(values):
        at = _end(raw, at)
    return at


def _active(raw: bytes) -> tuple[int, float, str, bool]:
    token, score, client, *cancel = raw.decode().split(":")
    assert cancel in ([], ["cancel"])
    return int(token), float(score), client, bool(cancel)


def _call(raw: bytes) -> Call:
    number, noted, letters = raw.decode().split(" ")
    return Call(int(number), float(noted), [WORDS[letter] for letter in letters])


def _blocked(raw: bytes) -> State:
    held, payload = split(raw)
    options = held.get("options", {})
    return {
        "accepted": held["accepted"],
        "run_at": held["run_at"],
        "payload": payload,
        "options": options,
        "updated_options": {name: options.get(name) for name in held.get("update", {})},
        "clamp": (held.get("low", -math.inf), held.get("high", math.inf)),
        **{name: held[name] for name in UPDATES},
    }


def _request(raw: bytes) -> tuple[str, list[str] | None]:
    """The last request of a client, and the ids of its batch if the server keeps them."""
    words = raw.split(b" ", 3)
    return b" ".join(words[:3]).decode(), unpack(words[3]) if words[3:] else None


# The state of the model, in the same form


def state_of(queue: Queue) -> State:
    jobs = queue.waiting | {id_: run.job for id_, run in queue.active.items()}
    held = {id_: run.held for id_, run in queue.active.items() if run.held}
    leases = {id_: f"{run.client}:{id_}" for id_, run in queue.active.items()}
    return {
        "waiting": {id_: job.run_at for id_, job in queue.waiting.items()},
        "data": {id_: job.payload for id_, job in jobs.items()},
        "info": {id_: info for id_, job in jobs.items() if (info := job.info())},
        "active": {
            id_: (run.token, run.job.run_at, run.client, run.cancelled)
            for id_, run in queue.active.items()
        },
        "blocked": {id_: _held(dispatches) for id_, dispatches in held.items()},
        "leases": set(leases.values()),
        "cancels": {leases[id_] for id_, run in queue.active.items() if run.cancelled},
        "clients": queue.clients,
        "requests": {
            client: (" ".join(map(str, request)), queue.batches.get(client))
            for client, request in queue.requests.items()
        }
        | dict.fromkeys(queue.swept, ("swept", None)),
        "workers": queue.workers,
        "waiters": {name: waiter.at for name, waiter in queue.waiters.items()},
        "waiter_info": {
            name: record for name, waiter in queue.waiters.items() if (record := waiter.record())
        },
        "calls": queue.calls,
        "callers": {caller: call.noted for caller, call in queue.calls.items()},
        "meta": _meta(queue),
        "stats": queue.stats,
    } | _records(queue)


def _records(queue: Queue) -> State:
    state: State = {}
    for kind, records in queue.records.items():
        state[kind] = [(id_, *record) for id_, record in records.items()]
        state[f"{kind}_ids"] = set(records)
    return state


def _meta(queue: Queue) -> State:
    meta = dict(queue.settings)
    if queue.token:
        meta["token"] = queue.token
    if queue.seen is not None:
        meta["time"], meta["format"] = queue.seen, 1
    if queue.outage is not None:
        meta["gap_from"], meta["grace_until"], meta["back_at"] = queue.outage
    if queue.heard is not None:
        meta["heard"] = queue.heard
    if queue.records["failed"]:
        meta["has_failed"] = 1
    return meta


def _held(held: Held) -> State:
    """The effect of the blocked dispatches when the run ends, in the server's form."""
    low, high = -math.inf, math.inf
    names: set[str] = set()
    options: dict[str, float] = {}
    for dispatch in held.dispatches:
        low, high = dispatch.new_run_at(low), dispatch.new_run_at(high)
        names |= set(dispatch.update)
        options = dispatch.options(options)
    return {
        "accepted": held.job.dispatched_at,
        "run_at": held.job.run_at,
        "payload": held.job.payload,
        "options": held.job.options,
        "updated_options": {name: options.get(name) for name in names},
        "clamp": (low, high),
        **{name: any(getattr(d, name) for d in held.dispatches) for name in UPDATES},
    }
