"""Who calls, and how often it did: so that the server knows a call that is sent again."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Generator
from typing import Generic, TypeVar

from queasy.store.command import Command

__all__ = ["Caller", "Callers"]

T = TypeVar("T")


class Caller:
    __slots__ = ("calls", "id")

    def __init__(self) -> None:
        self.id = secrets.token_urlsafe(9)
        self.calls = 0


class Callers:
    """As many as call at the same time: each sends one call, until it is answered, then the next.

    Safe to share between threads.
    """

    def __init__(self) -> None:
        self._free: list[Caller] = []
        self._process = os.getpid()

    def number(self, command: Command[T]) -> _NumberedCall[T]:
        """The command as one call of a caller, who is busy with it meanwhile."""
        return _NumberedCall(self, command)

    def take(self) -> Caller:
        """Who numbers its calls itself, and gives it back behind each."""
        if self._process != os.getpid():  # forked: these are the parent's, who goes on counting
            self._free, self._process = [], os.getpid()
        try:
            return self._free.pop()  # the last who called: the others may be forgotten
        except IndexError:
            return Caller()

    @contextlib.contextmanager
    def one(self) -> Generator[Caller]:
        """Who makes several calls, one after another."""
        caller = self.take()
        try:
            yield caller
        finally:
            self.give_back(caller)

    def give_back(self, caller: Caller) -> None:
        self._free.append(caller)


class _NumberedCall(Generic[T]):
    """A class, for there is one for each call: what contextlib makes takes six times as long."""

    __slots__ = ("_caller", "_callers", "_command")

    def __init__(self, callers: Callers, command: Command[T]) -> None:
        self._callers = callers
        self._command = command
        self._caller: Caller | None = None

    def __enter__(self) -> Command[T]:
        if not self._command.call_keys:
            return self._command
        self._caller = caller = self._callers.take()
        caller.calls += 1
        return self._command.with_number(caller.id, caller.calls)

    def __exit__(self, *_: object) -> None:
        if self._caller is not None:
            self._callers.give_back(self._caller)
