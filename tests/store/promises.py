"""Promises about leases, clients and sweeps.

The library keeps each promise (test_promises.py), and a mistake seeded into it breaks the promise
(test_mutants.py)."""

from typing import Any

import pytest

from queasy.job import JobError
from queasy.outcomes import Broken, Cancel, Fail, Finish, Outcome, Release, RetryLater, TimedOut
from tests.store.harness import Harness, endings_of
from tests.store.promise import promise

WHY = JobError(type="Boom", message="it broke")
EVERY_WAY_TO_END: tuple[Outcome, ...] = (
    Finish(), Release(), Cancel(), RetryLater(WHY), TimedOut(), Fail(WHY), Broken(WHY),
)  # fmt: skip


# Fencing


@promise
def finish_with_a_stale_token_changes_nothing(h: Harness) -> None:
    h.dispatch()
    stale = h.take_one(lease=5)
    h.later(6)
    assert h.sweep() == 1
    fresh = h.take_one()
    assert fresh.token > stale.token
    before = h.dump()
    for outcome in EVERY_WAY_TO_END:
        assert h.end(stale, outcome) == "lost"
    assert h.dump() == before
    assert h.end(fresh, Finish()) == "finished"


@promise
def a_stale_token_does_not_extend_a_lease(h: Harness) -> None:
    h.dispatch()
    stale = h.take_one(lease=5)
    h.later(6)
    fresh = h.take_one()
    before = h.dump()
    assert h.call(h.commands.extend("a", stale.token, 60)) == "lost"
    assert h.dump() == before
    assert h.call(h.commands.extend("a", fresh.token, 60)) == "ok"


@promise
def a_lease_ends_once_however_often_its_outcome_is_sent(h: Harness) -> None:
    h.dispatch_many("a", "b")
    jobs = h.take(limit=2)
    endings = endings_of([*jobs, *jobs], Finish())
    assert h.call(h.commands.settle(endings)) == ["finished", "finished", "lost", "lost"]
    for outcome in EVERY_WAY_TO_END:
        assert h.end(jobs[0], outcome) == "lost"
    assert h.left() == set()


@promise
def tokens_only_ever_increase(h: Harness) -> None:
    tokens: list[int] = []
    for _ in range(3):
        h.dispatch_many("a", "b", "c")
        jobs = h.take(limit=3)
        tokens += [job.token for job in jobs]
        h.call(h.commands.settle(endings_of(jobs, Finish())))
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 9


# One at a time


@promise
def a_leased_job_is_not_leased_to_another_client(h: Harness) -> None:
    h.dispatch()
    h.join("c1", "c2")
    assert len(h.take("c1")) == 1
    assert h.take("c2") == []
    assert h.take() == []
    h.later(29)
    assert h.take("c2") == []


@promise
def a_held_dispatch_never_runs_beside_its_id(h: Harness) -> None:
    h.dispatch()
    run = h.take_one()
    assert h.dispatch(payload=b"2") == "blocked"
    assert h.take() == [], "the id is active already"
    h.later(1)
    assert h.take(limit=10) == [], "the id is active already"
    assert h.row("blocked").payload == b"2"
    assert h.end(run, Finish()) == "finished"
    assert h.take_one().payload == b"2"


# Repeated calls


@promise
def a_repeated_dequeue_returns_the_same_batch(h: Harness) -> None:
    h.join("c1")
    h.dispatch_many("a", "b", "c", "d")
    first = h.take("c1", limit=2, request="r1")
    assert [job.id for job in first] == ["a", "b"]
    assert h.take("c1", limit=2, request="r1") == first
    assert [job.id for job in h.take("c1", limit=2, request="r2")] == ["c", "d"]


@promise
def a_repeated_dequeue_omits_jobs_that_have_ended_since(h: Harness) -> None:
    h.join("c1")
    h.dispatch_many("a", "b", "c")
    first = h.take("c1", limit=2, request="r1")
    h.end(first[0], Finish())
    assert [job.id for job in h.take("c1", limit=2, request="r1")] == ["b"]
    assert h.waiting() == ["c"]


@promise
def a_client_made_for_one_lease_gets_the_same_lease_again(h: Harness) -> None:
    h.dispatch_many("a", "b")
    first = h.take("~x")
    assert h.take("~x") == first
    assert h.waiting() == ["b"]


@promise
def a_client_made_for_one_lease_ends_with_it(h: Harness) -> None:
    for outcome in EVERY_WAY_TO_END:
        h.dispatch("a")
        h.end(h.take_one("~x"), outcome)
        assert h.call(h.commands.clients()) == [], outcome
        h.cancel("a")


# Clients


@promise
def a_swept_client_stays_dead(h: Harness) -> None:
    h.join("c1", lease=5)
    h.join("c2", lease=60)
    h.dispatch()
    stalled = h.take_one("c1", lease=5)
    h.later(6)
    assert h.sweep() == 1
    assert h.bump("c1", "c2") == ["lost", "ok"]
    taken = h.dequeue("c1")
    assert (taken.state, taken.jobs) == ("lost", [])
    assert h.call(h.commands.extend("a", stalled.token, 60)) == "lost"
    assert [client.id for client in h.call(h.commands.clients())] == ["c2"]


