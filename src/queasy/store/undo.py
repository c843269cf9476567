"""Undoes a command whose answer did not reach the caller.

The server may grant a lease although its caller never learns of it: the caller was interrupted, or
the answer was lost. Without an undo, no other client could take the job until that lease expires.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from queasy.errors import QueasyError, Unanswered, Unreachable
from queasy.store.command import Command

__all__ = ["SyncUndos", "undo_once_answered"]

log = logging.getLogger("queasy")

UndoCommand = Command[tuple[str, int]]
"""Answers "gone" when there was something to undo."""

# A command that was given up without an answer may still be carried out later. So the undo is
# attempted up to this many times, until it finds something to undo.
UNDO_ATTEMPTS = 3
UNDO_PAUSE_SECONDS = 1.0


class _PendingUndo:
    """One undo, and how often it must still be attempted."""

    def __init__(self, command: UndoCommand, expires_in: float, attempts: int) -> None:
        self.command = command
        self.attempts_left = attempts
        self._next_attempt_at = 0.0
        self._expires_at = time.monotonic() + expires_in

    def record(self, state: str) -> None:
        """Counts an attempt that the server answered."""
        self.attempts_left = 0 if state == "gone" else self.attempts_left - 1

    def begin_attempt(self) -> None:
        """The next attempt is due after a pause."""
        self._next_attempt_at = time.monotonic() + UNDO_PAUSE_SECONDS

    @property
    def due(self) -> bool:
        """Whether the pause after the last attempt is over."""
        return time.monotonic() >= self._next_attempt_at

    @property
    def expired(self) -> bool:
        """Whether the lease has expired by itself."""
        return time.monotonic() > self._expires_at


async def undo_once_answered(
    running: asyncio.Future[Any],
    command: UndoCommand,
    expires_in: float,
    run: Callable[[UndoCommand], Awaitable[tuple[str, int]]],
    sleep: Callable[[float], Awaitable[bool]],
) -> None:
    """Undoes a `running` call, once it was answered or given up.

    An undo that is sent earlier, over another connection, could overtake the call. A call that was
    given up may still arrive when a stalled network recovers, so the undo is repeated. `sleep`
    returns False when another attempt is not wanted.
    """
    await asyncio.wait([running])
    failure = running.exception()
    unanswered = isinstance(failure, Unanswered)
    if isinstance(failure, Unreachable) and not unanswered:
        return  # the call was never sent
    undo = _PendingUndo(command, expires_in, UNDO_ATTEMPTS if unanswered else 1)
    while undo.attempts_left:
        try:
            state, _ = await run(undo.command)
            undo.record(state)
        except QueasyError as problem:
            if not unanswered or undo.expired:
                log.warning(
                    "queue %r: cannot undo a lease that its caller never received; its job is not "
                    "available until the lease expires: %s",
                    undo.command.queue,
                    problem,
                )
                return
        if undo.attempts_left and not await sleep(UNDO_PAUSE_SECONDS):
            return


class SyncUndos:
    """Undos for sync code. Safe to share between threads.

    Sync code has no background task: if an undo fails, the next call that leases a job repeats it.
    """

    def __init__(self, run: Callable[[UndoCommand], tuple[str, int]]) -> None:
        self._run = run
        self._pending: deque[_PendingUndo] = deque()

    def add(self, command: UndoCommand, expires_in: float) -> None:
        self._pending.append(_PendingUndo(command, expires_in, UNDO_ATTEMPTS))

    def attempt(self) -> None:
        """Tries each pending undo that is due; stops when the server cannot be reached."""
        for _ in range(len(self._pending)):
            try:
                undo = self._pending.popleft()
            except IndexError:  # another thread took the last one
                return
            failed = False
            if undo.due:
                failed = not self._attempt(undo)
            if undo.attempts_left and not undo.expired:
                self._pending.append(undo)
            if failed:
                return

    def _attempt(self, undo: _PendingUndo) -> bool:
        """Tries one undo; returns whether the server answered."""
        undo.begin_attempt()
        try:
            state, _ = self._run(undo.command)
        except QueasyError as problem:
            log.debug("%s failed and will be tried again: %s", undo.command.title, problem)
            return False
        undo.record(state)
        return True
