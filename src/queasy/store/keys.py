"""All keys of a queue, in the one order. Every call passes them from the first on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

__all__ = ["NAMES", "RESERVED", "QueueKeys"]

RESERVED = (
    "results", "results_at", "lanes", "lane_counts", "schedules", "schedules_at",
    "outbox", "outbox_at",
)  # fmt: skip
# The same order as NAMES in lua/keys.lua; a test compares the two.
NAMES = (
    "waiting", "data", "info", "active", "blocked", "meta", "stats", "waiters", "waiter_info",
    "calls", "callers", "leases", "clients", "requests", "workers", "broken", "broken_at",
    "cancels", "failed", "failed_at", *RESERVED,
)  # fmt: skip
PRODUCER_KEYS = 11
HAND_OFF_KEYS = 17
FAIL_KEYS = 9


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
    def for_dispatch(self) -> tuple[str, ...]:
        return self.all[:PRODUCER_KEYS]

    @cached_property
    def for_hand_off(self) -> tuple[str, ...]:
        """The keys for a put that may hand off its job."""
        return self.all[:HAND_OFF_KEYS]

    @cached_property
    def with_fail_queue(self) -> tuple[str, ...]:
        """The keys for functions that may give a job up. A fail queue has no fail queue itself."""
        if self.fail:
            return self.all
        return self.all + QueueKeys(self.prefix, self.queue, fail=True).all[:FAIL_KEYS]

    @property
    def name(self) -> str:
        """The name as people see it."""
        return f"{{{self.queue}}}-fail" if self.fail else self.queue

    def channel(self, client: str) -> str:
        """The channel on which a client receives wake-ups and hand-offs of this queue."""
        return f"{self.base}client:{client}"
