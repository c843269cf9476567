"""The state of one child process, without the process: its phase, and why it ends.

    STARTING ──> SERVING ──> RETIRING ──> DRAINING ──> GONE
        │                       ▲
        └───────────────────────┘  (a reload retires children that have not started yet, too)

    from every phase before KILLED:  ──> DRAINING, STOPPING or KILLED ──> GONE

Only the methods of `ChildState` change it; each is named for what happened. Other objects read it.
The watchdog decides from a `ChildSnapshot`, which does not change.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import msgspec

from queasy.worker.liveness.inflight_table import Entry, OnLoop
from queasy.worker.supervision.messages import Planned

__all__ = [
    "LOOP_BLOCKED",
    "ChildSnapshot",
    "ChildState",
    "KillReason",
    "Phase",
    "RunKey",
    "run_key",
]

KillReason = Literal["stop", "overdue", "memory", "sigstop", "blocked", "lost", "evicted"]
"""Why the supervisor killed a child.

stop: it did not end by itself in time. overdue: a run did not end. memory: it used far too much.
sigstop: another program stopped it for longer than a lease. blocked: its event loop was blocked for
longer than a lease while nothing ran. lost: its leases are gone. evicted: a
client ordered it.
"""

RunKey = tuple[int, str, int]
"""Queue, id and token of a run."""


def run_key(entry: Entry) -> RunKey:
    """The key of a run in the table."""
    return entry.queue, entry.id, entry.token


# An event loop that did not turn for this long is blocked, in seconds.
LOOP_BLOCKED = 1.0
# A child that has served and lives this long, in seconds, has started well. If it ends later, its
# start is not the cause, so the next child need not wait.
SETTLED_AFTER = 5.0
# A request to cancel a run that has not begun yet is sent again after this time, in seconds.
REPEAT_CANCEL_AFTER = 13.0


class Phase(enum.Enum):
    """Where a child is between its start and its end."""

    STARTING = "starting"
    """It imports the application and registers with its queues."""
    SERVING = "serving"
    """It takes jobs."""
    RETIRING = "retiring"
    """It takes jobs until a new child serves; then it is drained."""
    DRAINING = "draining"
    """It takes no jobs, and exits when its runs have ended."""
    STOPPING = "stopping"
    """It takes no jobs, and exits when its runs have ended or the grace time is over."""
    KILLED = "killed"
    """It was sent SIGKILL."""
    GONE = "gone"
    """The process has ended."""


class ChildSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A child at one moment, as the watchdog sees it.

    Its times are of the child's run clock, which does not pass while the supervisor freezes it.
    """

    now: float
    runs: int
    entries: Sequence[Entry]
    held: int
    """How many jobs it may hold: those that run, wait for a slot, or wait to be reported."""
    last_beat: float
    """When its event loop last turned, or when it was thawed."""
    checked_until: float
    """It has asked each run to end whose deadline is not later than this."""
    on_loop: OnLoop | None = None
    """What was on its event loop; None if no thread has looked since the loop last turned."""
    cancels: Mapping[RunKey, float] = MappingProxyType({})
    """Runs that it was asked to cancel, and when."""
    killed: bool = False
    kill_by: float | None = None
    """When to kill it, because a run does not end; earlier once its other jobs have ended."""
    cannot_report_since: float | None = None
    """Since when it holds jobs and runs none, while its event loop is blocked."""
    unconfirmed: float = 0.0
    """For how many seconds the server has not confirmed the lease of a run; the longest of them."""
    is_frozen: bool = False
    """Whether the supervisor froze it, because the server did not confirm its leases."""
    stopped_since: float | None = None
    """Since when another program has stopped it (SIGSTOP); None if none has, or if that was not
    read."""
    memory: int = 0
    """Bytes of resident memory; 0 if it was not read, because it is not limited."""
    is_settled: bool = False

    @property
    def is_blocked(self) -> bool:
        """Whether a run blocks the event loop."""
        return self.runs > 0 and self.now - self.last_beat > LOOP_BLOCKED


