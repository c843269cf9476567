"""The leases of a consumer: the program ends them, the consumer keeps them alive."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Protocol, cast

from queasy.consumer.state import ConsumerQueue
from queasy.errors import InvalidInput
from queasy.job import Job
from queasy.lease import BaseLease, Lease, SyncLease
from queasy.store.commands import QueueCommands
from queasy.store.records import Ending, LeaseKey

__all__ = ["ConsumerLease", "LeaseRecord", "SyncConsumerLease"]


class Flag(Protocol):
    """An `asyncio.Event` or a `threading.Event`."""

    def set(self) -> Any: ...
    def is_set(self) -> bool: ...


class LeaseEvents(Protocol):
    """Receives the events of a lease, from any thread."""

    def ended(self, lease: LeaseRecord) -> None: ...
    def report(self, lease: LeaseRecord, ending: Ending) -> None: ...


class LeaseRecord:
    """The consumer's side of one lease. The program's side is a `ConsumerLease`."""

    def __init__(
        self, job: Job, queue: ConsumerQueue, events: LeaseEvents, should_stop: Flag
    ) -> None:
        self.job = job
        self.key: LeaseKey = (job.id, job.token)
        self.queue = queue
        self.should_stop = should_stop
        self._settling = 0
        """Calls in flight that end the lease."""
        self.over = False
        """The lease has ended, or its consumer will end it."""
        self._events = events
        self._on_lost: Callable[[], None] = lambda: None

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Calls `callback` when the server has said that the lease is over."""
        self._on_lost = callback

    @property
    def unconfirmed(self) -> bool:
        """Whether the server did not confirm the lease in time: another client may have the job."""
        return not self.over and time.monotonic() >= self.queue.at_risk_at()

    @property
    def settling(self) -> bool:
        """Whether a call that ends the lease is in flight."""
        return self._settling > 0

    def begin_settling(self) -> None:
        self._settling += 1

    def end_settling(self) -> None:
        self._settling -= 1

    def note_cancel_request(self) -> None:
        """The cancellation of the run was requested."""
        self.job.flag.raise_flag()
        self.should_stop.set()

    def note_unconfirmed(self) -> None:
        """The lease was not confirmed in time."""
        self.should_stop.set()

    def note_lost(self) -> None:
        """The server has said that the lease is over."""
        self.over = True
        self._on_lost()
        self.should_stop.set()

    def note_ended(self) -> None:
        """The server has answered a call that ended the lease."""
        self.over = True
        self._events.ended(self)

    def report(self, ending: Ending) -> None:
        """The lease ends like this, and its consumer reports it."""
        self.over = True
        self._events.report(self, ending)


class ManagedLease(BaseLease):
    """A lease that its consumer keeps alive until it ends. The base of the two public classes."""

    _record: LeaseRecord

    def _bind(self, record: LeaseRecord) -> None:
        self._record = record
        record.on_lost(self._note_lost)
        if record.over:  # lost just before
            self._note_lost()

    @property
    def lost(self) -> bool:
        """Whether another client may have the job: the server said that the lease is over, or did
        not confirm it in time.
        """
        return super().lost or self._record.unconfirmed

    def _note_lost(self) -> None:
        if self.ended is None:
            self.ended = "lost"

    def _extended(self, word: str) -> bool:
        extended = super()._extended(word)
        if not extended:
            self._record.note_ended()
        if not extended or self.cancelled:
            self._record.should_stop.set()
        return extended

    @contextmanager
    def _settling(self, ending: Ending) -> Generator[None]:
        """If the call fails, the consumer repeats it until the server answers."""
        record = self._record
        record.begin_settling()
        try:
            with super()._settling(ending):
                yield
        except InvalidInput:  # refused: the lease is still held
            raise
        except BaseException:
            record.report(ending)
            raise
        else:
            record.note_ended()
        finally:
            record.end_settling()


class ConsumerLease(ManagedLease, Lease):
    """A lease that its consumer keeps alive until it ends."""

    def __init__(self, job: Job, commands: QueueCommands, store: Any, record: LeaseRecord) -> None:
        super().__init__(job, commands, store)
        self._bind(record)
        self.should_stop = cast("asyncio.Event", record.should_stop)
        """Set when a cancel of the job was requested, or the lease was lost."""


class SyncConsumerLease(ManagedLease, SyncLease):
    """A lease that its consumer keeps alive until it ends, for sync code."""

    def __init__(self, job: Job, commands: QueueCommands, store: Any, record: LeaseRecord) -> None:
        super().__init__(job, commands, store)
        self._bind(record)
        self.should_stop = cast("threading.Event", record.should_stop)
        """Set when a cancel of the job was requested, or the lease was lost."""
