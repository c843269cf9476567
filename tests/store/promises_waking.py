"""Promises about waking: as many clients as there is work for, and in time."""

from tests.store.harness import Harness
from tests.store.promise import promise
from tests.store.waiters import Waiter


@promise
def a_client_that_takes_a_full_batch_wakes_the_next(h: Harness) -> None:
    """Only one waiter keeps the time for jobs that come due together."""
    first, second, third = (Waiter(h, name, host=1) for name in ("c1", "c2", "c3"))
    h.dispatch("a", after=1)
    assert first.heard() == b"wake", "to keep the time"
    first.sleep()
    h.dispatch("b", after=1)
    h.dispatch("c", after=1)
    h.later(1.001)
    assert h.take(first.name, waiter=first.name)
    assert second.heard() == b"wake"
    assert third.heard() == b""
    assert h.take(second.name, waiter=second.name)
    assert third.heard() == b"wake"


@promise
def a_client_that_takes_the_last_due_job_wakes_no_other(h: Harness) -> None:
    first, second = Waiter(h, "c1", host=1), Waiter(h, "c2", host=1)
    h.dispatch("a", after=1)
    assert first.heard() == b"wake"
    first.sleep()
    h.later(1.001)
    assert h.take(first.name, waiter=first.name)
    assert second.heard() == b""


@promise
def waiters_of_two_hosts_keep_the_time(h: Harness) -> None:
    """One host may vanish, with all its waiters."""
    first, sibling = Waiter(h, "c1", host=1), Waiter(h, "c2", host=1)
    h.later(0.01)
    other = Waiter(h, "c3", host=2)
    h.dispatch("a", after=1)
    assert (first.heard(), sibling.heard(), other.heard()) == (b"wake", b"", b"wake")
    assert first.sleep() == other.sleep() == 1
    h.dispatch("b", after=1)
    assert (first.heard(), sibling.heard(), other.heard()) == (b"", b"", b"")


@promise
def a_lease_is_watched_by_waiters_of_two_hosts(h: Harness) -> None:
    """The waiter that would sweep first may be on the host of the client that died."""
    h.join("c0", lease=60)
    sibling, other = Waiter(h, "c1", host=1), Waiter(h, "c2", host=2)
    h.redis.zadd(h.keys.base + "waiting", {"a": h.time * 1000})
    h.redis.hset(h.keys.base + "data", "a", b"1")
    assert h.take("c0", lease=5)
    assert (sibling.heard(), other.heard()) == (b"wake", b"wake")
    assert sibling.sleep() == other.sleep() == 5


@promise
def a_wake_up_is_checked_by_a_waiter_of_another_host(h: Harness) -> None:
    first, sibling = Waiter(h, "c1", host=1), Waiter(h, "c2", host=1)
    h.later(0.01)
    other = Waiter(h, "c3", host=2)
    h.dispatch("a")
    assert (first.heard(), sibling.heard(), other.heard()) == (b"wake", b"", b"poll:2000")


@promise
def one_check_serves_several_wake_ups(h: Harness) -> None:
    first, other = Waiter(h, "c1", host=1), Waiter(h, "c2", host=2)
    third = Waiter(h, "c3", host=3)
    h.dispatch("a")
    assert (first.heard(), other.heard(), third.heard()) == (b"wake", b"poll:2000", b"")
    assert h.take(first.name, waiter=first.name)
    first.sleep(1)
    h.dispatch("b")
    assert (first.heard(), other.heard(), third.heard()) == (b"wake", b"", b"")


@promise
def a_waiter_that_is_overdue_keeps_no_time(h: Harness) -> None:
    """Its host is most likely gone. If another host is lost as well, a third one must poll."""
    gone = Waiter(h, "c1", host=1)
    h.later(8 + 3.1)
    second, third = Waiter(h, "c2", host=2), Waiter(h, "c3", host=3)
    h.dispatch("a", after=1)
    assert (gone.heard(), second.heard(), third.heard()) == (b"", b"wake", b"wake")


@promise
def a_waiter_that_is_overdue_checks_no_wake_up(h: Harness) -> None:
    gone = Waiter(h, "c1", host=1)
    h.later(8 + 3.1)
    first = Waiter(h, "c2", host=2)
    first.sleep(1)
    h.redis.zadd(h.keys.base + "waiters", {first.name: h.time * 1000 - 20_000})  # the first to wake
    third = Waiter(h, "c3", host=3)
    h.dispatch("a")
    assert (gone.heard(), first.heard(), third.heard()) == (b"", b"wake", b"poll:2000")


@promise
def a_bump_says_when_a_lease_may_expire(h: Harness) -> None:
    """A worker without room sends only heartbeats: it has to return the jobs of a dead host."""
    h.join("c1", lease=60)
    assert h.call(h.commands.bump(["c1"], 60)).next_in is None
    h.dispatch()
    h.take_one(lease=5)
    assert h.call(h.commands.bump(["c1", "ghost"], 60)).next_in == 5
    h.later(5)
    assert h.call(h.commands.bump(["c1"], 60)).next_in is None
    assert h.row("due").stall_count == 1


@promise
def a_bump_says_that_dead_clients_are_left(h: Harness) -> None:
    h.join("dead", lease=5)
    h.join("c1", lease=60)
    h.dispatch_many(*(f"j{n:03}" for n in range(150)))
    h.take("dead", limit=150, lease=5)
    h.later(5)
    assert [h.call(h.commands.bump(["c1"], 60)).next_in for _ in range(2)] == [0, None]
