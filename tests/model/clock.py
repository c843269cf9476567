"""Time as the model sees it, in milliseconds."""

from __future__ import annotations

TICK = 2**-11
OUTAGE = 10_000.0
HEARD_EVERY = OUTAGE - 1_000.0  # before a lease runs out


class Clock:
    """The highest time a queue has seen, and the order in which it accepts things.

    A call opens the clock, and writes it if it writes at all. Whoever was alive when nobody was
    heard for long has time to come back: the server, or its clock, was away.
    """

    def __init__(self) -> None:
        self.seen: float | None = None
        self.outage: tuple[float, float] | None = None  # since when, and grace until when

    def open(self, now: float) -> None:
        self.now = now
        self.gap_from, self.grace_until = self.outage or (0.0, 0.0)
        if self.seen is not None and now - self.seen > OUTAGE:
            self.gap_from, self.grace_until = self.seen, now + OUTAGE
        self.time = now if self.seen is None else max(now, self.seen)
        self._fresh = self.time != self.seen  # nothing was accepted or written at this time yet
        self._instants = 0

    def write(self) -> None:
        self.seen = self.time
        self._fresh = False
        if self.grace_until:
            self.outage = (self.gap_from, self.grace_until)

    def heard(self) -> None:
        """Notes that somebody asked, although nothing came of it."""
        if self.seen is not None and self.now - self.seen > OUTAGE / 2:
            self.write()

    def tick(self) -> float:
        """The next place in the order of acceptance."""
        if not self._fresh:
            self.time += TICK
        self._fresh = False
        return self.time

    def schedule(self, when: str) -> float:
        """'' is now, '+5000' in five seconds, '1767225600000' at that time."""
        accepted = self.tick()
        at = self.now + float(when[1:]) if when.startswith("+") else float(when or 0)
        if at <= self.now:
            return accepted
        self._instants += 1
        return at + (self._instants - 1) * TICK

    def dead_line(self) -> float:
        """Who has not been heard since is dead."""
        return self.gap_from if self.in_grace() else self.now

    def in_grace(self) -> bool:
        """Just after an outage; not when the clock was set back to before its end."""
        return self.grace_until - OUTAGE <= self.now < self.grace_until

    def place(self, old: float, new: float) -> float:
        """A job that is due and would still be due keeps its place."""
        return old if old <= self.time and new <= self.time else new
