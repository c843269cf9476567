"""Undoes a command whose answer did not reach the caller.

The server may grant a lease although its caller never learns of it: the caller was interrupted, or
the answer was lost. Without an undo, no other client could take the job until that lease expires.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from queasy.errors import QueasyError, Unanswered, Unreachable
from queasy.store.command import Command

__all__ = ["Claim", "SyncUndos", "undo_once_answered"]

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


class _Fate:
    """What became of a call: its caller received the answer, or was interrupted."""

    __slots__ = ("abandoned", "kept")

    def __init__(self) -> None:
        self.abandoned = self.kept = False

    def keep(self) -> None:
        self.kept = True

    def abandon(self) -> None:
        self.abandoned, self.kept = True, False


class _ClaimedUndo(_PendingUndo):
    """The undo of a command that a sync call has sent, or is about to send."""

    def __init__(self, command: UndoCommand, expires_in: float, claim: Claim) -> None:
        super().__init__(command, expires_in, UNDO_ATTEMPTS)
        self._claim = weakref.ref(claim)
        self._fate = claim.fate
        self._wanted = False

    def want(self) -> None:
        """The command has no answer: it is undone, whatever becomes of the call."""
        self._wanted = True

    def drop(self) -> None:
        """The command has taken nothing, or what it took was given back."""
        self.attempts_left = 0

    @property
    def is_wanted(self) -> bool:
        """Whether to undo the command now: its call was interrupted."""
        return self._wanted or self._fate.abandoned or self._claim() is None

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to undo."""
        kept = self._fate.kept and not self._wanted
        return kept or not self.attempts_left or self.expired


class Claim:
    """What one sync call may have taken from the server.

    It is undone unless the call returns right after `keep`. The interpreter runs signal handlers
    when it calls a function, but not when it returns from one. So a handler that raises finds the
    claim either not kept, or in the hands of the caller.

    The call registers each undo before it sends the command. So an undo is not lost even if
    `abandon` is interrupted: the claim is gone with the frame of the call, and then the next call
    finds its undos.
    """

    __slots__ = ("__weakref__", "_open", "_undos", "fate")

    def __init__(self, undos: SyncUndos) -> None:
        self._undos = undos
        self._open: list[_ClaimedUndo] = []
        self.fate = _Fate()

    def begin(self, command: UndoCommand, expires_in: float) -> None:
        """A command is about to be sent, which `command` undoes."""
        undo = _ClaimedUndo(command, expires_in, self)
        self._undos.add(undo)
        self._open.append(undo)

    def answered(self, *, took: bool) -> None:
        """The last command was answered; it has also given back what those before it took."""
        over = slice(-1 if took else None)
        for undo in self._open[over]:
            undo.drop()
        del self._open[over]

    def refused(self) -> None:
        """The last command did not reach the server, or was refused."""
        self._open[-1].drop()

    def unanswered(self) -> None:
        """The last command may have been carried out, and the call continues without it."""
        self._open[-1].want()
        self._undos.attempt()

    def keep(self) -> None:
        """The caller receives what the call took: the call must return now."""
        self.fate.keep()

    def abandon(self) -> None:
        """The caller does not receive what the call took."""
        self.fate.abandon()
        if self._open:
            self._undos.attempt()


class SyncUndos:
    """Undos for sync code. Safe to share between threads.

    Sync code has no background task: if an undo fails, the next call that leases a job repeats it.
    """

    def __init__(self, run: Callable[[UndoCommand], tuple[str, int]]) -> None:
        self._run = run
        self._pending: deque[_ClaimedUndo] = deque()

    def claim(self) -> Claim:
        """A claim for one call."""
        return Claim(self)

    def add(self, undo: _ClaimedUndo) -> None:
        self._pending.append(undo)

    def attempt(self) -> None:
        """Tries each undo that is wanted and due; stops when the server cannot be reached.

        An undo stays pending until it is over, so that none is lost if this is interrupted.
        """
        for undo in list(self._pending):
            if undo.is_over:
                with contextlib.suppress(ValueError):  # another thread has removed it
                    self._pending.remove(undo)
            elif undo.is_wanted and undo.due and not self._attempt(undo):
                return

    def _attempt(self, undo: _ClaimedUndo) -> bool:
        """Tries one undo; returns whether the server answered."""
        undo.begin_attempt()
        try:
            state, _ = self._run(undo.command)
        except QueasyError as problem:
            log.debug("%s failed and will be tried again: %s", undo.command.title, problem)
            return False
        undo.record(state)
        return True
