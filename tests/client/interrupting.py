"""A program that is interrupted by signals while it leases jobs: see test_interrupts.py.

It prints how many calls were interrupted, and how many returned a lease.
"""

import os
import random
import signal
import sys
import time
from typing import Any

from queasy import SyncClient

AGAIN_AFTER = 5e-5  # seconds


class Interruption(BaseException):
    """Raised by a signal handler."""


class Alarm:
    """Interrupts the main thread: once, or twice in a row."""

    def __init__(self, error: type[BaseException], times: int) -> None:
        self._error = error
        self._times = times
        self.left = 0
        """How often it may still raise. Only this assignment ends it: a call could be hit."""
        signal.signal(signal.SIGALRM, self._ring)

    def _ring(self, *_: Any) -> None:
        if self.left:
            self.left -= 1
            raise self._error

    def set(self, seconds: float) -> None:
        self.left = self._times
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_AFTER if self._times > 1 else 0)


def main() -> None:
    how, rounds, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    error = KeyboardInterrupt if how == "keyboard" else Interruption
    alarm = Alarm(error, 2 if how == "twice" else 1)
    chance = random.Random(seed)
    client = SyncClient(os.environ["TEST_URL"], prefix=os.environ["TEST_PREFIX"])
    queue = client.queue("q")
    seconds = _seconds_of_a_lease(queue)
    interrupted = leased = 0
    for _ in range(rounds):
        assert queue.counts().waiters == 0  # over a connection that the lease will use again
        lease = None
        try:
            alarm.set(chance.uniform(1e-6, 1.5 * seconds))
            lease = queue.lease(600, timeout=0)
            alarm.left = 0
        except error:
            alarm.left = 0
            interrupted += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        if lease is not None:
            leased += 1
            lease.release()
    give_up_at = time.monotonic() + 10
    while queue.counts().active and time.monotonic() < give_up_at:
        if (lease := queue.lease(600, timeout=0)) is not None:  # repeats undos that are pending
            lease.release()
    print(interrupted, leased)
    client.close()


def _seconds_of_a_lease(queue: Any) -> float:
    times: list[float] = []
    for _ in range(50):
        began = time.monotonic()
        lease = queue.lease(600, timeout=0)
        times.append(time.monotonic() - began)
        lease.release()
    return sorted(times)[len(times) // 2]


if __name__ == "__main__":
    main()
