"""How long a worker may be silent, and all that follows from it: one value, made from one option.

A worker that was silent for its lease is dead for the server, and other workers get its jobs.
Everything here happens before that, in this order:

    bump ─ bump ─ … ─ cut-off: freeze ─ self-kill ─ the lease ends

The workers of a queue may have different leases: the server knows when each of them ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from queasy.errors import InvalidOption
from queasy.options import Seconds, seconds
from queasy.worker_record import DEFAULT_LEASE

__all__ = ["DEFAULT_LEASE", "DEFAULT_TIMES", "LONGEST_LEASE", "SHORTEST_LEASE", "LeaseTimes"]

SHORTEST_LEASE, LONGEST_LEASE = 3.0, 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """Seconds, all derived from the lease. Make one with `LeaseTimes.of`."""

    lease: float
    """The server declares a worker dead if it was not bumped for this long."""
    bump_every: float
    """While a worker holds jobs, its leases are bumped this often. Not less often for a long lease:
    the server takes a longer silence for an outage."""
    check_every: float
    """The heartbeat looks this often which bumps are due."""
    call_timeout: float
    """A heartbeat that is not answered is repeated after this time."""
    cut_off: float
    """If the server did not confirm the leases of a worker for this long, other workers may soon
    get its jobs: its supervisor freezes it, and an inline worker cancels its runs. At least seven
    rounds of the supervisor's watchdog pass between the cut-off and the end of the lease."""
    watch_every: float
    """The supervisor checks its children this often."""
    self_kill: float
    """A worker that is not frozen by then, because its supervisor itself is frozen, kills itself.
    It does so after two rounds of its guard, before the lease ends."""
    guard_every: float
    """The guard of a worker looks this often."""
    supervisor_silent: float
    """A supervisor that did not run for this long has not kept the leases, and they are about to
    run out: within two more rounds of the guard the worker is gone."""
    idle_lease: float
    """For a worker that holds no job of a queue. Not much longer than the lease: the worker may
    take jobs while such a heartbeat is in flight, and die before the next."""
    idle_margin: float
    """The heartbeat bumps an idle worker when less than this is left of its lease. More is left as
    long as the worker waits for jobs, and dequeues in time. If it does not, because it is full, the
    heartbeat calls at least every nine seconds: often enough that the death of a host does not look
    like an outage of the server (CONTACT_EVERY_MS in lua/keys.lua)."""

    @classmethod
    def of(cls, lease: float) -> Self:
        """The times for this lease.

        From six seconds on, the margins are those of the default: they pay for scheduling delays,
        which do not grow with the lease. A shorter lease has proportionally shorter ones.
        """
        scale = min(1.0, lease / 6.0)
        bump_every = 1.0 * scale
        guard_every = min(0.5, lease / 24.0)
        return cls(
            lease=lease,
            bump_every=bump_every,
            check_every=0.2 * scale,
            call_timeout=min(lease, DEFAULT_LEASE) / 3.0,
            cut_off=lease - 1.75 * scale,
            watch_every=min(0.25, lease / 24.0),
            self_kill=lease - 1.25 * scale,
            guard_every=guard_every,
            supervisor_silent=lease - bump_every - 4.0 * guard_every,
            idle_lease=lease + min(7.0, lease),
            idle_margin=lease - 2.0 * scale,
        )

    @classmethod
    def checked(cls, lease: Seconds) -> Self:
        """The times for the lease that a caller gave. Raises InvalidOption outside the range."""
        expected = f"{SHORTEST_LEASE:g} to {LONGEST_LEASE:g} seconds"
        length = seconds(lease, "lease", expected)
        if not SHORTEST_LEASE <= length <= LONGEST_LEASE:
            raise InvalidOption(f"lease: expected {expected}, got {lease!r}")
        return cls.of(length)


DEFAULT_TIMES = LeaseTimes.of(DEFAULT_LEASE)
