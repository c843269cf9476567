"""The handlers of a client: which there are, and which workers may still take more of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator

from queasy.errors import InvalidOption
from queasy.handler import Function, Handler

__all__ = ["Registry", "Resolved"]

Resolved = tuple[Handler, Function]


class Registry:
    """The handlers of a client, one handler and one fail handler for each queue."""

    def __init__(self) -> None:
        self._handlers: dict[tuple[str, bool], Handler] = {}
        self._sealed: list[tuple[str, Collection[str] | None]] = []
        self._watchers: list[Callable[[list[Resolved]], None]] = []

    def register(self, *handlers: Handler) -> None:
        """Registers all of them or, when a queue already has another such handler, none.

        A worker in this process that runs takes them up. Raises InvalidOption if there are workers
        that cannot: see `seal`.
        """
        handlers = tuple(one for one in handlers if self.get(one.queue, one.fail) != one)
        for handler in handlers:
            for why, names in self._sealed:
                if names is None or handler.queue in names:
                    raise InvalidOption(f"{handler} is registered too late: {why}")
            if other := self.get(handler.queue, handler.fail):
                raise InvalidOption(
                    f"queue {handler.queue!r}: expected one "
                    f"{'fail handler' if handler.fail else 'handler'}, "
                    f"got {other.name} and {handler.name}"
                )
        if self._watchers:
            found = self._with_functions(handlers)
            for take_up in self._watchers:
                take_up(found)
        self._handlers.update({(handler.queue, handler.fail): handler for handler in handlers})

    def seal(self, why: str, names: Collection[str] | None) -> None:
        """Refuses more handlers, for all queues or for those in `names`: nothing would run them."""
        self._sealed.append((why, names))

    @contextlib.contextmanager
    def watched(self, take_up: Callable[[list[Resolved]], None]) -> Generator[None]:
        """Calls `take_up` with each handler before it is registered, inside the `with` block."""
        self._watchers.append(take_up)
        try:
            yield
        finally:
            self._watchers.remove(take_up)

    def get(self, queue: str, fail: bool) -> Handler | None:
        return self._handlers.get((queue, fail))

    def handlers(self) -> list[Handler]:
        """All handlers, in order of registration."""
        return list(self._handlers.values())

    def names(self) -> list[str]:
        """The queues that have a handler, a fail handler or both."""
        return list(dict.fromkeys(handler.queue for handler in self.handlers()))

    def resolved(self, names: Collection[str] | None = None) -> list[Resolved]:
        """All handlers, or those of the queues in `names`, with their functions imported.

        A module named without a function adds its `handle_failure`, unless the queue has
        another fail handler.
        """
        self.check_names(names)
        found: list[Resolved] = []
        # One at a time: importing a module may register more handlers.
        while len(found) < len(chosen := self._chosen(names)):
            handler = chosen[len(found)]
            found.append((handler, handler.function()))
        return found + self._companions(found)

    def _with_functions(self, handlers: Collection[Handler]) -> list[Resolved]:
        found = [(handler, handler.function()) for handler in handlers]
        return found + self._companions(found)

    def _companions(self, found: list[Resolved]) -> list[Resolved]:
        companions = [
            companion
            for handler, _ in found
            if not self.get(handler.queue, True) and (companion := handler.companion())
        ]
        return [(companion, companion.function()) for companion in companions]

    def _chosen(self, names: Collection[str] | None) -> list[Handler]:
        return [handler for handler in self.handlers() if names is None or handler.queue in names]

    def check_names(self, names: Collection[str] | None) -> None:
        """Raises InvalidOption unless there are handlers, and one for each queue in `names`."""
        known = self.names()
        if not known:
            raise InvalidOption(
                "no queue has a handler: was the module imported that registers them? It registers "
                "one with @queue.handler, or with queue.handler('package.module:function')"
            )
        if names is None:
            return
        if isinstance(names, str) or not isinstance(names, Collection) or not names:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(f"queues: expected one name or more, in a list, got {names!r}")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise InvalidOption(
                f"queues: no handler for {', '.join(map(str, unknown))}; "
                f"expected {', '.join(known)}. Was the module imported that registers the handler?"
            )
