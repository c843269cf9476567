"""The record that a worker leaves on the server: what it is, and what it serves."""

from __future__ import annotations

import os
import socket
import time
from typing import Annotated

import msgspec

from queasy.options import MAX_LEASE_SECONDS
from queasy.version import VERSION

__all__ = ["CAPACITY", "DEFAULT_LEASE", "WorkerRecord"]

CAPACITY = 100
"""The capacity of a worker, unless its operator says otherwise."""

# Three heartbeats longer than the silence that the server takes for an outage of its own (OUTAGE_MS
# in lua/keys.lua: 10 seconds). After a shorter outage no lease has run out; after a longer one the
# server extends the leases. A worker with a shorter lease loses its runs in an outage between the
# two.
DEFAULT_LEASE = 10.0 + 3.0

# Any client can write a record, so numbers are checked: a worker writes none outside this range.
Whole = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Lease = Annotated[float, msgspec.Meta(ge=0, le=MAX_LEASE_SECONDS)]


class WorkerRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a worker says about itself, for all clients to read."""

    group: str = ""
    """The same for all workers of one supervisor."""
    host: str = ""
    pid: Whole = 0
    supervisor: Whole = 0
    """The process id of its supervisor; 0 for an inline worker."""
    version: str = ""
    started: float = 0.0
    capacity: Whole = CAPACITY
    lease: Lease = DEFAULT_LEASE
    """After this many seconds of silence it counts as dead."""
    queues: dict[str, Whole] = {}
    """Each with the size of one of its jobs."""

    @classmethod
    def here(
        cls,
        group: str,
        supervisor: int,
        capacity: int,
        queues: dict[str, int],
        lease: float = DEFAULT_LEASE,
    ) -> WorkerRecord:
        """The record of a worker in this process."""
        return cls(
            group=group,
            host=socket.gethostname(),
            pid=os.getpid(),
            supervisor=supervisor,
            version=VERSION,
            started=time.time(),
            capacity=capacity,
            lease=lease,
            queues=queues,
        )

    def pack(self) -> bytes:
        """As the server stores it."""
        return msgspec.json.encode(self)

    @classmethod
    def read(cls, raw: bytes) -> WorkerRecord | None:
        """None if this is not a worker's record: a pull lease has none."""
        try:
            return msgspec.json.decode(raw, type=cls) if raw else None
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None
