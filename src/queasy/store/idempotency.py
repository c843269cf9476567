"""Numbered calls: the server recognises a call that is sent again, and carries it out once."""

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
    """A random id and a count of calls. A caller has one call in flight at a time."""

    __slots__ = ("calls", "id")

    def __init__(self) -> None:
        self.id = secrets.token_urlsafe(9)
        self.calls = 0

    def next_call(self) -> tuple[str, int]:
        """The id and the number of the next call."""
        self.calls += 1
        return self.id, self.calls


class Callers:
    """A pool of callers. It grows to the number of calls that are in flight at the same time.

    Safe to share between threads.
    """

    def __init__(self) -> None:
        self._free: list[Caller] = []
        self._process = os.getpid()

    def number(self, command: Command[T]) -> _NumberedCall[T]:
        """A context with the command, numbered by a caller that is reserved until it ends."""
        return _NumberedCall(self, command)

    def take(self) -> Caller:
        """Reserves a caller; `give_back` returns it."""
        if self._process != os.getpid():  # forked: the parent goes on using these callers
            self._free, self._process = [], os.getpid()
        try:
            # Reuse the caller that was used last: the server forgets callers that are not used.
            return self._free.pop()
        except IndexError:
            return Caller()

    @contextlib.contextmanager
    def one(self) -> Generator[Caller]:
        """Reserves a caller for several calls, one after another."""
        caller = self.take()
        try:
            yield caller
        finally:
            self.give_back(caller)

    def give_back(self, caller: Caller) -> None:
        self._free.append(caller)


class _NumberedCall(Generic[T]):
    """The context of `Callers.number`. With `contextlib` each call would spend six times as long
    here.
    """

    __slots__ = ("_caller", "_callers", "_command")

    def __init__(self, callers: Callers, command: Command[T]) -> None:
        self._callers = callers
        self._command = command
        self._caller: Caller | None = None

    def __enter__(self) -> Command[T]:
        if not self._command.needs_number:
            return self._command
        self._caller = caller = self._callers.take()
        return self._command.with_number(*caller.next_call())

    def __exit__(self, *_: object) -> None:
        if self._caller is not None:
            self._callers.give_back(self._caller)
