"""Routes: which server has a key. One server, Sentinel and Cluster differ in nothing else.

A route locates the server of a key, and forgets it when that turned out to be wrong. It talks to
servers by yielding `Exchange`, so that it serves async and sync transports alike.
"""

from __future__ import annotations

import time
from binascii import crc_hqx
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import msgspec

from queasy.errors import ServerError
from queasy.store.net.connection import RawCommand
from queasy.store.net.faults import Lost, NotSent
from queasy.store.net.server_errors import AskError, AuthenticationError, ResponseError
from queasy.store.net.url import Address, Target

__all__ = [
    "Effect", "EnsureEmbedded", "Exchange", "HangUp", "Pause", "Route", "SentinelRoute",
    "redirected", "route_to",
]  # fmt: skip

# A sentinel sees within about a second that a replica it has promoted is a primary. While it waits
# for that, calls wait, too, but not for longer than this: the promotion may have failed.
HOLD_SECONDS = 5.0


class Exchange(NamedTuple):  # made for every call, and cheaper than a frozen dataclass
    """Send commands over one connection; the result is their replies, errors as values."""

    address: Address
    commands: tuple[RawCommand, ...]
    sentinel: bool = False
    alone: bool = False
    """Use a connection of its own: the commands wait on the server, and would delay others."""


class Pause(msgspec.Struct, frozen=True):
    """Wait some seconds."""

    seconds: float


class EnsureEmbedded(msgspec.Struct, frozen=True):
    """Start the embedded server if it is not running; the result is its address."""


class HangUp(msgspec.Struct, frozen=True):
    """Close the idle connections to an address: its name may stand for another server now."""

    address: Address


Effect = Exchange | Pause | EnsureEmbedded | HangUp


def redirected(problem: AskError, asked: Address) -> Address:
    """Where a redirection leads. A server that does not know its own host leaves it out."""
    return Address(problem.host or asked.host, problem.port)


def key_slot(key: bytes) -> int:
    """The cluster slot of a key: the hash of the text in its braces, if there is any."""
    tag, closed, _ = key.partition(b"{")[2].partition(b"}")
    return crc_hqx(tag if tag and closed else key, 0) % 16384


