"""A lease: one job that belongs to its holder until the lease expires."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from queasy.errors import LeaseLost, Unanswered
from queasy.job import Job, JobError
from queasy.options import Seconds, When, lease_seconds
from queasy.outcomes import (
    Cancel,
    Fail,
    Finish,
    Outcome,
    Release,
    RetryLater,
    check_retry_time,
)
from queasy.store.command import Command
from queasy.store.commands import QueueCommands
from queasy.store.records import Ending

__all__ = ["BaseLease", "Lease", "LeaseRequest", "SyncLease"]


class BaseLease:
    """State and decisions of a lease. `Lease` awaits the server, `SyncLease` does not."""

    def __init__(self, job: Job, commands: QueueCommands) -> None:
        self.job = job
        """The job as it was when it was leased."""
        self.data: Any = job.data
        """The data of the job."""
        self.token = job.token
        """The token of the lease: it increases with every lease."""
        self.ended: str | None = None
        """How the lease ended, as the server says: finished, retried, failed, released, lost ..."""
        self._answered = False
        """The server has answered a call of the program that ends the lease."""
        self._answer_lost = False
        """The answer to an earlier end of this lease was lost: it may have taken effect."""
        self._commands = commands

    @property
    def cancelled(self) -> bool:
        """Whether the cancellation of this job was requested; updated by `extend`."""
        return self.job.cancelled

    @property
    def lost(self) -> bool:
        """Whether the lease is over, and another client may have the job."""
        return self.ended == "lost"

    def _ending(self, outcome: Outcome) -> Ending:
        return Ending(self.job.id, self.token, outcome)

    def _settlement(self, ending: Ending) -> Command[list[str]]:
        return self._commands.settle([ending])

    @contextmanager
    def _settling(self, ending: Ending) -> Generator[None]:
        """Note that an answer was lost: that call may have ended the lease."""
        try:
            yield
        except Unanswered:
            self._answer_lost = True
            raise

    def _note_answer(self, words: list[str]) -> bool:
        if words[0] == "lost" and self._answer_lost:
            raise Unanswered(
                f"job {self.job.id!r} of queue {self.job.queue!r}: the lease is over. Either an "
                "earlier call ended it, and its answer was lost, or it expired"
            )
        if self.ended is None:  # the first answer counts
            self.ended = words[0]
        self._answered = True
        return words[0] != "lost"

    def _retry(self, at: When | None, after: Seconds | None, error: object) -> Ending:
        return self._ending(RetryLater(JobError.of(error), *check_retry_time(at, after)))

    def _extension(self, lease: Seconds) -> Command[str]:
        return self._commands.extend(self.job.id, self.token, lease_seconds(lease))

    def _extended(self, word: str) -> bool:
        if word == "cancel":
            self.job.flag.raise_flag()
        if word == "lost" and self.ended is None:
            self.ended = "lost"
        return word != "lost"

    def _ending_of_block(self, error: BaseException | None) -> Ending:
        match error:
            case None:
                return self._ending(Finish())
            case Exception():
                return self._ending(RetryLater(JobError.of(error)))
            case _:  # cancelled or interrupted: not counted as an attempt
                return self._ending(Release())

    def _check_end(self, error: BaseException | None) -> None:
        if error is None and self.ended == "lost":
            raise LeaseLost(
                f"job {self.job.id!r} of queue {self.job.queue!r}: the block ended after its "
                "lease: another client may run the job again. Check that the lease is long enough, "
                "that nothing blocks the event loop, and that nobody evicted the client"
            )

    def __repr__(self) -> str:
        kind, job, state = type(self).__name__, self.job, self.ended or "held"
        return f"<{kind} {job.queue} {job.id} token={self.token} {state}>"


class Runner(Protocol):
    async def run(self, command: Command[Any]) -> Any: ...


class Lease(BaseLease):
    """A leased job. Every method returns True when it took effect, False when the lease was
    over: expired, evicted, or ended before.
    """

    def __init__(self, job: Job, commands: QueueCommands, store: Runner) -> None:
        super().__init__(job, commands)
        self._store = store

    async def _settle(self, ending: Ending) -> bool:
        with self._settling(ending):
            return self._note_answer(await self._store.run(self._settlement(ending)))

    async def complete(self) -> bool:
        """Finish the job. True for exactly one caller, ever."""
        return await self._settle(self._ending(Finish()))

    async def retry(
        self, *, at: When | None = None, after: Seconds | None = None, error: object = None
    ) -> bool:
        """Run the job again, at a time, after some seconds, or (default) after its backoff.

        A job without retries left is given up instead: `ended` is "failed".
        """
        return await self._settle(self._retry(at, after, error))

    async def fail(self, error: object = None) -> bool:
        """Give the job up: it goes into the failed record, and to the fail handler if any."""
        return await self._settle(self._ending(Fail(JobError.of(error, "permanent"))))

    async def release(self) -> bool:
        """Put the job back to the front of the queue; not counted as an attempt."""
        return await self._settle(self._ending(Release()))

    async def cancel(self) -> bool:
        """Delete the job: accept a cancel request, or cancel without one."""
        return await self._settle(self._ending(Cancel()))

    async def extend(self, seconds: Seconds) -> bool:
        """Extend the lease to `seconds` from now. Updates `cancelled`, too."""
        return self._extended(await self._store.run(self._extension(seconds)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the lease if the block did not: complete on success, retry on an exception, release
        on a cancellation.
        """
        if self._answered:
            return
        if self.ended is None:
            await self._settle(self._ending_of_block(error))
        self._check_end(error)