class ChildState:
    """All that a supervisor remembers of a child, except the process itself."""

    def __init__(self, born: float) -> None:
        self.born = born
        self.phase = Phase.STARTING
        self.has_served = False
        self.planned: Planned | None = None
        """The server and the queues of the child, once it has imported the application."""
        self.announced_exit = False
        """The child reported that it exits, so no job is to blame for its end."""
        self.kill_reason: KillReason | None = None
        """Why it was killed; None if it was not."""
        self.timed_out: frozenset[RunKey] = frozenset()
        """The runs for which it was killed, because they did not end. Empty if it was killed for
        another reason, or if it is not known which run is guilty."""
        self.kill_by: float | None = None
        """When the child is killed, because a run does not end. It is killed earlier once its other
        jobs have ended."""
        self.cannot_report_since: float | None = None
        """Since when it has not reported the jobs it holds: it runs none, and its event loop is
        blocked."""
        self.stopped_since: float | None = None
        """Since when another program has stopped it (SIGSTOP)."""
        self.frozen_at: float | None = None
        """When the supervisor froze it, because the server did not confirm its leases. None if it
        is not frozen. `frozen_at` and `thawed_at` are times of the monotonic clock: the child's run
        clock stands still while it is frozen."""
        self.thawed_at = 0.0
        self._cancels: dict[RunKey, float] = {}

    # Questions

    @property
    def is_working(self) -> bool:
        """Whether it takes jobs, or will, and is not to be replaced."""
        return self.phase in (Phase.STARTING, Phase.SERVING)

    @property
    def is_ending(self) -> bool:
        """Whether it was asked to end, or killed."""
        return self.phase in (Phase.DRAINING, Phase.STOPPING, Phase.KILLED, Phase.GONE)

    @property
    def is_killed(self) -> bool:
        """Whether it was killed, or is gone: what it holds is recovered."""
        return self.phase in (Phase.KILLED, Phase.GONE)

    @property
    def takes_jobs(self) -> bool:
        return self.has_served and not self.is_ending

    def is_settled(self, now: float) -> bool:
        """Whether it started well: if it ends now, its start is not the cause."""
        return self.has_served and now - self.born > SETTLED_AFTER

    @property
    def ended_in_order(self) -> bool:
        """Whether it exited by itself, or was killed at the end of a stop."""
        return self.announced_exit or self.kill_reason == "stop"

    @property
    def runs_are_suspect(self) -> bool:
        """Whether one of its runs may have caused its end."""
        if self.announced_exit:
            return False
        if self.kill_reason == "overdue":  # any of them, if it is not known which
            return not self.timed_out
        return self.kill_reason in (None, "memory", "sigstop")

    @property
    def cancels(self) -> Mapping[RunKey, float]:
        """Runs that it was asked to cancel, and when."""
        return MappingProxyType(self._cancels)

    # Events

    def imported(self, planned: Planned) -> None:
        """It has imported the application, and reported its queues."""
        self.planned = planned

    def began_serving(self) -> None:
        """It is registered with its queues, and takes jobs."""
        self.has_served = True
        if self.phase is Phase.STARTING:
            self.phase = Phase.SERVING

    def retire(self) -> None:
        """It is to be drained once a new child serves."""
        if self.is_working:
            self.phase = Phase.RETIRING

    def drain(self) -> None:
        """It was asked to take no more jobs and to let its runs end."""
        self._end(Phase.DRAINING)

    def stop(self) -> None:
        """It was asked to end within the grace time."""
        self._end(Phase.STOPPING)

    def _end(self, phase: Phase) -> None:
        if self.phase not in (Phase.KILLED, Phase.GONE):
            self.phase = phase

    def condemn(self, kill_by: float) -> None:
        """A run does not end: the child is killed at `kill_by`, with whatever still runs."""
        self.kill_by = kill_by

    def kill(self, reason: KillReason, timed_out: frozenset[RunKey] = frozenset()) -> None:
        """It was sent SIGKILL, perhaps for these runs; the first reason counts."""
        self._end(Phase.KILLED)
        if self.kill_reason is None:
            self.kill_reason, self.timed_out = reason, timed_out

    def freeze(self, now: float) -> None:
        """It is being stopped, because the server does not confirm its leases."""
        self.frozen_at = now

    def thaw(self, now: float) -> None:
        """It is about to continue: its leases are confirmed."""
        self.frozen_at, self.thawed_at, self.stopped_since = None, now, None

    def announce_exit(self) -> None:
        """It reported that it exits."""
        self.announced_exit = True

    def exited(self) -> None:
        """The process has ended."""
        self.phase = Phase.GONE

    def cancel_requested(self, run: RunKey, now: float) -> None:
        """It was asked to cancel a run."""
        self._cancels.setdefault(run, now)

    # Observations

    def observed_runs(
        self, runs: int, entries: Sequence[Entry], held: int, last_beat: float, now: float
    ) -> None:
        """Forgets cancelled runs that have ended, and notes since when it cannot report."""
        if runs:
            self.cannot_report_since = None
            self._forget_cancels(entries, now)
            return
        self._cancels.clear()
        if now - last_beat <= LOOP_BLOCKED or not held:
            self.cannot_report_since = None
        elif self.cannot_report_since is None:
            self.cannot_report_since = now

    def _forget_cancels(self, entries: Sequence[Entry], now: float) -> None:
        """Forgets runs that have ended.

        A run that has not begun yet is kept for a while. After that the next heartbeat,
        which names it again, repeats the request to the child.
        """
        if self._cancels:
            running = set(map(run_key, entries))
            for run, at in list(self._cancels.items()):
                if run not in running and now - at > REPEAT_CANCEL_AFTER:
                    del self._cancels[run]

    def observed_stopped(self, stopped: bool, now: float) -> None:
        """Notes whether the kernel says that it is stopped, although the supervisor did not."""
        if not stopped:
            self.stopped_since = None
        elif self.stopped_since is None:
            self.stopped_since = now
