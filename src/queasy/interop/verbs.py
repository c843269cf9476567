"""The methods of a foreign queue, written once: a `Client` awaits them, a `SyncClient` does not."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from queasy.client import Client
from queasy.errors import InvalidOption, InvalidQueue
from queasy.operation import Operation, run_operation, run_operation_sync
from queasy.store.store import AsyncStore, SyncStore
from queasy.sync import SyncClient

__all__ = ["ForeignQueue", "verb"]

C = TypeVar("C", Client, SyncClient)
P = ParamSpec("P")
T = TypeVar("T")
MAX_PREFIX_BYTES = 200


class ForeignQueue(Generic[C]):
    """A queue of another system, used by a client."""

    def __init__(self, client: C, prefix: str) -> None:
        if not isinstance(client, (Client, SyncClient)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(
                f"client: expected a Client or a SyncClient, got {type(client).__name__}"
            )
        settings = client._settings  # pyright: ignore[reportPrivateUsage]
        self._store: AsyncStore | SyncStore = client._store  # pyright: ignore[reportPrivateUsage]
        self._max_payload: int = settings.max_payload
        self.prefix = check_prefix(prefix, on_cluster=settings.target.kind == "cluster")
        """How the names of its keys begin."""

    def _run(self, operation: Operation[Any]) -> Any:
        """The result of an operation, or a coroutine of it."""
        store = self._store
        if isinstance(store, AsyncStore):
            return run_operation(store, operation)
        claim = store.undos.claim()
        try:
            result = run_operation_sync(store, operation, claim)
            claim.keep()
            return result
        except BaseException:  # also of a signal handler
            claim.abandon()
            raise

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__name__} {self.prefix}>"


class Verb(Generic[P, T]):
    """A method that is written as an operation."""

    def __init__(self, operation: Callable[Concatenate[Any, P], Operation[T]]) -> None:
        self._operation = operation
        self.__doc__ = operation.__doc__

    @overload
    def __get__(self, queue: None, kind: type, /) -> Self: ...

    @overload
    def __get__(
        self, queue: ForeignQueue[Client], kind: type, /
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...

    @overload
    def __get__(self, queue: ForeignQueue[SyncClient], kind: type, /) -> Callable[P, T]: ...

    def __get__(self, queue: ForeignQueue[Any] | None, kind: type, /) -> Any:
        if queue is None:
            return self

        @functools.wraps(self._operation)
        def method(*args: P.args, **kwargs: P.kwargs) -> Any:
            return queue._run(self._operation(queue, *args, **kwargs))  # pyright: ignore[reportPrivateUsage]

        return method


def verb(operation: Callable[Concatenate[Any, P], Operation[T]]) -> Verb[P, T]:
    """A method that awaits the steps of an operation, or does not, as its client does."""
    return Verb(operation)


def check_prefix(value: object, *, on_cluster: bool) -> str:
    """A prefix of keys. Other programs chose it, so any text will do that is not too long."""
    if not isinstance(value, str):
        raise InvalidQueue(f"prefix: expected a str, got {type(value).__name__}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidQueue(f"prefix: expected text that UTF-8 can hold, got {value!r}") from None
    if not 1 <= size <= MAX_PREFIX_BYTES:
        raise InvalidQueue(f"prefix: expected 1 to {MAX_PREFIX_BYTES} bytes, got {size}")
    tag, closed, _ = value.partition("{")[2].partition("}")
    if on_cluster and not (tag and closed):
        raise InvalidQueue(
            f"prefix: expected a hash tag on a cluster, as in '{{{value}}}', got {value!r}: the "
            "keys of this protocol have none, so they would be on several nodes, and no call could "
            "change them together"
        )
    return value
