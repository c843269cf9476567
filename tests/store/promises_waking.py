"""Promises about waking: as many clients as there is work for, and in time."""

from collections.abc import Sequence

from queasy.store.records import DispatchItem
from tests.store.harness import Harness
from tests.store.promise import promise
from tests.store.waiters import Waiter

REST = 600
"""Seconds that a client rests at most."""


def waiters(h: Harness, hosts: Sequence[int]) -> list[Waiter]:
    """Waiters of these hosts, which began to wait one after the other."""
    found: list[Waiter] = []
    for number, host in enumerate(hosts):
        found.append(Waiter(h, f"c{number}", host=host))
        h.later(0.01)
    return found


def waiters_of_groups(h: Harness, groups: Sequence[int]) -> list[Waiter]:
    """Waiters of these groups on one host, which began to wait one after the other."""
    found: list[Waiter] = []
    for number, group in enumerate(groups):
        found.append(Waiter(h, f"c{number}", host=1, group=group))
        h.later(0.01)
    return found


def heard(waiters: Sequence[Waiter]) -> list[bytes]:
    """The next message of each waiter."""
    return [waiter.heard() for waiter in waiters]


@promise
def waiters_poll_early_if_the_call_that_asks_them_dispatches_many_jobs(h: Harness) -> None:
    """The message leaves the server when the call has ended."""
    crowd = waiters(h, [1, 1, 1])
    ids = [f"job-{n}" for n in range(500)]
    h.call(h.commands.dispatch([DispatchItem(id_, b"1", "+1000") for id_ in ids]))
    assert heard(crowd) == [b"poll:990", b"poll:990", b""]


@promise
def a_client_that_takes_a_full_batch_wakes_the_next(h: Harness) -> None:
    """Only two waiters keep the time for jobs that come due together."""
    first, second, third, fourth = waiters_of_groups(h, [1, 1, 1, 1])
    for id_ in "abcd":
        h.dispatch(id_, after=1)
    assert heard([first, second, third, fourth]) == [b"poll:1000", b"poll:1000", b"", b""]
    h.later(1.002)
    assert h.take(first.name, waiter=first.name)
    assert heard([second, third]) == [b"wake", b""]
    assert h.take(second.name, waiter=second.name)
    assert heard([third, fourth]) == [b"wake", b""]
    assert h.take(third.name, waiter=third.name)
    assert fourth.heard() == b"wake"


@promise
def a_client_that_takes_the_last_due_job_wakes_no_other(h: Harness) -> None:
    first, second, third = waiters(h, [1, 1, 1])
    h.dispatch("a", after=1)
    assert heard([first, second, third]) == [b"poll:1000", b"poll:1000", b""]
    h.later(1.002)
    assert h.take(first.name, waiter=first.name)
    assert heard([second, third]) == [b"", b""]


@promise
def a_lone_waiter_keeps_the_time_beside_a_crowd_of_another_host(h: Harness) -> None:
    """The crowd polls sooner: the waiter of the other host is not among the first."""
    waiters(h, [1] * 25)
    lone = Waiter(h, "lone", host=2)
    lone.sleep(60)
    h.dispatch("a", after=1)
    assert lone.heard() == b"poll:1000"


@promise
def waiters_of_two_hosts_keep_the_time(h: Harness) -> None:
    """One host may vanish, with all its waiters."""
    crowd = waiters(h, [1, 1, 2, 2])
    h.dispatch("a", after=1)
    assert heard(crowd) == [b"poll:1000", b"", b"poll:1000", b""]
    h.dispatch("b", after=1.5)
    h.dispatch("c", after=1)
    assert heard(crowd) == [b""] * 4, "they poll in time for these, too"
    h.dispatch("d", after=0.5)
    assert heard(crowd) == [b"poll:500", b"", b"poll:500", b""]


@promise
def two_waiters_keep_the_time_if_there_is_one_host(h: Harness) -> None:
    """One of them may end without a word."""
    crowd = waiters(h, [1, 1, 1])
    h.dispatch("a", after=1)
    assert heard(crowd) == [b"poll:1000", b"poll:1000", b""]


@promise
def waiters_of_two_groups_keep_the_time_if_there_is_one_host(h: Harness) -> None:
    """A supervisor may die with all its workers."""
    crowd = waiters_of_groups(h, [1, 1, 1, 2, 2])
    h.dispatch("a", after=1)
    assert heard(crowd) == [b"poll:1000", b"", b"", b"poll:1000", b""]
    h.dispatch("b", after=1.5)
    assert heard(crowd) == [b""] * 5, "they poll in time for this one, too"


