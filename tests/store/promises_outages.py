"""Outages that follow one another, and outages after the clock was set back."""

from queasy.outcomes import Finish
from tests.store.harness import Harness
from tests.store.promise import promise


@promise
def a_second_outage_within_the_grace_of_the_first_keeps_the_grace(h: Harness) -> None:
    """Bug: the second outage began at the only call between the two, when the lease had expired by
    the clock. So the client got no grace, and its job ran twice at once."""
    h.join("c1", "dead", lease=10)
    h.dispatch_many("a", "b")
    job = h.take_one("c1", lease=10)
    h.later(15)
    assert h.sweep() == 0, "the first outage"
    for _ in range(3):
        h.later(11)
        assert h.sweep() == 0, "and the next, before the client could call"
    assert h.bump("c1") == ["ok"]
    assert h.end(job, Finish()) == "finished"
    assert h.cancel("b") == ["cancelled"]


@promise
def silences_shorter_than_an_outage_that_follow_one_another_count_as_one(h: Harness) -> None:
    """Bug: the server was away for nine seconds, back for a moment, and away for nine more. A
    producer called in between, and the supervisor did not. Neither silence counted as an outage, so
    its lease ended while the server was away, and hours of work were lost."""
    h.join("c1", lease=13)
    h.dispatch("a")
    job = h.take_one("c1", lease=13)
    for _ in range(3):
        h.later(9)
        assert h.dispatch("b") != "refused", "a producer calls before the supervisor does"
        assert h.sweep() == 0
    h.later(2)
    assert h.bump("c1", lease=13) == ["ok"], "two seconds are enough for a supervisor"
    assert h.end(job, Finish()) == "finished"
    assert h.cancel("b") == ["cancelled"]


@promise
def a_silence_shorter_than_an_outage_does_not_use_up_the_grace_of_an_outage(h: Harness) -> None:
    """Bug: the grace period ran on while the server was away again."""
    h.join("c1", lease=13)
    h.dispatch("a")
    job = h.take_one("c1", lease=13)
    h.later(15)
    assert h.sweep() == 0, "an outage"
    for _ in range(2):
        h.later(9)
        assert h.sweep() == 0, "the server was away for most of the grace period"
    h.later(2)
    assert h.bump("c1", lease=13) == ["ok"]
    assert h.end(job, Finish()) == "finished"


@promise
def silences_that_follow_one_another_prolong_no_lease_without_end(h: Harness) -> None:
    h.join("dead", lease=13)
    h.dispatch()
    h.take_one("dead", lease=13)
    for _ in range(6):
        h.later(5)
        h.sweep()
    assert h.row("due").stall_count == 1, "each call looks like the first after a silence"


@promise
def a_client_that_dies_soon_after_an_outage_is_swept_in_time(h: Harness) -> None:
    """Waiters poll often enough that the silence does not continue the outage."""
    for quiet in (3, 60):
        h.join("c1", "dead", lease=3600)
        h.dispatch("a")
        h.later(quiet)
        h.take_one("dead", lease=13)
        start, polls = h.time, 0
        while not (looked := h.dequeue("c1", lease=3600, waiter="c1", waits=60)).jobs:
            h.later(min(looked.next_in or 60, 60) + 0.1)  # no client polls exactly on time
            polls += 1
        assert h.time - start < 13.5
        assert polls <= 5
        h.end(looked.jobs[0], Finish())


@promise
def calls_once_an_hour_return_the_jobs_of_a_dead_client(h: Harness) -> None:
    h.join("dead", lease=10)
    h.dispatch()
    h.take_one("dead", lease=10)
    for _ in range(3):
        h.later(3600)
        h.sweep()
    assert h.row("due").stall_count == 1, "each call looks like the first after an outage"


@promise
def an_outage_after_the_clock_was_set_back_is_noticed(h: Harness) -> None:
    """Bug: until the clock reached the highest time seen, no silence counted as an outage."""
    h.dispatch()
    h.later(-3600)
    h.join("c1", lease=10)
    job = h.take_one("c1", lease=10)
    h.later(60)
    assert h.sweep() == 0, "the server was away for a minute"
    h.later(9)
    assert h.bump("c1") == ["ok"]
    assert h.end(job, Finish()) == "finished"


@promise
def a_clock_that_caught_up_is_the_last_time_heard(h: Harness) -> None:
    h.dispatch("later", after=7200)
    h.later(-5)
    h.join("c1", lease=8)
    h.dispatch()
    for _ in range(16):
        h.later(1)
        h.dispatch("other")
    h.take_one("c1", lease=8)
    h.later(8)
    assert h.sweep() == 1, "the queue was called eight seconds ago: this was not an outage"