L = TypeVar("L", bound=Lease | None)
"""A `Lease` without a timeout; with a timeout it may be None."""


class LeaseRequest(Coroutine[Any, Any, L], Generic[L]):
    """The result of `Queue.lease`: await it, or use it in `async with`.

    It is a coroutine, so `asyncio.create_task` accepts it, too.
    """

    def __init__(self, take: Coroutine[Any, Any, L]) -> None:
        self._take = take
        self._lease: Lease | None = None

    def __await__(self) -> Generator[Any, Any, L]:
        return self._take.__await__()

    def send(self, value: Any, /) -> Any:
        return self._take.send(value)

    def throw(self, *error: Any) -> Any:
        return self._take.throw(*error)

    def close(self) -> None:
        self._take.close()

    async def __aenter__(self) -> L:
        lease = self._lease = await self._take
        return lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lease is not None:
            await self._lease.__aexit__(kind, error, trace)


class SyncRunner(Protocol):
    def run(self, command: Command[Any]) -> Any: ...


class SyncLease(BaseLease):
    """A leased job, for sync code. Every method returns True when it took effect, False when
    the lease was over: expired, evicted, or ended before.
    """

    def __init__(self, job: Job, commands: QueueCommands, store: SyncRunner) -> None:
        super().__init__(job, commands)
        self._store = store

    def _settle(self, ending: Ending) -> bool:
        with self._settling(ending):
            return self._note_answer(self._store.run(self._settlement(ending)))

    def complete(self) -> bool:
        """Finish the job. True for exactly one caller, ever."""
        return self._settle(self._ending(Finish()))

    def retry(
        self, *, at: When | None = None, after: Seconds | None = None, error: object = None
    ) -> bool:
        """Run the job again, at a time, after some seconds, or (default) after its backoff.

        A job without retries left is given up instead: `ended` is "failed".
        """
        return self._settle(self._retry(at, after, error))

    def fail(self, error: object = None) -> bool:
        """Give the job up: it goes into the failed record, and to the fail handler if any."""
        return self._settle(self._ending(Fail(JobError.of(error, "permanent"))))

    def release(self) -> bool:
        """Put the job back to the front of the queue; not counted as an attempt."""
        return self._settle(self._ending(Release()))

    def cancel(self) -> bool:
        """Delete the job: accept a cancel request, or cancel without one."""
        return self._settle(self._ending(Cancel()))

    def extend(self, seconds: Seconds) -> bool:
        """Extend the lease to `seconds` from now. Updates `cancelled`, too."""
        return self._extended(self._store.run(self._extension(seconds)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the lease if the block did not: complete on success, retry on an exception, release
        on an interruption.
        """
        if self._answered:
            return
        if self.ended is None:
            self._settle(self._ending_of_block(error))
        self._check_end(error)