@promise
def a_waiter_of_another_host_keeps_the_time_before_one_of_another_group(h: Harness) -> None:
    first, second = waiters_of_groups(h, [1, 2])
    third = Waiter(h, "c2", host=2, group=3)
    h.dispatch("a", after=1)
    assert heard([first, second, third]) == [b"poll:1000", b"", b"poll:1000"]


@promise
def two_waiters_of_one_group_keep_the_time_if_there_is_no_other(h: Harness) -> None:
    """One of them may end without a word."""
    crowd = waiters_of_groups(h, [1, 1, 1])
    h.dispatch("a", after=1)
    assert heard(crowd) == [b"poll:1000", b"poll:1000", b""]


@promise
def a_lone_waiter_keeps_the_time_beside_a_crowd_of_another_group(h: Harness) -> None:
    """The crowd polls sooner: the waiter of the other group is not among the first."""
    waiters_of_groups(h, [1] * 25)
    lone = Waiter(h, "lone", host=1, group=2)
    lone.sleep(60)
    h.dispatch("a", after=1)
    assert lone.heard() == b"poll:1000"


@promise
def a_waiter_that_is_gone_does_not_keep_the_time(h: Harness) -> None:
    crowd = waiters(h, [1, 2, 3])
    crowd[0].end()
    h.dispatch("a", after=1)
    assert heard(crowd[1:]) == [b"poll:1000", b"poll:1000"]


@promise
def a_waiter_that_missed_its_poll_does_not_keep_the_time(h: Harness) -> None:
    """Its host may be frozen, with its connections open."""
    crowd = waiters(h, [1, 2, 3])
    h.dispatch("a", after=1)
    assert heard(crowd) == [b"poll:1000", b"poll:1000", b""]
    h.later(1.002)
    assert h.take(crowd[1].name, waiter=crowd[1].name)
    crowd[1].sleep()
    h.later(3)
    h.dispatch("b", after=1)
    assert heard(crowd) == [b"", b"poll:1000", b"poll:1000"]


@promise
def a_client_that_need_not_keep_the_time_rests(h: Harness) -> None:
    """The more clients wait, the less often each of them polls."""
    h.dispatch("a", after=1)
    crowd = [Waiter(h, f"c{number}", host=number % 2) for number in range(8)]
    assert [waiter.asked for waiter in crowd] == [1, 1, 8, 8, 8, 10, 12, 14]
    assert crowd[0].sleep() == 1, "it still keeps the time"
    assert crowd[7].sleep() == 16


@promise
def a_client_rests_for_ten_minutes_at_most(h: Harness) -> None:
    crowd = [Waiter(h, f"c{number}", host=1) for number in range(60)]
    assert crowd[2].sleep(60) == REST


@promise
def a_client_of_another_host_keeps_the_time(h: Harness) -> None:
    """Two waiters of one host do not spare the first waiter of another."""
    h.dispatch("a", after=1)
    crowd = waiters(h, [1, 1, 1, 2, 2])
    asked = [round(waiter.asked) for waiter in crowd]
    assert asked == [1, 1, 8, 1, 8], "a third of host 1 is not needed, nor a second of host 2"


@promise
def a_client_of_another_group_keeps_the_time(h: Harness) -> None:
    """Two waiters of one supervisor do not spare the first waiter of another."""
    h.dispatch("a", after=1)
    crowd = waiters_of_groups(h, [1, 1, 1, 2, 2])
    asked = [round(waiter.asked) for waiter in crowd]
    assert asked == [1, 1, 8, 1, 8], "a third of group 1 is not needed, nor a second of group 2"


@promise
def waiters_without_a_subscription_spare_no_other(h: Harness) -> None:
    """They receive no message that would have them poll earlier."""
    for number in (1, 2):
        Waiter(h, f"c{number}", host=number).end()
    h.dispatch("a", after=1)
    for client in ("c3", "c4"):
        h.join(client)
        h.dequeue(client, waiter=client, waits=8)
    assert Waiter(h, "c5", host=1).asked == 1


@promise
def a_client_that_rests_stays_alive_until_after_its_next_poll(h: Harness) -> None:
    crowd = [Waiter(h, f"c{number}", host=1) for number in range(20)]
    rest = crowd[19].sleep(8)
    assert rest == 40
    for waiter in crowd[:19]:
        h.call(h.commands.evict(waiter.name))
    for _ in range(10):
        h.later((rest + 30 - 0.1) / 10)  # less than what counts as an outage
        h.sweep()
    assert h.bump(crowd[19].name) == ["ok"]


@promise
def a_pull_client_never_rests_longer_than_it_asks(h: Harness) -> None:
    crowd = waiters(h, range(12))
    for waiter in crowd[:2]:
        waiter.sleep(3)
    assert h.dequeue("~pull", waiter="pull", waits=3).next_in == 3


