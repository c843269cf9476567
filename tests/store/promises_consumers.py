"""Promises about consumers: clients whose ids begin with `~~`. They hold many leases, as workers
do, and their leases are pull leases.
"""

from queasy.outcomes import Finish, Release
from tests.store.harness import Harness, refused
from tests.store.promise import promise

CONSUMER = "~~c1"


@promise
def a_consumer_takes_batch_after_batch(h: Harness) -> None:
    h.join(CONSUMER)
    h.dispatch_many("a", "b", "c")
    assert [job.id for job in h.take(CONSUMER, request="1", limit=2)] == ["a", "b"]
    assert [job.id for job in h.take(CONSUMER, request="2", limit=2)] == ["c"]
    assert h.take(CONSUMER, request="3") == []


@promise
def a_repeated_request_of_a_consumer_brings_the_same_jobs(h: Harness) -> None:
    h.join(CONSUMER)
    h.dispatch_many("a", "b", "c")
    assert [job.id for job in h.take(CONSUMER, request="1")] == ["a"]
    for _ in range(2):
        assert [job.id for job in h.take(CONSUMER, request="2")] == ["b"]
    late = h.dequeue(CONSUMER, request="1")
    assert (late.state, late.jobs) == ("overtaken", [])


@promise
def a_consumer_outlives_its_leases(h: Harness) -> None:
    h.join(CONSUMER)
    for outcome in (Finish(), Release()):
        h.dispatch()
        assert h.end(h.take_one(CONSUMER), outcome) in ("finished", "released")
        assert h.bump(CONSUMER) == ["ok"]


@promise
def one_bump_keeps_all_leases_of_a_consumer(h: Harness) -> None:
    h.join(CONSUMER, lease=3)
    h.dispatch_many("a", "b")
    jobs = h.take(CONSUMER, lease=3, limit=2)
    for _ in range(5):
        h.later(2)
        assert h.bump(CONSUMER, lease=3) == ["ok"]
    assert [h.end(job, Finish()) for job in jobs] == ["finished", "finished"]


@promise
def a_consumer_that_dies_loses_its_leases_as_an_expiry_and_stays_dead(h: Harness) -> None:
    h.join(CONSUMER, lease=3)
    h.dispatch_many("a", "b")
    jobs = h.take(CONSUMER, lease=3, limit=2)
    h.later_with_calls(4)
    assert h.waiting() == ["a", "b"]
    counts = [(job.expiry_count, job.stall_count) for job in (h.row("due", i) for i in "ab")]
    assert counts == [(1, 0), (1, 0)]
    assert [h.end(job, Finish()) for job in jobs] == ["lost", "lost"]
    assert h.dequeue(CONSUMER).state == "lost"
    assert h.bump(CONSUMER) == ["lost"]


@promise
def a_consumer_that_was_not_registered_takes_nothing(h: Harness) -> None:
    h.dispatch()
    assert h.dequeue(CONSUMER).state == "lost"
    assert h.waiting() == ["a"]


@promise
def an_extension_of_one_lease_does_not_shorten_the_others_of_a_consumer(h: Harness) -> None:
    h.join(CONSUMER)
    h.dispatch_many("a", "b")
    first, second = (h.take_one(CONSUMER) for _ in "ab")
    assert h.call(h.commands.extend(first.id, first.token, 1)) == "ok"
    h.later_with_calls(5)
    assert h.end(second, Finish()) == "finished"
    assert h.end(first, Finish()) == "finished"


@promise
def an_idle_consumer_that_waits_needs_no_bump(h: Harness) -> None:
    h.join(CONSUMER, lease=3)
    assert h.take(CONSUMER, lease=3, waiter=CONSUMER, waits=8) == []
    h.later_with_calls(9)
    assert h.bump(CONSUMER, lease=3) == ["ok"]


@promise
def a_consumer_learns_that_its_queue_was_destroyed(h: Harness) -> None:
    h.join(CONSUMER)
    h.dispatch()
    h.take_one(CONSUMER)
    h.call(h.commands.destroy(force=True))
    assert h.bump(CONSUMER) == ["destroyed"]
    h.join(CONSUMER)


@promise
def an_evicted_consumer_gives_back_its_jobs_and_no_attempt_is_counted(h: Harness) -> None:
    h.join(CONSUMER)
    h.dispatch_many("a", "b")
    h.take(CONSUMER, limit=2)
    assert h.call(h.commands.evict(CONSUMER)) == ("gone", 2)
    assert h.waiting() == ["a", "b"]
    counts = [(job.retry_count, job.stall_count) for job in (h.row("due", i) for i in "ab")]
    assert counts == [(0, 0), (0, 0)]


@promise
def an_id_with_three_tildes_is_refused(h: Harness) -> None:
    with refused("expected a client id"):
        h.join("~~~c")
