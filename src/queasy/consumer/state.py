"""Records the leases of a consumer, and decides without I/O what it does next.

1. While the consumer holds jobs of a queue, it bumps that queue every `BUMP_EVERY` seconds. While
   it holds none there and waits, it sends nothing. While it holds none and does not wait, it bumps
   now and then, so that it stays registered.
2. If the program asks for a job, the consumer polls the queues whose poll is due, the one polled
   longest ago first. They share the room that is left.
3. If a queue wakes the consumer when it cannot take a job, the consumer forwards the wake-up. If it
   cannot poll at the time that the server expects, it stands down: the server wakes another client.
4. A suspect may have only so many companions: the consumer then takes fewer other jobs. If a poll
   had to skip suspects, the consumer takes no others for a while, so that they get their turn.
5. If the leases of a queue may differ from those on the server, the consumer compares them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from queasy.operations import SAFETY_POLL_SECONDS
from queasy.store.records import LeaseKey
from queasy.suspect_room import SuspectRoom

__all__ = [
    "Action",
    "Bump",
    "ConsumerQueue",
    "ConsumerState",
    "ForwardWakeUp",
    "Join",
    "Poll",
    "Reconcile",
    "StandDown",
]

BUMP_EVERY = 1.0
# A consumer that holds no job of a queue, and does not wait there, bumps this often, for a lease of
# at least `IDLE_LEASE`: often enough that the death of its host does not look like an outage of the
# server (CONTACT_EVERY_MS in lua/keys.lua).
IDLE_BUMP_EVERY = 8.0
IDLE_LEASE = 20.0
# An unconfirmed lease counts as lost when this share of it is left: its holder needs time to stop.
MARGIN = 0.1
# Seconds between two tries to join a queue, or to compare leases.
RETRY_PAUSE = 1.0
# The most jobs of one call: see Limits in docs/reference/protocol.md.
MAX_BATCH = 1000


class Join(msgspec.Struct, frozen=True):
    """Register with a queue."""

    queue: ConsumerQueue


class Poll(msgspec.Struct, frozen=True):
    """Take up to `limit` jobs of a queue.

    `beside`: how many other jobs this consumer holds or has requested.
    """

    queue: ConsumerQueue
    limit: int
    beside: int


class Bump(msgspec.Struct, frozen=True):
    """Extend the leases of a queue to `lease` seconds from now."""

    queue: ConsumerQueue
    lease: float


class Reconcile(msgspec.Struct, frozen=True):
    """Report the outcomes that the server does not have, and compare the leases of a queue."""

    queue: ConsumerQueue


class ForwardWakeUp(msgspec.Struct, frozen=True):
    """Wake another client, for a job that this consumer has no room for."""

    queue: ConsumerQueue


class StandDown(msgspec.Struct, frozen=True):
    """Stop being a waiter of a queue."""

    queue: ConsumerQueue


Action = Join | Poll | Bump | Reconcile | ForwardWakeUp | StandDown


class ConsumerQueue:
    """One queue of a consumer. Only its own methods change it, and one call at a time is in flight,
    beside bumps. Times are on the monotonic clock.
    """

    def __init__(self, index: int, name: str, lease: float) -> None:
        self.index = index
        self.name = name
        self._lease = lease
        self.generation = 0
        """How often the server declared this consumer dead: each time it needs a new id."""
        self.joined = False
        self.busy = False
        """A call is in flight that joins, polls or reconciles."""
        self.bumping = False
        self.requested = 0
        """How many jobs the call in flight may bring."""
        self.companions: dict[LeaseKey, int | None] = {}
        """Each lease that the server may count, with the companions that a suspect may have."""
        self.waits = False
        """The server wakes this consumer when a job is due."""
        self.woken = False
        """The server woke this consumer, or a message that did may be lost, or an unknown one came;
        and this consumer has not polled since."""
        self.poll_at = 0.0
        self.polled_at = 0.0
        self.skipped: int | None = None
        """The highest companion limit of the suspects that the last poll skipped; None if it
        skipped none."""
        self._marks = self._reconciled = 0
        self._confirmed_until = math.inf
        self._bumped_at = 0.0
        """When the last bump was sent that the server has answered."""
        self._contact_at = 0.0
        self._needed_at = math.inf
        self._try_at = 0.0

    # What is due

    @property
    def held(self) -> int:
        """How many leases the consumer holds or has not reported yet."""
        return len(self.companions)

    def lease_to_bump(self) -> float:
        """The lease to request with the next bump, in seconds."""
        return self._lease if self.companions or self.busy else max(self._lease, IDLE_LEASE)

    def bump_at(self) -> float:
        """When the next bump is due."""
        if not self.joined or self.bumping:
            return math.inf
        if self.companions:
            return self._contact_at + BUMP_EVERY
        if self.busy:  # it may have brought jobs already
            return max(self._contact_at, self.polled_at) + BUMP_EVERY
        if self.waits:
            return math.inf  # the server has extended the lease until well after the next poll
        return min(self._contact_at + IDLE_BUMP_EVERY, max(self._needed_at, self._contact_at + 1))

    def join_at(self) -> float:
        """When to try to join; never if it has joined."""
        return math.inf if self.joined or self.busy else self._try_at

    def reconcile_at(self) -> float:
        """When to compare leases; never if they are not stale."""
        return self._try_at if self.stale and self.joined and not self.busy else math.inf

    def next_poll_at(self) -> float:
        return self.poll_at if self.joined and not self.busy else math.inf

    def at_risk_at(self) -> float:
        """When the leases count as lost, unless the server confirms them before."""
        if not self.companions:
            return math.inf
        return self._confirmed_until - MARGIN * self._lease

    # Events

    def begin(self, now: float, requested: int = 0) -> None:
        """A call that joins, polls or reconciles is about to be sent."""
        self.busy, self.requested = True, requested
        if requested:
            self.polled_at, self.woken = now, False

    def end(self) -> None:
        """That call has ended, or was given up."""
        self.busy, self.requested = False, 0

    def pause(self, now: float) -> None:
        """A call failed: try again after a while."""
        self._try_at = now + RETRY_PAUSE
        self.poll_at = max(self.poll_at, self._try_at)

    def note_joined(self, sent: float) -> None:
        self.joined, self.waits, self.woken, self.skipped = True, False, False, None
        self._reconciled = self._marks
        self._contact_at, self.poll_at = sent, 0.0

    def leave(self, now: float, *, declared_dead: bool) -> None:
        """All leases are lost: the server declared this consumer dead, the consumer left the queue,
        or nothing keeps the leases alive any more.
        """
        self.joined, self.waits, self.woken, self.skipped = False, False, False, None
        self.generation += declared_dead
        self.companions.clear()
        self._try_at = now + RETRY_PAUSE if declared_dead else math.inf

    def note_taken(self, sent: float, taken: dict[LeaseKey, int | None]) -> None:
        """A poll that was sent at this time brought jobs."""
        until = max(sent, self._bumped_at) + self._lease
        self._confirmed_until = max(self._confirmed_until, until) if self.companions else until
        self._contact_at = sent
        self.companions.update(taken)
        self.waits, self.poll_at = False, 0.0

    def note_none_taken(self, now: float, next_in: float | None, *, listens: bool) -> None:
        """A poll brought nothing. The server expects the next one in `next_in` seconds."""
        pause = SAFETY_POLL_SECONDS if next_in is None else next_in
        self.waits, self.poll_at = True, now + pause
        if not listens:
            self.poll_at = now + min(pause, 1.0)

    def wake(self, at: float = 0.0) -> None:
        """The server sent a message: poll at `at`; 0 means at once."""
        if not at:
            self.woken, self.waits = True, False
        self.poll_at = min(self.poll_at, at)

    def stop_waiting(self) -> None:
        """The consumer takes no more jobs: it stands down now, if it waits."""
        self.poll_at = 0.0

    def give_up_turn(self) -> None:
        """A wake-up was forwarded, or the consumer is not a waiter any more."""
        self.woken = self.waits = False
        self.poll_at = 0.0

    def begin_bump(self, now: float) -> None:
        self.bumping, self._contact_at = True, now

    def end_bump(self, sent: float, lease: float | None, next_in: float | None) -> None:
        """A bump ended; it extended the leases by `lease` seconds unless that is None."""
        self.bumping = False
        if lease is not None:
            self._bumped_at = sent
            self._needed_at = math.inf if next_in is None else sent + next_in
            self._confirmed_until = max(self._confirmed_until, sent + lease)

    def note_skipped(self, skipped: int | None) -> None:
        """The highest companion limit of the suspects that a poll skipped, if any."""
        self.skipped = skipped

    def mark_stale(self) -> None:
        """Leases here and on the server may differ: an answer or a write may be lost."""
        self._marks += 1

    @property
    def stale(self) -> bool:
        """Whether leases were marked stale since the last comparison began."""
        return self._marks != self._reconciled

    def begin_reconcile(self) -> int:
        """A mark for `end_reconcile`."""
        return self._marks

    def end_reconcile(self, mark: int) -> None:
        self._reconciled = mark

    def drop(self, key: LeaseKey) -> None:
        """A lease has ended."""
        self.companions.pop(key, None)


class ConsumerState:
    """All queues of a consumer, and how many leases it may hold."""

    def __init__(self, concurrency: int, queues: Sequence[ConsumerQueue]) -> None:
        self._concurrency = concurrency
        self._queues = queues
        self._suspect_room = SuspectRoom()

    @property
    def held(self) -> int:
        """How many leases the consumer holds, in all queues."""
        return sum([queue.held for queue in self._queues])

    def room(self, now: float) -> int:
        """How many jobs it may take, including those that calls in flight may bring."""
        held = self.held
        limits = [
            limit + 1 for queue in self._queues for limit in queue.companions.values()
            if limit is not None
        ]  # fmt: skip
        skipped = [queue.skipped for queue in self._queues if queue.skipped is not None]
        self._suspect_room.update(now, skipped=bool(skipped))
        if skipped and self._suspect_room.is_made(now) and held > max(skipped):
            return 0
        return min([self._concurrency, *limits]) - held

    def decide(self, now: float, *, wanted: bool) -> list[Action]:
        """What to do now. `wanted`: the program asks for a job."""
        actions: list[Action] = []
        for queue in self._queues:
            if queue.bump_at() <= now:
                actions.append(Bump(queue, queue.lease_to_bump()))
            if queue.join_at() <= now:
                actions.append(Join(queue))
            elif queue.reconcile_at() <= now:
                actions.append(Reconcile(queue))
        room = self.room(now) if wanted else 0
        due = [queue for queue in self._queues if queue.next_poll_at() <= now]
        due = [queue for queue in due if queue.reconcile_at() > now]
        if room > 0:
            actions += self._polls(due, room)
        else:
            actions += [ForwardWakeUp(queue) for queue in due if queue.woken]
            actions += [StandDown(queue) for queue in due if queue.waits and not queue.woken]
        return actions

    def _polls(self, due: list[ConsumerQueue], room: int) -> list[Action]:
        requested = sum([queue.requested for queue in self._queues])
        left, beside = room - requested, self.held + requested
        polls: list[Action] = []
        share = max(1, left // max(1, len(due)))
        for queue in sorted(due, key=lambda queue: queue.polled_at):
            limit = min(share, left, MAX_BATCH)
            if limit > 0:
                polls.append(Poll(queue, limit, beside))
                left, beside = left - limit, beside + limit
        return polls

    def next_alarm(self, now: float) -> float:
        """When to decide again, if nothing happens before."""
        times = [self._suspect_room.next_change(now) or math.inf]
        for queue in self._queues:
            times += [queue.bump_at(), queue.join_at(), queue.reconcile_at()]
            # A due poll that is not carried out waits for an event, not for a time.
            times += [at for at in (queue.next_poll_at(), queue.at_risk_at()) if at > now]
        return min(times)
