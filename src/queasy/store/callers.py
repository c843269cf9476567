"""Who calls, and how often it did: so that the server knows a call that is sent again."""

from __future__ import annotations

import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from queasy.store.command import Command

__all__ = ["Callers"]

T = TypeVar("T")


@dataclass(slots=True)
class _Caller:
    id: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    calls: int = 0


class Callers:
    """As many as call at the same time: each sends one call, until it is answered, then the next.

    Safe to share between threads.
    """

    def __init__(self) -> None:
        self._free: list[_Caller] = []
        self._process = os.getpid()

    @contextmanager
    def number(self, command: Command[T]) -> Generator[Command[T]]:
        """The command as one call of a caller, who is busy with it meanwhile."""
        if not command.call_keys:
            yield command
            return
        if self._process != os.getpid():  # forked: these are the parent's, who goes on counting
            self._free, self._process = [], os.getpid()
        try:
            caller = self._free.pop()  # the last who called: the others may be forgotten
        except IndexError:
            caller = _Caller()
        caller.calls += 1
        try:
            yield command.with_number(caller.id, caller.calls)
        finally:
            self._free.append(caller)