class Route:
    """One server at a fixed address."""

    is_fixed = True
    """Whether every key is at the one address that the URL names."""
    can_change = False
    """Whether locating a key again may give another address."""
    has_slots = False
    """Whether keys are on several servers, which redirect calls."""
    is_group = False
    """Whether one server may take the place of another."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.known: Address | None = target.addresses[0] if self.is_fixed else None
        """The one address for every key, if there is one and it is known. Read for every call."""
        self.on_connection_lost: Callable[[Address], None] | None = None
        """Called when a connection to a server ends by itself; None if that changes nothing."""

    def locate(self, key: str | None) -> Generator[Effect, Any, Address]:
        """The address that has `key`; any primary for None."""
        return self.target.addresses[0]
        yield  # makes it a generator, as in the subclasses

    def primaries(self) -> Generator[Effect, Any, list[Address]]:
        """Every server that takes writes."""
        address = yield from self.locate(None)
        return [address]

    def forget(self, failed: Address | None = None) -> None:
        """Discards what is known, so that the next call locates its server again. The server that
        failed is then the last one to be asked for locations.
        """

    def moved(self, slot: int, address: Address) -> None:
        """Records a redirection: another server has the slot now."""


class EmbeddedRoute(Route):
    """The embedded server of a folder, which is started when it is needed."""

    is_fixed = False
    can_change = True

    def locate(self, key: str | None) -> Generator[Effect, Any, Address]:
        address = self.known
        if address is None:
            address = self.known = yield EnsureEmbedded()
        assert address is not None
        return address

    def forget(self, failed: Address | None = None) -> None:
        self.known = None


class SentinelRoute(Route):
    """The primary of a service, as the sentinels name it.

    While at least one sentinel is heard (`sentinel_watch.py`), the address is kept, because that
    sentinel announces a failover. While none is heard, each call asks the sentinels first.

    In a sync client another thread hears the sentinels. No lock is needed: `_mark_stale` counts
    before it clears `known`, and `locate` sets `known` before it compares the count.
    """

    is_fixed = False
    can_change = True
    is_group = True

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.on_connection_lost = self._connection_lost
        self._start_watch: Callable[[], None] | None = None
        self._sentinels = list(target.addresses)
        self._heard: set[Address] = set()
        """The sentinels whose announcements arrive."""
        self._away: set[Address] = set()
        """The sentinels that the watch could not reach the last time."""
        self._last: Address | None = None
        """The primary that was named last. It stays in use while no sentinel can be reached."""
        self._deposed: Address | None = None
        """A primary that was replaced. Some sentinels learn that late, and still name it."""
        self._held_until = 0.0
        self._stale_marks = 0
        """How often `known` was discarded, because a sentinel may name another primary."""

    def use_watch(self, start: Callable[[], None]) -> None:
        """Has `locate` call `start` before it asks the sentinels. `start` makes the watch listen to
        them, unless it listens already.
        """
        self._start_watch = start

    def locate(self, key: str | None) -> Generator[Effect, Any, Address]:
        address = self.known
        if address is not None:
            return address
        if self._start_watch is not None:
            self._start_watch()
        while True:
            if time.monotonic() < self._held_until:
                raise ResponseError("FAILOVER the sentinels are replacing the primary")
            marks = self._stale_marks
            address = self._last = yield from self._ask_sentinels()
            if self._heard:
                self.known = address
            if marks == self._stale_marks:
                return address
            self.known = None  # an announcement came after the question

    def forget(self, failed: Address | None = None) -> None:
        self.known = None
        self._away.clear()  # ask all of them, even if that takes long

    def _connection_lost(self, address: Address) -> None:
        if self.known == address:
            self._mark_stale()  # ask the sentinels before the next connection is opened

    def _mark_stale(self) -> None:
        self._stale_marks += 1
        self.known = None

    # What the sentinels announce

    def sentinel_heard(self, sentinel: Address) -> None:
        """The announcements of this sentinel arrive from now on. Earlier ones may be missed."""
        self._heard.add(sentinel)
        self._away.discard(sentinel)
        self._mark_stale()

    def sentinel_lost(self, sentinel: Address) -> None:
        """The announcements of this sentinel do not arrive any more."""
        self._heard.discard(sentinel)
        if not self._heard:
            self._mark_stale()

    def sentinel_away(self, sentinel: Address) -> None:
        """The sentinel cannot be reached."""
        self._away.add(sentinel)
        _put_last(self._sentinels, sentinel)

    def reset(self) -> None:
        """No sentinel is heard: the process was forked, or its last event loop is gone."""
        self._heard.clear()
        self._away.clear()
        self._mark_stale()

    def hold(self) -> None:
        """A replica is about to become the primary: the old one loses what it accepts now."""
        self._held_until = time.monotonic() + HOLD_SECONDS
        self._mark_stale()

    def release(self, sentinel: Address) -> None:
        """The failover was given up."""
        self._held_until = 0.0
        self._ask_first(sentinel)
        self._mark_stale()

    def switch(self, sentinel: Address, old: Address) -> None:
        """The sentinel has replaced the primary, or has learned of it."""
        self._held_until = 0.0
        self._deposed, self._last = old, None
        self._ask_first(sentinel)
        self._mark_stale()

    def _ask_first(self, sentinel: Address) -> None:
        self._sentinels = [sentinel, *(one for one in self._sentinels if one != sentinel)]

    # Questions

    def _ask_sentinels(self) -> Generator[Effect, Any, Address]:
        last = self._last
        reachable = [one for one in self._sentinels if one not in self._away]
        if last is not None and not reachable:
            return last  # do not wait for each of them in every call
        problems: list[str] = []
        refused = 0
        named = last
        for sentinel in reachable or list(self._sentinels):
            question = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.target.service)
            try:
                (answer,) = yield Exchange(sentinel, (question,), sentinel=True)
            except (NotSent, Lost, AuthenticationError) as problem:
                answer = problem
            refused += isinstance(answer, AuthenticationError)
            if isinstance(answer, Exception):
                problems.append(f"{sentinel}: {answer}")
            elif answer is None:
                problems.append(f"{sentinel}: knows no service {self.target.service!r}")
            else:
                host, port = answer
                named = Address(host.decode(), int(port))
                if named != self._deposed:
                    return named
                continue  # another sentinel may know better
            _put_last(self._sentinels, sentinel)
        if named is not None:
            return named
        if refused == len(problems):
            raise AuthenticationError(f"sentinel {'; '.join(problems)}")
        raise NotSent(f"no sentinel named a primary: {'; '.join(problems)}")


def _put_last(addresses: list[Address], failed: Address) -> None:
    """Moves a server that failed to the end of the list: waiting for it would delay a call."""
    if failed in addresses:
        addresses.remove(failed)
        addresses.append(failed)


class ClusterRoute(Route):
    """The primary of a slot, as the nodes of the cluster name it."""

    is_fixed = False
    can_change = True
    has_slots = True
    is_group = True

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._slots: dict[int, Address] = {}
        self._ranges: list[tuple[int, int, Address]] = []
        # All known nodes: those in the URL may be removed one day.
        self._nodes = list(target.addresses)

    def locate(self, key: str | None) -> Generator[Effect, Any, Address]:
        if not self._ranges:
            yield from self._ask_nodes()
        if key is None:
            return self._ranges[0][2]
        slot = key_slot(key.encode())
        found = self._slots.get(slot)
        if found is not None:
            return found
        for first, last, address in self._ranges:
            if first <= slot <= last:
                return address
        self.forget()
        raise NotSent(f"no node serves slot {slot}")

    def primaries(self) -> Generator[Effect, Any, list[Address]]:
        if not self._ranges:
            yield from self._ask_nodes()
        return list(dict.fromkeys(address for _, _, address in self._ranges))

    def forget(self, failed: Address | None = None) -> None:
        self._ranges = []
        self._slots = {}
        if failed is not None:
            _put_last(self._nodes, failed)

    def moved(self, slot: int, address: Address) -> None:
        self._slots[slot] = address

    def _ask_nodes(self) -> Generator[Effect, Any, None]:
        problems: list[str] = []
        for node in list(self._nodes):
            try:
                (answer,) = yield Exchange(node, (("CLUSTER", "SLOTS"),))
            except (NotSent, Lost) as problem:
                answer = problem
            if isinstance(answer, Exception):
                if "cluster support disabled" in str(answer):
                    raise ServerError(
                        f"{node} is not a cluster node: use redis:// instead of redis+cluster://"
                    )
                problems.append(f"{node}: {answer}")
            elif self._learn(node, answer):
                return
            else:
                problems.append(f"{node}: serves no slots")
            _put_last(self._nodes, node)
        raise NotSent(f"no node of the cluster answered: {'; '.join(problems)}")

    def _learn(self, node: Address, answer: list[Any]) -> bool:
        """Reads a node's table of slots; False when it is empty."""

        def address(entry: list[Any]) -> Address:
            # A node that does not know its own host leaves it out.
            return Address((entry[0] or b"").decode() or node.host, entry[1])

        self._slots = {}
        self._ranges = [(first, last, address(nodes[0])) for first, last, *nodes in answer]
        seen = [address(entry) for _, _, *nodes in answer for entry in nodes]
        self._nodes = list(dict.fromkeys([node, *seen, *self.target.addresses]))
        return bool(self._ranges)


_ROUTES: dict[str, Callable[[Target], Route]] = {
    "single": Route,
    "embedded": EmbeddedRoute,
    "sentinel": SentinelRoute,
    "cluster": ClusterRoute,
}


def route_to(target: Target) -> Route:
    return _ROUTES[target.kind](target)
