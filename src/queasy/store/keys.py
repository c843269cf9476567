"""All keys of a queue, in the order in which every server function receives them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

__all__ = ["NAMES", "QueueKeys"]

# The same order as NAMES in lua/keys.lua; a test compares the two.
NAMES = (
    "waiting", "data", "info", "active", "blocked", "meta", "stats", "waiters",
    "leases", "clients", "requests", "cancels", "workers", "failed", "failed_at",
    "broken", "broken_at", "calls", "callers",
)  # fmt: skip
QUEUE_KEYS = 17
FAIL_KEYS = 8


@dataclass(frozen=True)
class QueueKeys:
    """The keys of a queue or, with `fail`, of its fail queue. Both are in one cluster slot."""

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
    def without_calls(self) -> tuple[str, ...]:
        """The keys for functions that need not recognise a repeated call: "all" in api.lua."""
        return self.all[:QUEUE_KEYS]

    @cached_property
    def for_dispatch(self) -> tuple[str, ...]:
        return self.all[:FAIL_KEYS]

    @cached_property
    def of_calls(self) -> tuple[str, ...]:
        """The further keys by which a function recognises a repeated call."""
        return self.all[QUEUE_KEYS:]

    @cached_property
    def for_numbered_dispatch(self) -> tuple[str, ...]:
        return self.for_dispatch + self.of_calls

    @cached_property
    def for_numbered_put(self) -> tuple[str, ...]:
        return self.without_calls + self.of_calls

    @cached_property
    def with_fail_queue(self) -> tuple[str, ...]:
        """The keys for functions that may give a job up. A fail queue has no fail queue itself."""
        if self.fail:
            return self.without_calls
        return self.without_calls + QueueKeys(self.prefix, self.queue, fail=True).for_dispatch

    @property
    def name(self) -> str:
        """The name as people see it."""
        return f"{{{self.queue}}}-fail" if self.fail else self.queue

    def channel(self, client: str) -> str:
        """The channel on which a client receives wake-ups and hand-offs of this queue."""
        return f"{self.base}client:{client}"
