"""The leases that a worker believes it has in one queue, and whether that may be outdated."""

from __future__ import annotations

import time
from collections import deque
from typing import Literal

from queasy.store.records import LeaseKey
from queasy.worker.liveness.inflight_table import InflightTable

__all__ = ["LeaseLedger", "StaleMark"]

StaleMark = tuple[int, int]
"""How often leases were marked stale, and how often messages may have been lost."""

REMEMBERED_HAND_OFFS = 100


class LeaseLedger:
    """The leases of one queue, as this worker knows them. Only its own methods change it."""

    def __init__(self, index: int, table: InflightTable) -> None:
        self._index = index
        self._table = table
        self._times = table.times
        self.confirmed_until = 0.0
        """Lower bound on when the server expires this client."""
        self.taken_at = 0.0
        """When the jobs that came last were requested: their lease began no earlier."""
        self.connection: object | None = None
        """The connection that brings wake-ups now, if there is one."""
        self._last_connection: object | None = None
        """The last connection that brought wake-ups, even if it is lost."""
        self._stale_marks = self._losses = 0
        self._reconciled: StaleMark = (0, 0)
        self._released: set[LeaseKey] = set()
        """Released leases whose hand-off message may still arrive."""
        self._handed_off: deque[LeaseKey] = deque(maxlen=REMEMBERED_HAND_OFFS)
        """The last hand-offs. After a failover a worker may subscribe to the old and the new
        primary, and receive a message twice."""

    # Staleness

    def mark_stale(self) -> None:
        """Leases here and on the server may differ.

        The server may have forgotten writes, or an answer or a message may have been lost.
        """
        self._stale_marks += 1

    def note_lost_messages(self) -> None:
        """The connection that brings messages was lost: a message may have brought a lease."""
        self._losses += 1

    @property
    def stale(self) -> bool:
        """Whether the leases were marked stale since the last completed reconciliation began."""
        return self._reconciled != (self._stale_marks, self._losses)

    def begin_reconcile(self) -> StaleMark:
        """A mark for `end_reconcile`. If leases are marked stale in between, they stay stale."""
        return self._stale_marks, self._losses

    def end_reconcile(self, mark: StaleMark) -> None:
        self._reconciled = mark

    def note_none_held(self, mark: StaleMark) -> None:
        """The server answered that this worker has no lease, and the worker knows of none.

        So no message that was lost before `mark` brought one. A request that was given up before
        may still bring some: then the leases stay stale.
        """
        self._reconciled = self._reconciled[0], mark[1]

    # The connection that brings wake-ups and hand-offs

    @property
    def listens(self) -> bool:
        return self.connection is not None

    def note_connection(self, connection: object | None) -> None:
        """Messages come over this connection now. If it is a new one, some may have been lost."""
        self.connection = connection
        if connection is not None:
            if self._last_connection not in (None, connection):
                self._released.clear()  # their messages cannot arrive any more
                self.note_lost_messages()
            self._last_connection = connection

    def forget_connection(self) -> None:
        self._last_connection = None

    # How long the leases last

    def confirm(self, until: float) -> None:
        """The server does not expire this client before `until`."""
        self.confirmed_until = until

    def shorten(self, sent: float) -> None:
        """A call was sent that sets the lease: it may now end a lease after `sent`."""
        self.confirmed_until = min(self.confirmed_until, sent + self._times.lease)

    def note_taken(self, sent: float) -> None:
        """Jobs arrived that were requested at this time."""
        self.taken_at = sent
        self._table.set_requested_at(self._index, sent)

    # Single leases

    def hold(self, leases: int) -> None:
        """The worker may hold that many more leases: the supervisor keeps them alive."""
        self._table.add_held(self._index, leases)

    @property
    def held(self) -> int:
        """How many leases the worker may hold."""
        return self._table.held_of(self._index)

    def drop(self, leases: int) -> None:
        """That many leases have ended, or belong to another client."""
        self._table.add_held(self._index, -leases)

    def note_released(self, lease: LeaseKey) -> None:
        """A lease that only the server knew is about to be released.

        It counts as held until the release is reported. A hand-off message that brings it later is
        ignored.
        """
        self.hold(1)
        self._released.add(lease)

    def note_hand_off(self, lease: LeaseKey) -> Literal["duplicate", "released", "expired", "held"]:
        """A job came with a wake-up message. Returns what has become of its lease."""
        if lease in self._handed_off:
            return "duplicate"
        self._handed_off.append(lease)
        if lease in self._released:
            self._released.discard(lease)
            return "released"
        now = time.monotonic()
        # The lease ends at `confirmed_until` or later. Treat it as requested a lease before that.
        requested = max(self.taken_at, min(now, self.confirmed_until - self._times.lease))
        self.hold(1)  # even if it has expired: until its release is reported
        silent = now - max(requested, self._table.confirmed_at(self._index)) > self._times.cut_off
        # Its message may be older than a revocation that is settled.
        if silent or lease[1] <= self._table.revoked(self._index):
            return "expired"
        self.note_taken(requested)
        return "held"
