"""Promises about waking: as many clients as there is work for, and in time."""

from tests.store.harness import Harness
from tests.store.promise import promise
from tests.store.waiters import Waiter


@promise
def a_client_that_takes_a_full_batch_wakes_the_next(h: Harness) -> None:
    """Only one waiter keeps the time for jobs that come due together."""
    first, second, third = (Waiter(h, name) for name in ("c1", "c2", "c3"))
    h.dispatch("a", after=1)
    assert first.heard() == b"wake", "to keep the time"
    first.sleep()
    h.dispatch("b", after=1)
    h.dispatch("c", after=1)
    h.later(1.001)
    assert h.take("c1", waiter="c1")
    assert second.heard() == b"wake"
    assert third.heard() == b""
    assert h.take("c2", waiter="c2")
    assert third.heard() == b"wake"


@promise
def a_client_that_takes_the_last_due_job_wakes_no_other(h: Harness) -> None:
    first, second = Waiter(h, "c1"), Waiter(h, "c2")
    h.dispatch("a", after=1)
    assert first.heard() == b"wake"
    first.sleep()
    h.later(1.001)
    assert h.take("c1", waiter="c1")
    assert second.heard() == b""
