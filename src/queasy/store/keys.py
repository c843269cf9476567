"""The keys of a queue: all there are, in the order every function is given them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

__all__ = ["NAMES", "QueueKeys"]

# The same order as NAMES in lua/keys.lua; a test compares them.
NAMES = (
    "waiting", "data", "info", "active", "blocked", "meta", "stats", "waiters",
    "leases", "clients", "requests", "cancels", "workers", "failed", "failed_at",
    "broken", "broken_at", "calls", "callers",
)  # fmt: skip
QUEUE_KEYS = 17
FAIL_KEYS = 8


@dataclass(frozen=True)
class QueueKeys:
    """One queue's keys, or (with `fail`) those of its fail queue: one slot for both."""

    prefix: str
    queue: str
    fail: bool = False

    @cached_property
    def base(self) -> str:
        return f"{self.prefix}:{{{self.queue}}}{'-fail' if self.fail else ''}:"

    @cached_property
    def all(self) -> tuple[str, ...]:
        return tuple(self.base + name for name in NAMES)

    @cached_property
    def most(self) -> tuple[str, ...]:
        """What functions are given that know nothing of calls."""
        return self.all[:QUEUE_KEYS]

    @cached_property
    def for_dispatch(self) -> tuple[str, ...]:
        return self.all[:FAIL_KEYS]

    @cached_property
    def of_calls(self) -> tuple[str, ...]:
        """What a function is given, besides, to know a call that is sent again."""
        return self.all[QUEUE_KEYS:]

    @cached_property
    def for_numbered_dispatch(self) -> tuple[str, ...]:
        return self.for_dispatch + self.of_calls

    @cached_property
    def for_numbered_put(self) -> tuple[str, ...]:
        return self.most + self.of_calls

    @cached_property
    def with_fail_queue(self) -> tuple[str, ...]:
        """For functions that may give a job up. A fail queue has no fail queue of its own."""
        if self.fail:
            return self.most
        return self.most + QueueKeys(self.prefix, self.queue, fail=True).for_dispatch

    @property
    def name(self) -> str:
        """As people see it."""
        return f"{{{self.queue}}}-fail" if self.fail else self.queue

    def channel(self, client: str) -> str:
        """Where a client hears of this queue."""
        return f"{self.base}client:{client}"
