"""Time as the model sees it, in milliseconds."""

from __future__ import annotations

TICK = 2**-11
OUTAGE = 10_000.0
SILENCE = 2_000.0
RECONNECT = 2_500.0
FLAPPING = 60_000.0
SHORT_FLAPPING = 15_000.0
RECORD_EVERY = 500.0
SET_BACK = 100.0
CALL_EVERY = OUTAGE - 1_000.0  # while leases run: a longer silence would look like an outage


class Clock:
    """The highest time a queue has seen, the last time it heard, and the order in which it accepts
    things. The two times differ after the server's clock was set back.

    Every call opens the clock; a call that writes also writes the clock. If the queue received no
    call for `OUTAGE`, the server or its clock was away: clients that were alive before have a grace
    period to call again. A silence that begins before clients had time to call after another counts
    as one with it, from the start of the first, for up to `FLAPPING`; if it is shorter than
    `OUTAGE`, for up to `SHORT_FLAPPING`.
    """

    def __init__(self) -> None:
        self.seen: float | None = None
        self.heard: float | None = None  # if the clock was set back
        self.outage: tuple[float, float, float] | None = None
        """Its start, the end of the grace, and when the server came back first."""

    def open(self, now: float) -> None:
        self.now = now
        self.gap_from, self.grace_until, self.back_at = self.outage or (0.0, 0.0, 0.0)
        last = self.last_call()
        if last is not None and now - last > SILENCE:
            self._note_silence(last)
        self.time = now if self.seen is None else max(now, self.seen)
        self._fresh = self.time != self.seen  # nothing was accepted or written at this time yet
        self._instants = 0

    def _note_silence(self, last: float) -> None:
        is_outage = self.now - last > OUTAGE
        bound = FLAPPING if is_outage else SHORT_FLAPPING
        continues = self.continues_silence(last) and last - self.back_at < bound
        if is_outage:
            until = self.now + OUTAGE
        elif continues:
            until = max(self.grace_until, self.now + RECONNECT)
        elif self.now < self.grace_until:
            return
        else:
            until = self.now
        if not continues:
            self.gap_from, self.back_at = last, self.now
        self.gap_from = min(self.gap_from, last)
        self.grace_until = until

    def continues_silence(self, last: float) -> bool:
        """Whether clients had no time to call before a silence that begins now."""
        return self.grace_until - OUTAGE <= last < self.grace_until + RECONNECT

    def last_call(self) -> float | None:
        """When the queue was last called, by the clock of that time."""
        return self.seen if self.heard is None else self.heard

    def write(self) -> None:
        self.seen = self.time
        self.heard = self.now if self.time - self.now > SET_BACK else None
        self._fresh = False
        if self.grace_until:
            self.outage = (self.gap_from, self.grace_until, self.back_at)

    def record_call(self) -> None:
        """Record the time of a call that changes nothing else, if the last record is old."""
        last = self.last_call()
        if last is not None and abs(self.now - last) > RECORD_EVERY:
            self.write()

    def tick(self) -> float:
        """The next place in the order of acceptance."""
        if not self._fresh:
            self.time += TICK
        self._fresh = False
        return self.time

    def schedule(self, when: str) -> float:
        """The run_at for '' (now), '+5000' (in five seconds) or '1767225600000' (at that time)."""
        accepted = self.tick()
        at = self.now + float(when[1:]) if when.startswith("+") else float(when or 0)
        if at <= self.now:
            return accepted
        self._instants += 1
        return at + (self._instants - 1) * TICK

    def expired_before(self) -> float:
        """A client with an expiry up to this time is dead."""
        return self.gap_from if self.in_grace() else self.now

    def in_grace(self) -> bool:
        """Whether an outage has just ended. False if the clock was set back to before its end."""
        return self.grace_until - OUTAGE <= self.now < self.grace_until

    def place(self, old: float, new: float) -> float:
        """The new run_at. A job that is due, and would still be due, keeps its place."""
        return old if old <= self.time and new <= self.time else new
