"""Retries one command until it is answered or the time is up.

A call has a patience: the seconds that it waits for a server that cannot be reached. Callers that
must wait longer (workers, the recovery of jobs) repeat the whole call.

A call finds the server, follows redirections, and loads the library where it is missing. It yields
effects, which an async or a sync transport performs.
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
from queasy.options import Durability, replicas_of
from queasy.store.command import Command
from queasy.store.commands import version
from queasy.store.health import check_server
from queasy.store.library import NATIVE, Library
from queasy.store.library_loading import load_library, load_library_on
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

__all__ = ["FailedTry", "call", "connect", "packed"]

T = TypeVar("T")
log = logging.getLogger("queasy")

FIRST_PAUSE_SECONDS = 0.01
MAX_PAUSE_SECONDS = 1.0
# If the server was never reached, a call fails after this many pauses, at most 30 ms together. It
# does not fail at once, because a connection may be cut while it is being opened.
MAX_CONNECT_PAUSES = 2
# A try that follows a redirection or a library load needs no pause. But two servers that disagree
# may redirect a call to each other: after this many tries in a row, the call pauses.
MAX_TURNS_WITHOUT_PAUSE = 5
# A call waits for a replica or the disk during this share of its patience. The share must be less
# than one half: with Sentinel or Cluster, an answer may take no more than half of the patience.
DURABILITY_SHARE = 0.4


class FailedTry(NamedTuple):
    """A first try that was made without `call`, and failed. `call` continues with the next try."""

    address: Address
    began: float
    problem: Exception


def packed(command: Command[T]) -> Command[T]:
    """The same command, already encoded, so that sending it takes less time."""
    return msgspec.structs.replace(command, packed=pack((command.words(),)))


def call(
    command: Command[T],
    route: Route,
    *,
    patience: float,
    was_reached: bool = True,
    durability: Durability = "ack",
    failed: FailedTry | None = None,
) -> Generator[Effect, Any, T]:
    """The answer to a command; raises the error if it fails.

    Waits up to `patience` seconds for a server that cannot be reached. If the server was never
    reached (not `was_reached`), the URL is most likely wrong, and the call raises the error after
    two short pauses. It does wait if it was sent to a member of a group (Sentinel, Cluster), since
    another server may replace that member.

    If the answer was lost, the call is sent again: every function is safe to repeat. With `failed`,
    the caller has already made the first try.
    """
    address = None if failed is None else failed.address
    state = _CallState(command, durability, patience * DURABILITY_SHARE, address)
    give_up_at = (time.monotonic() if failed is None else failed.began) + patience
    pauses = None
    while True:
        try:
            if failed is not None:
                problem, failed = failed.problem, None
                raise problem
            return (yield from state.try_once(route))
        except PROBLEMS as problem:
            pauses = pauses or _Pauses(give_up_at)
            fault = diagnose(problem, state.where(route), f"{command.title} on")
            hopeless = not was_reached and not state.in_group(route)
            if isinstance(problem, NotSent) and hopeless and pauses.made >= MAX_CONNECT_PAUSES:
                raise fault.error from None
            state.prepare_next(fault, problem, route)
        if fault.remedy is Remedy.ROUTE and not route.can_change:
            # After a failover, a host name or a proxy may lead to another server, but an open
            # connection stays with the old one. Only a new connection reaches the new server.
            yield HangUp((yield from route.locate(state.key)))
            if not state.reconnected:
                state.count_reconnect()
                continue
        if state.needs_no_pause(fault):
            state.count_turn()
            continue
        # Forget the address even if this call gives up now: otherwise the next call would try the
        # same server first.
        route.forget(state.address)
        state.start_over()
        if (pause := pauses.next()) is None:
            raise state.failure(fault) from None
        yield pause


class _Pauses:
    """The pauses between tries: they double up to a limit, with jitter. None when time is up."""

    def __init__(self, give_up_at: float) -> None:
        self._give_up_at = give_up_at
        self.made = 0

    def next(self) -> Pause | None:
        pause = min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**self.made) * random.uniform(
            0.5, 1.0
        )
        self.made += 1
        return None if time.monotonic() + pause >= self._give_up_at else Pause(pause)


class _CallState:
    """The state of one call between its tries."""

    def __init__(
        self,
        command: Command[Any],
        durability: Durability,
        durability_timeout: float,
        address: Address | None,
    ) -> None:
        self.command = command
        self.durability: Durability = durability
        self.durability_timeout = durability_timeout
        self.maybe_carried_out = False
        """The server may have carried out an earlier try."""
        self.lacks_library: Address | None = None
        """The server that lacks the library. The route may not know it as a primary yet."""
        self.reconnected = False
        """This call has closed the connections once: the address may lead to another server now."""
        self.ask_address: Address | None = None
        """Where an ASK redirection sends the next try."""
        self.address = address
        """Where the last try was sent."""
        self.turns = 0
        """How many tries in a row were made without a pause."""
        self.key = command.keys[0] if command.keys else None

    def try_once(self, route: Route) -> Generator[Effect, Any, Any]:
        """One try: the answer, or an exception of `PROBLEMS`."""
        if self.lacks_library is not None:
            try:
                yield from load_library_on(self.lacks_library, self.command.library)
            except Lost as problem:  # while loading: the call itself was not sent
                raise NotSent(str(problem)) from problem
            self.lacks_library = None
        command = self.command
        sent: tuple[RawCommand, ...] = (command.packed or command.words(),)
        address = self.address = self.ask_address
        self.ask_address = None
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
        replies = yield Exchange(address, sent, alone=waits or command.alone)
        result = command.answer(replies[asking])
        if waits:
            self._check_durability(replies[-1])
        unclear = command.unclear_when_repeated
        if self.maybe_carried_out and unclear is not None and unclear(result):
            raise Unanswered(
                f"{command.title}: the answer to an earlier try was lost, and the answer to the "
                "last one does not show whether the earlier one was carried out"
            )
        return result

    def in_group(self, route: Route) -> bool:
        """Whether the call was sent to a member of a group, which may be replaced."""
        return route.is_group and self.address is not None

    def where(self, route: Route) -> str:
        """The server of the last try, for an error; which one of a group, if that is known."""
        return f"{self.address} of {route.target}" if self.in_group(route) else str(route.target)

    def _durability_commands(self) -> tuple[tuple[str, ...], ...]:
        timeout_ms = str(round(self.durability_timeout * 1000))
        if self.durability == "fsynced":
            return (("WAITAOF", "1", "0", timeout_ms),)
        return (("WAIT", str(replicas_of(self.durability)), timeout_ms),)

    def _check_durability(self, reply: Any) -> None:
        """Raises NotDurable if an accepted write is not as durable as requested."""
        accepted = f"{self.command.title} was accepted"
        if isinstance(reply, Exception):
            if "unknown command" in str(reply).lower():
                raise NotDurable(
                    f"{accepted}, but is not confirmed to be on disk: durability='fsynced' needs "
                    "WAITAOF, which Redis 7.2+ and Valkey have"
                ) from reply
            if str(reply).startswith("UNBLOCKED"):
                # This server is not a primary any more. The next try asks the new primary.
                raise Lost(str(reply))
            raise NotDurable(
                f"{accepted}, but durability={self.durability!r} failed: {reply}"
            ) from reply
        seconds = f"within {self.durability_timeout:g} s"
        if self.durability == "fsynced":
            if reply[0] < 1:
                raise NotDurable(
                    f"{accepted}, but is not confirmed to be on disk {seconds}. Check that the "
                    "disk keeps up"
                )
        elif reply < (wanted := replicas_of(self.durability)):
            raise NotDurable(
                f"{accepted}, but {reply} of {wanted} {'replica' if wanted == 1 else 'replicas'} "
                f"confirmed it {seconds}. It runs, unless a replica that lacks it becomes the "
                f"primary. Check that the primary has {wanted} or more, and that they keep up"
            )

    def failure(self, fault: Fault) -> QueasyError:
        if not self.maybe_carried_out or self.command.read_only:
            return fault.error
        if fault.uncertain:
            return Unanswered(f"{fault.error}. It may have been carried out")
        return Unanswered(
            f"{self.command.title}: an earlier try got no answer, and may have been carried out. "
            f"The last try: {fault.error}"
        )

    def prepare_next(self, fault: Fault, problem: Exception, route: Route) -> None:
        """Prepares the next try as the remedy says. Raises if there is no remedy."""
        self.maybe_carried_out |= fault.uncertain
        match fault.remedy:
            case Remedy.NONE:
                raise self.failure(fault) from None
            case Remedy.MOVED | Remedy.ASK if not route.has_slots:
                queue = self.command.queue
                raise ServerError(
                    f"{route.target} is a node of a cluster, and another node has the keys"
                    f"{f' of queue {queue!r}' if queue else ''}. Use redis+cluster:// instead of "
                    "redis://"
                ) from None
            case Remedy.MOVED | Remedy.ASK:
                assert isinstance(problem, AskError)
                assert self.address is not None
                address = redirected(problem, self.address)
                if fault.remedy is Remedy.ASK:
                    self.ask_address = address
                else:
                    route.moved(problem.slot_id, address)
            case Remedy.LOAD:
                self.lacks_library = self.address
            case _:
                pass

    def count_reconnect(self) -> None:
        """The next try follows without a pause, on a new connection."""
        self.reconnected = True

    def needs_no_pause(self, fault: Fault) -> bool:
        """Whether the next try may follow at once: the last one made progress."""
        progress = fault.remedy in (Remedy.MOVED, Remedy.ASK, Remedy.LOAD)
        return progress and self.turns < MAX_TURNS_WITHOUT_PAUSE

    def count_turn(self) -> None:
        """The next try follows without a pause."""
        self.turns += 1

    def start_over(self) -> None:
        """The next try comes after a pause, and looks the server up again."""
        self.turns, self.ask_address = 0, None


def connect(
    route: Route, patience: float, library: Library = NATIVE
) -> Generator[Effect, Any, None]:
    """Makes sure that the server can serve, and that it has the library. Another library than the
    native one is for servers that were connected to before.

    A newer revision of the library stays. An older one is replaced; if this revision cannot be
    loaded, a compatible older one stays, too.
    """
    pauses = _Pauses(time.monotonic() + patience)
    _, revision = yield from call(
        version(library), route, patience=patience, was_reached=library is not NATIVE
    )
    while True:
        try:
            if revision < library.revision():
                yield from _upgrade(route, revision, library)
            if library is NATIVE:
                yield from check_server(route)
            return
        except PROBLEMS as problem:
            fault = diagnose(problem, str(route.target), "connecting to")
        if fault.remedy is not Remedy.WAIT or (pause := pauses.next()) is None:
            raise fault.error from None
        yield pause
        route.forget()


def _upgrade(route: Route, revision: int, library: Library) -> Generator[Effect, Any, None]:
    """Replaces an older library. If that fails, the older one stays in use if it is compatible.

    So workers can drain a server that has run out of memory.
    """
    try:
        yield from load_library(route, library)
    except (OutOfMemory, OutOfMemoryError, ReadOnlyError, NoPermissionError) as problem:
        if revision < library.least:
            raise ProtocolError(
                f"{route.target} has revision {revision} of the library, which is too old for this "
                f"version of Queasy, and revision {library.revision()} cannot be loaded "
                f"({problem}). Free memory if the server is full, or connect once with a user that "
                "may run FUNCTION LOAD"
            ) from None
        log.warning(
            "%s has revision %d of the library, and revision %d cannot be loaded (%s). Using the "
            "older one. Free memory if the server is full, or connect once with a user that may "
            "run FUNCTION LOAD",
            route.target, revision, library.revision(), problem,
        )  # fmt: skip
