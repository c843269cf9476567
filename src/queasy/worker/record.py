"""The record that a worker leaves on the server: what it is, and what it serves."""

from __future__ import annotations

import os
import socket
import time
from typing import Annotated

import msgspec

from queasy.version import VERSION
from queasy.worker.lease_times import DEFAULT_LEASE, LONGEST_LEASE
from queasy.worker.plan import CAPACITY

__all__ = ["WorkerRecord"]

# Any client can write a record, so numbers are checked: a worker writes none outside this range.
Whole = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Lease = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_LEASE)]


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
