"""A lease of a consumer: the program ends it, the consumer keeps it alive."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Protocol, cast

from queasy.consumer.state import LeaseKey, QueueState
from queasy.errors import InvalidInput
from queasy.job import Job
from queasy.lease import BaseLease, Lease, SyncLease
from queasy.store.commands import QueueCommands
from queasy.store.records import Ending

__all__ = ["ConsumerLease", "Hold", "SyncConsumerLease"]


class Flag(Protocol):
    """An `asyncio.Event` or a `threading.Event`."""

    def set(self) -> Any: ...
    def is_set(self) -> bool: ...


class Keeper(Protocol):
    """What a lease tells its consumer, from any thread."""

    def ended(self, hold: Hold) -> None: ...
    def report(self, hold: Hold, ending: Ending) -> None: ...


class Hold:
    """What the consumer knows about one lease. The program's side is a `ConsumerLease`."""

    def __init__(self, job: Job, queue: QueueState, keeper: Keeper, should_stop: Flag) -> None:
        self.job = job
        self.key: LeaseKey = (job.id, job.token)
        self.queue = queue
        self.should_stop = should_stop
        self._settling = 0
        """Calls in flight that end the lease."""
        self.over = False
        """The lease has ended, or its consumer will end it."""
        self._keeper = keeper
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

    def cancel(self) -> None:
        """The cancellation of the run was requested."""
        self.job.flag.raise_flag()
        self.should_stop.set()

    def warn(self) -> None:
        """The lease was not confirmed in time."""
        self.should_stop.set()

    def lose(self) -> None:
        """The server has said that the lease is over."""
        self.over = True
        self._on_lost()
        self.should_stop.set()

    def end(self) -> None:
        """The server has answered a call that ended the lease."""
        self.over = True
        self._keeper.ended(self)

    def hand_over(self, ending: Ending) -> None:
        """The program has chosen how the lease ends, and the consumer reports it."""
        self.over = True
        self._keeper.report(self, ending)


class HeldLease(BaseLease):
    """What `ConsumerLease` and `SyncConsumerLease` share."""

    _hold: Hold

    def _bind(self, hold: Hold) -> None:
        self._hold = hold
        hold.on_lost(self._lose)

    @property
    def lost(self) -> bool:
        """Whether another client may have the job: the server said that the lease is over, or did
        not confirm it in time.
        """
        return super().lost or self._hold.unconfirmed

    def _lose(self) -> None:
        if self.ended is None:
            self.ended = "lost"

    def _extended(self, word: str) -> bool:
        extended = super()._extended(word)
        if not extended:
            self._hold.end()
        if not extended or self.cancelled:
            self._hold.should_stop.set()
        return extended

    @contextmanager
    def _settling(self, ending: Ending) -> Generator[None]:
        """If the call fails, the consumer repeats it until the server answers."""
        hold = self._hold
        hold.begin_settling()
        try:
            with super()._settling(ending):
                yield
        except InvalidInput:  # refused: the lease is still held
            raise
        except BaseException:
            hold.hand_over(ending)
            raise
        else:
            hold.end()
        finally:
            hold.end_settling()


class ConsumerLease(HeldLease, Lease):
    """A lease that its consumer keeps alive until it ends."""

    def __init__(self, job: Job, commands: QueueCommands, store: Any, hold: Hold) -> None:
        super().__init__(job, commands, store)
        self._bind(hold)
        self.should_stop = cast("asyncio.Event", hold.should_stop)
        """Set when a cancel of the job was requested, or the lease was lost."""


class SyncConsumerLease(HeldLease, SyncLease):
    """A lease that its consumer keeps alive until it ends, for sync code."""

    def __init__(self, job: Job, commands: QueueCommands, store: Any, hold: Hold) -> None:
        super().__init__(job, commands, store)
        self._bind(hold)
        self.should_stop = cast("threading.Event", hold.should_stop)
        """Set when a cancel of the job was requested, or the lease was lost."""
