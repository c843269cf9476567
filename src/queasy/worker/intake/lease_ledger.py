"""What a worker believes about its leases in one queue, and whether that may be outdated."""

from __future__ import annotations

import time
from collections import deque
from typing import Literal

from queasy.worker.liveness.inflight_table import InflightTable
from queasy.worker.plan import CUT_OFF, LEASE

__all__ = ["LeaseKey", "LeaseLedger"]

LeaseKey = tuple[str, int]
"""A job's id, and the token of its lease."""

REMEMBERED_HAND_OFFS = 100


class LeaseLedger:
    """The leases of one queue, as this worker knows them. Only its own methods change it."""

    def __init__(self, index: int, table: InflightTable) -> None:
        self._index = index
        self._table = table
        self.confirmed_until = 0.0
        """Lower bound on when the server expires this client."""
        self.taken_at = 0.0
        """When the jobs that came last were requested: their lease began no earlier."""
        self.listener: object | None = None
        """The connection that brings wake-ups now, if there is one."""
        self._last_listener: object | None = None
        self._stale_marks = self._reconciled_marks = 0
        self._released: set[LeaseKey] = set()
        """Released leases whose hand-off message may still arrive."""
        self._handed_off: deque[LeaseKey] = deque(maxlen=REMEMBERED_HAND_OFFS)
        """The last hand-offs. After a failover a worker may subscribe to the old and the new
        primary, and receive a message twice."""

    # Staleness

    def mark_stale(self) -> None:
        """The server may have forgotten its last writes, as after a crash or a failover."""
        self._stale_marks += 1

    @property
    def stale(self) -> bool:
        """Until a reconciliation that began after the last mark has ended."""
        return self._stale_marks != self._reconciled_marks

    def begin_reconcile(self) -> int:
        """A mark for `end_reconcile`: what is marked stale meanwhile stays so."""
        return self._stale_marks

    def end_reconcile(self, mark: int) -> None:
        self._reconciled_marks = mark

    # The connection that brings wake-ups and hand-offs

    @property
    def listens(self) -> bool:
        return self.listener is not None

    def note_listener(self, listener: object | None) -> None:
        """Messages come over this connection now. Those of another one may have been lost."""
        self.listener = listener
        if listener is not None:
            if self._last_listener not in (None, listener):
                self._released.clear()  # their messages cannot arrive any more
                self.mark_stale()
            self._last_listener = listener

    def forget_listener(self) -> None:
        self._last_listener = None

    # How long the leases last

    def confirm(self, until: float) -> None:
        """The server keeps this client alive at least until then."""
        self.confirmed_until = until

    def shorten(self, sent: float) -> None:
        """A call was sent that sets the lease: from now on it may end LEASE seconds after that."""
        self.confirmed_until = min(self.confirmed_until, sent + LEASE)

    def take(self, sent: float) -> None:
        """Jobs came that were requested at this time."""
        self.taken_at = sent
        self._table.set_requested_at(self._index, sent)

    # Single leases

    def hold(self, leases: int) -> None:
        """The worker may hold that many more leases: the supervisor keeps them alive."""
        self._table.add_held(self._index, leases)

    def drop(self, leases: int) -> None:
        """They have ended, or belong to another client."""
        self._table.add_held(self._index, -leases)

    def release_unknown(self, lease: LeaseKey) -> None:
        """The server says that this worker holds a lease it does not know: it is released, and a
        hand-off message that brings it later is ignored.
        """
        self.hold(1)
        self._released.add(lease)

    def hand_off(self, lease: LeaseKey) -> Literal["duplicate", "released", "expired", "held"]:
        """A job was handed to this worker with a wake-up message."""
        if lease in self._handed_off:
            return "duplicate"
        self._handed_off.append(lease)
        if lease in self._released:
            self._released.discard(lease)
            return "released"
        now = time.monotonic()
        # As if it had been requested so long ago that no more of the lease can be left.
        requested = max(self.taken_at, min(now, self.confirmed_until - LEASE))
        self.hold(1)
        if now - max(requested, self._table.confirmed_at(self._index)) > CUT_OFF:
            return "expired"
        self.take(requested)
        return "held"
