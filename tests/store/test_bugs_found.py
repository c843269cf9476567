"""Every mistake that was found in the library, kept as the smallest thing that shows it."""

from queasy.job import JobError
from queasy.outcomes import Broken, Fail, Finish
from tests.store.harness import Harness, endings_of

WHY = JobError(message="it broke")


def test_an_idle_poller_does_not_keep_the_dead_alive_for_ever(h: Harness) -> None:
    """A poll that finds nothing wrote nothing: after 10 s each looked like the end of an outage."""
    h.join("dead", lease=30)
    h.dispatch()
    h.take_one("dead", lease=30)
    for _ in range(20):
        h.later(5)
        h.dequeue(limit=0)
    assert set(h.rows()) == {"due"}


def test_sweeps_alone_do_not_keep_the_dead_alive_for_ever(h: Harness) -> None:
    h.join("dead", lease=30)
    h.dispatch()
    h.take_one("dead", lease=30)
    for _ in range(20):
        h.later(20)
        h.sweep()
    assert set(h.rows()) == {"due"}


def test_the_failed_record_stays_bounded_when_old_records_are_replaced(h: Harness) -> None:
    h.call(h.commands.configure(failed_limit=4))
    for ids in ("abcd", "abce"):
        h.dispatch_many(*ids)
        h.call(h.commands.settle(endings_of(h.take(limit=4), Fail(WHY))))
        h.later(1)
    assert {job.id for job in h.records()} == {"a", "b", "c", "e"}


def test_the_newest_failures_are_kept_when_the_clock_stands_still(h: Harness) -> None:
    h.call(h.commands.configure(failed_limit=2))
    h.dispatch_many(*"dcba")
    for run in h.take(limit=4):
        h.end(run, Fail(WHY))
    assert [job.id for job in h.records()] == ["a", "b"]


def test_a_sweep_that_answers_0_has_left_nothing(h: Harness) -> None:
    h.join(*(f"idle{n}" for n in range(12)), lease=4)
    h.join("dead", lease=5)
    h.dispatch()
    h.take_one("dead", lease=5)
    h.later(6)
    while h.sweep():
        pass
    assert set(h.rows()) == {"due"}


def test_nothing_is_kept_of_a_one_lease_client_that_was_swept_in_part(h: Harness) -> None:
    h.dispatch_many(*(f"j{n:03}" for n in range(150)))
    jobs = h.take("~x", limit=150, lease=5)
    h.later(6)
    assert h.sweep() == 100
    h.call(h.commands.settle(endings_of(jobs[100:], Finish())))
    stray = h.dump().get(":requests")
    h.redis.delete(h.keys.base + "requests")  # or the audit after the test would fail as well
    assert stray is None


def test_a_broken_job_keeps_the_time_it_was_dispatched_at(h: Harness) -> None:
    h.dispatch()
    dispatched = h.row("due").dispatched_at_epoch
    h.later(5)
    h.end(h.take_one(), Broken(WHY))
    h.call(h.commands.requeue("broken", ["a"]))
    assert h.row("due").dispatched_at_epoch == dispatched
