"""Runs every step on the server and on the model, and compares replies and states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pprint import pformat
from typing import Any

import msgspec

from queasy.store.keys import QueueKeys
from tests.model.dump import (
    Dumper,
    Link,
    State,
    audit_problems,
    function,
    pack,
    pairs,
    state_of,
    unpack,
)
from tests.model.jobs import REFUSED, Number
from tests.model.model import Queue
from tests.model.values import Ending, Item
from tests.store.timed import timed_source

Args = list[str | bytes | int]
Step = tuple[str, str, float, dict[str, Any]]
"""A function, 'main' or 'fail' for the queue, the time in ms, and the arguments by name."""

FLAGS = ("fail_handler", "paused")
DISPATCH_KEYS = {"dispatch"}
FAIL_KEYS = {"dequeue", "settle", "bump", "sweep", "evict"}


class DifferenceError(AssertionError):
    """The server and the model differ."""


class Pair:
    def __init__(self, url: str) -> None:
        self.link = Link(url)
        self.keys = {"main": QueueKeys("m", "q"), "fail": QueueKeys("m", "q", fail=True)}
        self._dumpers = {name: Dumper(keys) for name, keys in self.keys.items()}
        self._dump = b"".join(dumper.requests for dumper in self._dumpers.values())
        self._dumped = sum(dumper.replies for dumper in self._dumpers.values())
        (loaded,) = self.link.call(pack("FUNCTION", "LOAD", "REPLACE", timed_source()), 1)
        assert loaded == b"queasy_test", loaded
        (about,) = self.link.call(pack("INFO", "server"), 1)
        self.server = "Valkey" if b"valkey_version" in about else "Redis"
        self.reset()

    def reset(self) -> None:
        self.link.call(pack("FLUSHALL"), 1)
        fail = Queue()
        self.queues = {"main": Queue(fail), "fail": fail}
        self.steps: list[Step] = []

    def run(self, name: str, queue: str, now: float, /, **arguments: Any) -> Any:
        """Run one step on both, compare everything, and return the reply."""
        self.steps.append((name, queue, now, arguments))
        wire, request = self._request(name, queue, now, **arguments)
        reply, *dumped = self.link.call(request + self._dump, 1 + self._dumped)
        expected = getattr(self.queues[queue], name)(now, **arguments)
        refused = isinstance(reply, Exception)
        if refused != (expected == REFUSED):
            raise self._difference(f"reply\n  server {reply}\n  model  {expected}")
        got = REFUSED if refused else wire.read(reply)
        if got != expected:
            raise self._difference(f"reply\n  server {got}\n  model  {expected}")
        self._compare(dumped)
        return got

    def replay(self, steps: Iterable[Step]) -> Any:
        reply = None
        for name, queue, now, arguments in steps:
            reply = self.run(name, queue, now, **arguments)
        return reply

    def _request(
        self, name: str, queue: str, now: float, call: Number = None, **arguments: Any
    ) -> tuple[Wire, bytes]:
        # Where the protocol has a short and a long form, the two alternate.
        wire = WIRE[name](short=len(self.steps) % 2 == 0, **arguments)
        keys, args = self._keys_of(name, queue), wire.args
        if call:
            args = [*call, *args[2:]]
        return wire, function(wire.function or name, keys, repr(now), *args)

    def _keys_of(self, name: str, queue: str) -> Sequence[str]:
        keys = self.keys[queue]
        if name in FAIL_KEYS:
            return keys.with_fail_queue
        return keys.for_dispatch if name in DISPATCH_KEYS else keys.all

    def _compare(self, dumped: list[Any]) -> None:
        audits: list[bytes] = []
        for name, dumper in self._dumpers.items():
            replies, dumped = dumped[: dumper.replies], dumped[dumper.replies :]
            if dumper.read(replies):
                audits.append(dumper.audit)
            expected = state_of(self.queues[name])
            if dumper.state != expected:
                raise self._difference(f"state of {name}\n{_diff(dumper.state, expected)}")
        for reply in self.link.call(b"".join(audits), len(audits)) if audits else []:
            if problems := audit_problems(reply):
                raise self._difference(f"audit: {problems}")

    def _difference(self, what: str) -> DifferenceError:
        steps = pformat(self.steps, width=100, sort_dicts=False)
        return DifferenceError(f"step {len(self.steps)}: {what}\nall steps:\n{steps}")


def _diff(got: State, expected: State) -> str:
    names = [name for name in expected if got[name] != expected[name]]
    return "\n".join(f"  {n}\n    server {got[n]}\n    model  {expected[n]}" for n in names)


# Arguments on the wire, and replies


def _plain(reply: Any) -> Any:
    if isinstance(reply, list):
        return [_plain(part) for part in reply]
    return reply.decode() if isinstance(reply, bytes) else reply


class Wire(msgspec.Struct):
    args: Args
    read: Callable[[Any], Any] = _plain
    function: str = ""
    """The server function, if its name is not that of the step."""


def _packed(value: Any) -> bytes:
    return b"" if value is None else msgspec.msgpack.encode(value)


def _dispatch(items: Sequence[Item], *, short: bool) -> Wire:
    args: Args = ["", ""]
    if short and all(not (when or flags or given) for _, _, when, flags, given in items):
        for id_, payload, *_ in items:
            args += [id_, payload]
        return Wire(args, function="put")
    for id_, payload, when, flags, given in items:
        options = b"" if given is None else _packed({"set": given[0], "update": given[1]})
        args += [id_, payload, when, flags, options]
    return Wire(args)


def _endings(endings: Sequence[Ending]) -> Args:
    args: Args = []
    for verb, id_, token, when, error in endings:
        record = {"when": when or None, "error": error}
        if verb == "death":
            record = {"started": int(when)}
        given = {name: value for name, value in record.items() if value is not None}
        args += [verb, id_, token, _packed(given or None)]
    return args


def _dequeue(
    client: str, lease: int, limit: int, request: str, waiter: str, waits: int,
    endings: Sequence[Ending], beside: int = 0, hand: bool = False, *, short: bool,
) -> Wire:  # fmt: skip
    """With `short`, the finishes at the end of the endings are sent as one packed list."""
    full = len(endings)
    while short and full and endings[full - 1].verb == "finish":
        full -= 1
    finishes = [str(word) for _, id_, token, *_ in endings[full:] for word in (id_, token)]
    args: Args = [
        "", "", client, lease, limit, request, waiter, waits, full, *_endings(endings[:full]),
    ]  # fmt: skip
    words = [f"beside={beside}"] * bool(beside) + ["hand"] * hand
    args += [" ".join(words), _packed(finishes or None)]
    return Wire(args, partial(_read_dequeue, finishes=len(finishes) // 2))


def _read_dequeue(reply: list[Any], finishes: int) -> tuple[Any, ...]:
    """`finishes` is the number of finishes in the packed list."""
    state, next_poll, settled, flat, cancels, lost, *_ = reply
    words = ["lost" if number + 1 in lost else "finished" for number in range(finishes)]
    rows = [
        (id_.decode(), int(token), float(run_at), data, unpack(info) if info else {})
        for id_, token, run_at, data, info in zip(*(flat[at::5] for at in range(5)), strict=True)
    ]
    return state.decode(), next_poll, _plain(settled) + words, rows, _cancels(cancels)


def _cancels(flat: list[bytes]) -> list[tuple[str, int]]:
    return [(id_.decode(), int(token)) for id_, token in pairs(flat)]


def _read_bump(reply: list[Any]) -> tuple[list[tuple[str, Any]], int]:
    answers = [(state.decode(), _cancels(cancels)) for state, cancels, _ in reply]
    (next_in,) = {next_in for _, _, next_in in reply}
    return answers, next_in


def _configure(**settings: Any) -> Args:
    return [_packed({name: bool(v) if name in FLAGS else v for name, v in settings.items()})]


def _one_form(
    args: Callable[..., Args], read: Callable[[Any], Any] = _plain
) -> Callable[..., Wire]:
    """For calls with only one form."""
    return lambda short, **arguments: Wire(args(**arguments), read)


WIRE: dict[str, Callable[..., Wire]] = {
    "dispatch": _dispatch,
    "cancel": _one_form(lambda ids, running: ["", "", int(running), *ids]),
    "dequeue": _dequeue,
    "settle": _one_form(_endings),
    "register": _one_form(lambda client, lease, worker: [client, lease, worker]),
    "bump": _one_form(lambda lease, clients: [lease, *clients], _read_bump),
    "extend": _one_form(lambda id_, token, lease: [id_, token, lease]),
    "sweep": _one_form(lambda: []),
    "evict": _one_form(
        lambda client: [client],
        lambda reply: (reply[0].decode(), reply[1]),
    ),
    "configure": _one_form(_configure),
    "requeue": _one_form(lambda kind, ids: ["", "", kind, *ids]),
    "drop": _one_form(lambda kind, ids: [kind, *ids]),
    "trim": _one_form(lambda kind, keep: [kind, keep]),
}