@promise
def a_client_swept_in_part_is_dead_already(h: Harness) -> None:
    ids = [f"j{n:03}" for n in range(150)]
    h.dispatch_many(*ids)
    h.join("c1", lease=5)
    h.take("c1", limit=150, lease=5)
    h.later(6)
    assert h.sweep() == 100
    assert h.call(h.commands.register("c1", 60)) == "lost"
    assert h.bump("c1") == ["lost"]
    assert h.dequeue("c1").state == "lost"
    while h.sweep():
        pass
    assert h.call(h.commands.clients()) == []
    assert h.waiting() == ids


@promise
def an_unregistered_client_gets_nothing(h: Harness) -> None:
    h.dispatch()
    assert h.dequeue("ghost").state == "lost"
    assert h.bump("ghost") == ["lost"]
    assert h.waiting() == ["a"]


@promise
def a_client_that_dequeues_before_it_is_swept_stays_alive(h: Harness) -> None:
    h.join("c1", lease=5)
    h.dispatch()
    job = h.take_one("c1", lease=5)
    h.later(6)
    assert h.dequeue("c1").state == "ok"
    assert h.row("active").token == job.token
    assert h.end(job, Finish()) == "finished"


@promise
def an_evicted_client_loses_its_jobs_at_once(h: Harness) -> None:
    h.join("c1", "c2")
    h.dispatch_many("a", "b")
    h.take("c1", limit=2)
    assert h.call(h.commands.evict("c1")) == ("gone", 2)
    assert h.call(h.commands.evict("c1")) == ("absent", 0)
    again = h.take("c2", limit=2)
    assert [(job.id, job.stall_count) for job in again] == [("a", 0), ("b", 0)]


@promise
def an_idle_client_stays_alive_until_its_next_poll(h: Harness) -> None:
    h.join("c1", "paused", lease=5)
    assert h.dequeue("c1", lease=5, waiter="c1", waits=8).jobs == []
    h.call(h.commands.configure(paused=True))
    assert h.dequeue("paused", lease=5, waits=8).state == "paused"
    h.call(h.commands.configure(paused=False))
    h.later(8)
    assert h.sweep() == 0
    assert h.dequeue("c1", lease=5).state == "ok"
    h.later_with_calls(4.9)
    h.later(0.2)
    assert h.sweep() == 1, "it was not a waiter, and had not called for a long time"
    assert h.bump("c1", "paused") == ["lost", "lost"]


@promise
def a_sleeping_client_does_not_poll_because_another_sleeps(h: Harness) -> None:
    h.join("c1", "c2", lease=60)
    for _ in range(3):
        for client in ("c1", "c2"):
            assert h.dequeue(client, lease=5, waiter=client, waits=8).next_in == 8
        h.later(7.9)


@promise
def the_death_of_a_client_that_holds_nothing_needs_no_poll(h: Harness) -> None:
    h.join("c1", lease=60)
    h.join(*(f"idle{n}" for n in range(9)), lease=3)
    h.dispatch()
    h.take_one(lease=9)
    assert h.dequeue("c1", waiter="c1", waits=60).next_in == 9
    h.join("idle9", lease=3)
    in_time = h.dequeue("c1", waiter="c1", waits=60).next_in
    assert in_time == 3, "the call does not look at all clients"


@promise
def a_client_that_sleeps_until_a_lease_expires_is_not_woken_early(h: Harness) -> None:
    h.join("c1", "c2", lease=60)
    h.later(0.0004)  # a lease may expire within a millisecond
    h.dispatch()
    h.take_one("c1", lease=5)
    h.later(0.0007)
    assert h.dequeue("c2", waiter="c2", waits=8).next_in == 5
    for _ in range(3):
        h.sweep()
        assert h.call(h.commands.counts()).waiters == 1


@promise
def a_late_heartbeat_does_not_shorten_the_lease_of_an_idle_client(h: Harness) -> None:
    h.join("c1", lease=5)
    assert h.take("c1", lease=5, waiter="c1", waits=30) == []
    assert h.bump("c1", lease=5) == ["ok"], "the heartbeat was sent while it still held a job"
    h.later_with_calls(8)
    h.bump("c1", lease=5)
    h.later_with_calls(8)
    assert h.dequeue("c1", lease=5).state == "ok"


@promise
def a_wake_up_of_a_client_that_died_is_forwarded(h: Harness) -> None:
    h.join("dead", "c1")
    h.dispatch()
    h.redis.zadd(h.keys.base + "waiters", {"c1": h.time * 1000 + 30_000})
    assert h.call(h.commands.evict("dead")) == ("gone", 0)
    assert h.call(h.commands.counts()).waiters == 0, "c1 was woken"


@promise
def a_client_without_room_learns_that_a_job_is_due(h: Harness) -> None:
    h.join("c1")
    assert h.dequeue("c1", limit=0, waiter="c1", waits=30).next_in != 0
    assert h.call(h.commands.counts()).waiters == 1
    h.dispatch()
    for _ in range(2):
        asked = h.dequeue("c1", limit=0, waiter="c1", waits=30)
        assert (asked.jobs, asked.next_in) == ([], 0)
        assert h.call(h.commands.counts()).waiters == 0, "the wake-up would be useless"