@promise
def a_lease_is_watched_by_waiters_of_two_hosts(h: Harness) -> None:
    """The waiter that would sweep first may be on the host of the client that died."""
    h.join("c0", lease=60)
    crowd = waiters(h, [1, 1, 2])
    h.redis.zadd(h.keys.base + "waiting", {"a": h.time * 1000})
    h.redis.hset(h.keys.base + "data", "a", b"1")
    assert h.take("c0", lease=5)
    assert heard(crowd) == [b"poll:5000", b"", b"poll:5000"]


@promise
def a_lease_is_watched_by_waiters_of_two_groups(h: Harness) -> None:
    """Bug: both were often of the supervisor that died. With 10 queues and three processes each,
    the other supervisor on the host polled after 31 s, and that silence counted as an outage.
    """
    holder, *crowd = waiters_of_groups(h, [1, 1, 1, 2])
    h.dispatch("a")
    assert heard([holder, *crowd]) == [b"wake", b"", b"", b"poll:2000"]
    assert h.take(holder.name, lease=13)
    h.later(2)
    crowd[2].sleep(30)  # it found nothing, and asks when to poll next
    h.later(2)
    assert h.bump(holder.name, lease=13) == ["ok"]
    heard(crowd)
    for waiter in crowd[:2]:
        waiter.end()  # the first supervisor dies
    h.later(9)
    waited = 0.0
    while not (taken := h.dequeue(crowd[2].name, waiter=crowd[2].name, waits=30)).jobs:
        assert taken.next_in
        h.later(taken.next_in)
        waited += taken.next_in
    assert waited == 4, "it polls until the lease ends"


@promise
def a_wake_up_is_checked_by_a_waiter_of_another_group(h: Harness) -> None:
    crowd = waiters_of_groups(h, [1, 1, 2])
    h.dispatch("a")
    assert heard(crowd) == [b"wake", b"", b"poll:2000"]


@promise
def a_wake_up_is_checked_by_a_waiter_of_another_host(h: Harness) -> None:
    crowd = waiters(h, [1, 1, 2])
    h.dispatch("a")
    assert heard(crowd) == [b"wake", b"", b"poll:2000"]


@promise
def one_check_serves_several_wake_ups(h: Harness) -> None:
    first, other, third = (Waiter(h, f"c{number}", host=number) for number in (1, 2, 3))
    h.dispatch("a")
    assert heard([first, other, third]) == [b"wake", b"poll:2000", b""]
    assert h.take(first.name, waiter=first.name)
    first.sleep(1)
    h.dispatch("b")
    assert heard([first, other, third]) == [b"wake", b"", b""]


@promise
def a_check_is_not_left_to_a_waiter_that_missed_its_poll(h: Harness) -> None:
    late, too_late, other = waiters(h, [1, 2, 3])
    h.later(5)
    other.sleep()
    h.later(5.5)  # the two should have polled 2.5 seconds ago
    h.dispatch("a")
    assert heard([late, too_late, other]) == [b"wake", b"", b"poll:2000"]


@promise
def a_dispatch_into_a_paused_queue_wakes_no_client(h: Harness) -> None:
    crowd = waiters(h, [1, 2])
    h.call(h.commands.configure(paused=True))
    h.dispatch("a")
    h.dispatch("b", after=1)
    h.dispatch_many("c", "d")
    assert heard(crowd) == [b"", b""]


@promise
def a_resume_wakes_a_client_for_each_due_job(h: Harness) -> None:
    crowd = waiters_of_groups(h, [1, 1, 1, 1])
    h.call(h.commands.configure(paused=True))
    h.dispatch("a")
    h.dispatch("b")
    h.dispatch("c", after=60)
    h.call(h.commands.configure(paused=False))
    assert heard(crowd) == [b"wake", b"wake", b"", b""]


@promise
def after_a_resume_two_clients_keep_the_time(h: Harness) -> None:
    crowd = waiters(h, [1, 2, 1])
    h.call(h.commands.configure(paused=True))
    h.dispatch("a", after=1)
    assert heard(crowd) == [b"", b"", b""]
    h.call(h.commands.configure(paused=False))
    assert heard(crowd) == [b"poll:1000", b"poll:1000", b""]


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
    assert h.row("due").expiry_count == 1


@promise
def a_bump_says_that_dead_clients_are_left(h: Harness) -> None:
    h.join("dead", lease=5)
    h.join("c1", lease=60)
    h.dispatch_many(*(f"j{n:03}" for n in range(150)))
    h.take("dead", limit=150, lease=5)
    h.later(5)
    assert [h.call(h.commands.bump(["c1"], 60)).next_in for _ in range(2)] == [0, None]
