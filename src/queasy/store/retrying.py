"""One call, until it is answered: finding the server, loading the library, riding out what
passes by itself. All resilience is here, once; runners only carry the steps out.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

import msgspec

from queasy.errors import (
    NotDurable,
    OutOfMemory,
    ProtocolError,
    QueasyError,
    ServerError,
    Unanswered,
)
from queasy.options import Durability
from queasy.store import library
from queasy.store.command import Command
from queasy.store.commands import version
from queasy.store.health import check_server
from queasy.store.net.connection import RawCommand, pack
from queasy.store.net.faults import PROBLEMS, Fault, Lost, NotSent, Remedy, diagnose
from queasy.store.net.server_errors import (
    AskError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
)
from queasy.store.net.topology import Effect, Exchange, HangUp, Pause, Route, redirected
from queasy.store.net.url import Address

__all__ = ["FailedTry", "answer_of", "call", "connect", "load_library", "packed", "words_of"]

T = TypeVar("T")
log = logging.getLogger("queasy")

FIRST_PAUSE_SECONDS = 0.01
MAX_PAUSE_SECONDS = 1.0
# A server that was never there is given so many pauses, a moment in all: a line may be cut
# while it is opened.
MAX_CONNECT_PAUSES = 2
# Redirections and library loads are progress, not waiting; but two servers that send a call to
# each other have yet to agree, and that takes them a while.
MAX_TURNS_WITHOUT_PAUSE = 5
# The part of its patience that a call gives a replica, or the disk: less than an answer may take.
DURABILITY_SHARE = 0.4


class FailedTry(NamedTuple):
    """A first try, of a command without more ado, at an address that was known."""

    address: Address
    began: float
    problem: Exception


def packed(command: Command[T]) -> Command[T]:
    """The same with its bytes: what takes longest about sending it is done."""
    return msgspec.structs.replace(command, packed=pack((words_of(command),)))


def words_of(command: Command[Any]) -> tuple[Any, ...]:
    """What is sent."""
    fcall = "FCALL_RO" if command.read_only else "FCALL"
    keys = command.keys
    return (fcall, library.PREFIX + command.function, len(keys), *keys, *command.args)


def answer_of(command: Command[T], reply: Any) -> T:
    """What came back; raises what the server has against it."""
    if isinstance(reply, Exception):
        raise reply
    try:
        return command.read(reply)
    except Exception as problem:
        raise ProtocolError(
            f"{_what(command)}: an answer that cannot be read "
            f"({type(problem).__name__}: {problem}). Is this a server with Queasy's library, "
            "and nobody else's? Run the audit"
        ) from problem


def _what(command: Command[Any]) -> str:
    """For errors, in the words of whoever called."""
    return ("dispatch" if command.function == "put" else command.function) + _queue_of(command)


def _queue_of(command: Command[Any]) -> str:
    key = command.keys[0] if command.keys else ""
    name = key.partition("{")[2].partition("}")[0]
    return f" of queue {name!r}" if name else ""


def call(
    command: Command[T],
    route: Route,
    *,
    patience: float,
    connected: bool = True,
    durability: Durability = "ack",
    failed: FailedTry | None = None,
) -> Generator[Effect, Any, T]:
    """Runs a command to its answer, or raises what stands in the way.

    For `patience` seconds it rides out a server that is away; one that was never there
    (not `connected`) is a mistake, and said at once. A call whose answer was lost is sent
    again: every function is safe to repeat. It goes on where a first try `failed`.
    """
    attempt = _Attempt(command, durability, patience * DURABILITY_SHARE)
    give_up_at = (time.monotonic() if failed is None else failed.began) + patience
    pauses = None
    while True:
        try:
            if failed is not None:
                (attempt.address, _, problem), failed = failed, None
                raise problem
            return (yield from attempt.once(route))
        except PROBLEMS as problem:
            pauses = pauses or _Pauses(give_up_at)
            fault = diagnose(problem, str(route.target), f"{attempt.what} on")
            attempt.repeated |= fault.uncertain
            hopeless = not connected and not attempt.in_group(route)
            if isinstance(problem, NotSent) and hopeless and pauses.made >= MAX_CONNECT_PAUSES:
                raise fault.error from None
            _apply_remedy(fault, problem, route, attempt)
        if fault.remedy is Remedy.ROUTE and not route.can_change:
            # One address, but a name (or a proxy) may lead elsewhere after a failover, while an
            # open connection stays with whom it was made to. New ones tell, at once.
            yield HangUp((yield from route.locate(attempt.key)))
            continue
        if (
            fault.remedy in (Remedy.MOVED, Remedy.ASK, Remedy.LOAD)
            and attempt.turns < MAX_TURNS_WITHOUT_PAUSE
        ):
            attempt.turns += 1
            continue
        # Also before giving up: or the next call would begin with the same server, for ever.
        route.forget(attempt.address)
        attempt.turns, attempt.asked = 0, None
        if (pause := pauses.next()) is None:
            raise attempt.failure(fault) from None
        yield pause


class _Pauses:
    """Between tries: longer and longer, until there is no time left for another."""

    def __init__(self, give_up_at: float) -> None:
        self._give_up_at = give_up_at
        self.made = 0

    def next(self) -> Pause | None:
        pause = min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**self.made) * random.uniform(
            0.5, 1.0
        )
        self.made += 1
        return None if time.monotonic() + pause >= self._give_up_at else Pause(pause)


class _Attempt:
    """What one call remembers between its tries."""

    def __init__(self, command: Command[Any], durability: Durability, within: float) -> None:
        self.command = command
        self.durability = durability
        self.within = within
        self.repeated = False
        self.lacking: Address | None = None
        """It has no library: it may be too new to be known as a primary."""
        self.called_again = False
        self.asked: Address | None = None
        self.address: Address | None = None
        """Where it was last sent."""
        self.turns = 0
        self.key = command.keys[0] if command.keys else None

    @property
    def what(self) -> str:
        """For errors."""
        return _what(self.command)

    def once(self, route: Route) -> Generator[Effect, Any, Any]:
        if self.lacking is not None:
            try:
                yield from _load_on(self.lacking)
            except Lost as problem:  # of the library: the call itself did not leave
                raise NotSent(str(problem)) from problem
            self.lacking = None
        command = self.command
        sent: tuple[RawCommand, ...] = (command.packed or words_of(command),)
        address = self.address = self.asked
        self.asked = None
        asking = address is not None
        if asking:
            sent = (("ASKING",), *sent)
        else:
            address = yield from route.locate(self.key)
        assert address is not None
        self.address = address
        waits = self.durability != "ack"
        if waits:
            sent += self._durability_commands()
        replies = yield Exchange(address, sent, alone=waits)
        result = answer_of(command, replies[asking])
        if waits:
            self._check_durability(replies[-1])
        unclear = command.unclear_when_repeated
        if self.repeated and unclear is not None and unclear(result):
            raise Unanswered(
                f"{self.what}: the answer to a first try was lost, and the "
                "second cannot tell whether the first was carried out"
            )
        return result

    def in_group(self, route: Route) -> bool:
        """Whether somebody told us where to send it, so that another may yet be named."""
        return route.is_group and self.address is not None

    def _durability_commands(self) -> tuple[tuple[Any, ...], ...]:
        within = round(self.within * 1000)
        match self.durability:
            case "fsynced":
                return (("WAITAOF", 1, 0, within),)
            case "replicated":
                return (("WAIT", 1, within),)
            case _:
                return ()

    def _check_durability(self, reply: Any) -> None:
        """The write is accepted in any case; say loudly when it is not as safe as asked."""
        if isinstance(reply, Exception):
            if "unknown command" in str(reply).lower():
                raise NotDurable(
                    f"{self.what} was accepted, but not confirmed to be on "
                    "disk: durability='fsynced' needs WAITAOF, of Redis 7.2+ or Valkey"
                ) from reply
            if str(reply).startswith("UNBLOCKED"):
                # It is no primary any more: whether the new one has the write is for that to say.
                raise Lost(str(reply))
            raise NotDurable(
                f"accepted, but durability={self.durability!r} failed: {reply}"
            ) from reply
        reached = reply[0] if self.durability == "fsynced" else reply
        if reached < 1:
            raise NotDurable(
                f"{self.what} was accepted, but durability="
                f"{self.durability!r} was not reached within {self.within:g} s: is a replica (or "
                "the disk) there, and keeping up?"
            )

    def failure(self, fault: Fault) -> QueasyError:
        if self.repeated and not self.command.read_only:
            return Unanswered(
                f"{self.what}: sent, but the answer was lost, and a second "
                f"try failed ({fault.error}). The first may have been carried out"
            )
        return fault.error


def _apply_remedy(fault: Fault, problem: Exception, route: Route, attempt: _Attempt) -> None:
    """Prepares what the remedy says for the next try, or raises when there is none."""
    match fault.remedy:
        case Remedy.NONE:
            raise attempt.failure(fault) from None
        case Remedy.ROUTE if not route.can_change:
            if attempt.called_again:
                raise attempt.failure(fault) from None
            attempt.called_again = True
        case Remedy.MOVED | Remedy.ASK if not route.has_slots:
            raise ServerError(
                f"{route.target} is a node of a cluster, and another has the keys"
                f"{_queue_of(attempt.command)}. Use redis+cluster:// instead of redis://"
            ) from None
        case Remedy.MOVED | Remedy.ASK:
            assert isinstance(problem, AskError)
            assert attempt.address is not None
            address = redirected(problem, attempt.address)
            if fault.remedy is Remedy.ASK:
                attempt.asked = address
            else:
                route.moved(problem.slot_id, address)
        case Remedy.LOAD:
            attempt.lacking = attempt.address
        case _:
            pass


def connect(route: Route, patience: float) -> Generator[Effect, Any, None]:
    """Makes sure that the server can serve and has a library, as new as ours if it can."""
    pauses = _Pauses(time.monotonic() + patience)
    _, revision = yield from call(version(), route, patience=patience, connected=False)
    while True:
        try:
            if revision < library.revision():
                yield from _upgrade(route, revision)
            return (yield from check_server(route))
        except PROBLEMS as problem:
            fault = diagnose(problem, str(route.target), "connecting to")
        if fault.remedy is not Remedy.WAIT or (pause := pauses.next()) is None:
            raise fault.error from None
        yield pause
        route.forget()


def _upgrade(route: Route, revision: int) -> Generator[Effect, Any, None]:
    """An older library serves as well, if for less; a full server must not keep workers out."""
    try:
        yield from load_library(route)
    except (OutOfMemory, OutOfMemoryError, ReadOnlyError, NoPermissionError) as problem:
        if revision < library.LEAST:
            raise ProtocolError(
                f"{route.target} has revision {revision} of the library, which is too old for this "
                f"version of Queasy, and revision {library.revision()} cannot be loaded "
                f"({problem}). Connect somebody who may load it, when there is memory"
            ) from None
        log.warning(
            "%s has revision %d of the library, and revision %d cannot be loaded (%s). Going on "
            "with that; connect somebody who may load it, when there is memory",
            route.target, revision, library.revision(), problem,
        )  # fmt: skip


def load_library(route: Route) -> Generator[Effect, Any, None]:
    """Loads the library on every primary that has none, or an older one."""
    for address in (yield from route.primaries()):
        yield from _load_on(address)


def _load_on(address: Address) -> Generator[Effect, Any, None]:
    question = ("FCALL_RO", library.PREFIX + "version", 0)
    for _ in range(5):
        (reply,) = yield Exchange(address, (question,))
        if isinstance(reply, Exception):
            if "Function not found" not in str(reply):
                raise reply
            replace = ()
        elif reply[1] >= library.revision():
            return  # as new as ours, or newer: never replaced
        else:
            replace = ("REPLACE",)
        sources = [(*replace, library.source()), *((fence,) for fence in library.fences())]
        for loaded in (
            yield Exchange(address, tuple(("FUNCTION", "LOAD", *words) for words in sources))
        ):
            if isinstance(loaded, OutOfMemoryError):
                raise OutOfMemory(
                    f"{address}: no memory is left to load the library, without which nothing can "
                    "drain. Raise maxmemory, if only for a moment"
                )
            # "already exists": another client was quicker, which the next look will tell.
            if isinstance(loaded, Exception) and "already exists" not in str(loaded):
                raise loaded
    raise ProtocolError(
        f"{address}: the library cannot be loaded, or is replaced as soon as it is. A newer "
        "version of Queasy was here and keeps older ones out (connect one of its clients), or a "
        "client of an older version runs in a loop"
    )