@promise
def a_client_that_holds_a_job_is_not_idle(h: Harness) -> None:
    h.join("c1", lease=5)
    h.dispatch()
    h.take_one("c1", lease=5)
    assert h.take("c1", lease=5, waiter="c1", waits=8) == []
    h.later(5)
    assert h.sweep() == 1
    assert h.row("due").stall_count == 1


@promise
def a_single_lease_that_waits_does_not_create_a_client(h: Harness) -> None:
    assert h.take("~x", waiter="w", waits=8) == []
    assert h.call(h.commands.clients()) == []


# Sweeps


@promise
def a_sweep_is_bounded(h: Harness) -> None:
    h.join("c1", lease=5)
    h.dispatch_many(*(f"j{n:03}" for n in range(250)))
    h.take("c1", limit=250, lease=5)
    h.later(6)
    assert [h.sweep() for _ in range(4)] == [100, 100, 50, 0]


@promise
def a_sweep_handles_a_bounded_number_of_clients(h: Harness) -> None:
    clients = [f"c{n:02}" for n in range(25)]
    h.join(*clients, lease=5)
    h.dispatch_many(*clients)
    for client in clients:
        h.take(client, lease=5)
    h.later(6)
    assert [h.sweep() for _ in range(4)] == [10, 10, 5, 0]


@promise
def bump_and_dequeue_also_sweep(h: Harness) -> None:
    h.join("dead", lease=1)
    h.join("c1", lease=60)
    for call in ("bump", "dequeue"):
        h.dispatch(call)
        h.join("dead", lease=1)
        h.take_one("dead", lease=1)
        h.later(1.1)
        _sweep_by(h, call)
        assert h.row("due", call).stall_count == 1
        h.cancel(call)


def _sweep_by(h: Harness, call: Any) -> None:
    if call == "bump":
        assert h.bump("c1", lease=60) == ["ok"]
    else:
        assert h.dequeue("c1", limit=0, lease=60).state == "ok"


@promise
def after_an_outage_leases_are_extended_once(h: Harness) -> None:
    h.join("c1", lease=30)
    h.dispatch()
    job = h.take_one("c1")
    h.later(3600)  # the server was down, so no heartbeat arrived
    assert h.sweep() == 0
    assert h.dequeue("~other").jobs == []
    h.later(9)
    assert h.bump("c1") == ["ok"], "it returned within its grace"
    assert h.row("active").token == job.token


@promise
def a_client_that_does_not_return_after_an_outage_is_swept(h: Harness) -> None:
    h.join("c1", "c2", lease=30)
    h.dispatch()
    h.take_one("c1")
    h.later(3600)
    assert h.bump("c2") == ["ok"]
    h.later_with_calls(11)
    assert h.row("due").stall_count == 1
    assert h.bump("c1") == ["lost"]


@promise
def a_client_that_was_dead_before_an_outage_gets_no_grace(h: Harness) -> None:
    h.join("c1", lease=5)
    h.join("c2", lease=600)
    h.dispatch_many("a", "b")
    h.take_one("c1", lease=5)
    for _ in range(6):
        h.later(1)
        h.dispatch("c")  # also when c1 is dead already, but no call sweeps
    h.later(3600)
    assert h.sweep() == 1
    assert h.row("due", "a").stall_count == 1


@promise
def jobs_of_a_dead_client_return_in_time_without_other_traffic(h: Harness) -> None:
    h.join("c1", "dead", "second", lease=3600)
    for client, lease in (("dead", 13), ("second", 13.01), ("~pulled", 45)):
        h.dispatch(client)
        h.take_one(client, lease=lease)
        start = h.time
    back: dict[str, float] = {}
    while len(back) < 3:
        looked = h.dequeue("c1", lease=3600, waiter="c1", waits=60)
        for job in looked.jobs:
            back[job.id] = h.time - start
            h.end(job, Finish())
        h.later(0 if looked.jobs else min(looked.next_in or 60, 60))
    assert back == pytest.approx({"dead": 13, "second": 13.01, "~pulled": 45}, abs=0.1)


@promise
def a_waiter_is_not_woken_until_shortly_before_a_long_lease_expires(h: Harness) -> None:
    h.join("c1", lease=3600)
    h.dispatch()
    h.take_one(lease=600)
    assert h.dequeue("c1", lease=3600, waiter="c1", waits=3600).next_in == 589


@promise
def after_an_outage_jobs_of_a_dead_client_return_when_the_grace_ends(h: Harness) -> None:
    h.join("c1", lease=7200)
    h.join("dead", lease=15)
    h.dispatch()
    h.take_one("dead", lease=15)
    h.later(12)
    start = h.time
    while not (looked := h.dequeue("c1", lease=3600, waiter="c1", waits=60)).jobs:
        h.later(min(looked.next_in or 60, 60) + 0.002)  # no client polls exactly on time
    assert h.time - start == pytest.approx(10, abs=0.1)
