"""Promises about order, time, budgets, and the records of jobs that ended."""

from queasy.job import JobError
from queasy.options import JobOptions
from queasy.outcomes import Broken, Cancel, Fail, Finish, Release, RetryLater, TimedOut
from queasy.store.records import DispatchItem, Ending
from tests.store.harness import Harness, endings_of
from tests.store.promise import promise

WHY = JobError(type="Boom", message="it broke")


def _give_up(h: Harness, *ids: str) -> None:
    h.dispatch_many(*ids)
    h.call(h.commands.settle(endings_of(h.take(limit=len(ids)), Fail(WHY))))


# Order


@promise
def due_jobs_leave_in_the_order_they_were_accepted(h: Harness) -> None:
    h.dispatch_many("z", "m", "a")
    h.dispatch_many("y", "b")
    h.dispatch("x")
    h.later(1)
    h.dispatch_many("c", "n")
    order = [job.id for _ in range(3) for job in h.take(limit=3)]
    assert order == ["z", "m", "a", "y", "b", "x", "c", "n"]


@promise
def jobs_of_one_call_for_one_instant_keep_their_order(h: Harness) -> None:
    when = f"{(h.time + 5) * 1000:.0f}"
    h.call(h.commands.dispatch([DispatchItem(id_, b"", when) for id_ in ("z", "a", "m")]))
    h.later(6)
    assert [job.id for job in h.take(limit=3)] == ["z", "a", "m"]


@promise
def the_job_that_was_due_first_leaves_first(h: Harness) -> None:
    for id_, after in (("last", 9), ("first", 3), ("second", 6)):
        h.dispatch(id_, after=after)
    h.later(10)
    assert [h.take_one().id for _ in range(3)] == ["first", "second", "last"]


@promise
def the_clock_of_a_client_decides_nothing(h: Harness) -> None:
    h.dispatch("first")
    h.dispatch("slow", at=h.time - 3600)  # "now", on a machine with a clock one hour slow
    h.dispatch("zero", at=0.0)
    h.dispatch("last")
    assert [job.id for job in h.take(limit=9)] == ["first", "slow", "zero", "last"]
    for job in h.records("active"):
        assert h.due_in(job) == 0


@promise
def released_and_stalled_jobs_go_to_the_front(h: Harness) -> None:
    h.join("c1", lease=5)
    h.dispatch_many("b", "a")
    first = h.take(limit=2)
    h.later(1)
    h.dispatch_many("c")
    h.call(h.commands.settle(endings_of(first, Release())))
    assert h.waiting() == ["b", "a", "c"]
    h.take("c1", limit=2, lease=5)
    h.later(6)
    h.dispatch_many("d")
    assert h.sweep() == 2
    assert h.waiting() == ["b", "a", "c", "d"]


@promise
def an_immediate_retry_goes_to_the_back(h: Harness) -> None:
    h.dispatch_many("a", "b")
    run = h.take_one()
    assert h.end(run, RetryLater(WHY, after=0)) == "retried"
    assert h.waiting() == ["b", "a"]
    assert len(h.take(limit=2)) == 2


@promise
def nothing_runs_early(h: Harness) -> None:
    h.dispatch("a", after=10)
    h.dispatch("b", at=h.time + 20)
    taken = h.dequeue()
    assert (taken.jobs, taken.next_in) == ([], 10)
    h.later(9.999)
    assert h.take(limit=9) == []
    h.later(0.002)
    assert [job.id for job in h.take(limit=9)] == ["a"]
    h.later(9.998)
    assert h.take(limit=9) == []
    h.later(0.002)
    run = h.take_one()
    h.end(run, RetryLater(WHY, after=5))
    h.later(4.999)
    assert h.take(limit=9) == []
    h.later(0.002)
    assert [job.id for job in h.take(limit=9)] == ["b"]


@promise
def a_clock_that_steps_back_does_not_stop_the_queue(h: Harness) -> None:
    h.dispatch_many("z")
    h.later(-3600)
    h.dispatch_many("y", "b")
    h.dispatch_many("a")
    jobs = h.take(limit=9)
    assert [job.id for job in jobs] == ["z", "y", "b", "a"]
    h.call(h.commands.settle(endings_of(jobs[:1], RetryLater(WHY, after=0))))
    assert h.take_one().id == "z"


@promise
def a_clock_set_back_to_before_an_outage_stalls_no_job(h: Harness) -> None:
    h.join("c1")
    h.later(60)  # no calls: an outage, or nothing to do
    h.dispatch("a")
    h.later(-3600)
    h.join("c1")
    run = h.take_one("c1")
    assert h.bump("c1") == ["ok"]
    assert h.sweep() == 0, "its lease is by the new clock"
    h.later(9)
    assert h.bump("c1") == ["ok"]
    assert h.end(run, Finish()) == "finished"


@promise
def a_clock_set_back_does_not_prolong_the_grace_after_an_outage(h: Harness) -> None:
    h.join("c1")
    h.later(3600)
    h.dispatch_many("a")
    h.later(-3590)
    h.take_one("~dead", lease=5)
    h.dispatch("later", after=7200)
    h.later(6)
    assert h.sweep() == 1, "it is dead now, not in an hour"


@promise
def a_paused_queue_leases_nothing_and_loses_nothing(h: Harness) -> None:
    h.join("c1")
    h.dispatch_many("a", "b")
    run = h.take_one("c1")
    h.call(h.commands.configure(paused=True))
    paused = h.dequeue("c1")
    assert (paused.state, paused.jobs) == ("paused", [])
    assert h.dispatch("c") == "created"
    assert h.end(run, Finish()) == "finished"
    h.call(h.commands.configure(paused=False))
    assert [job.id for job in h.take("c1", limit=9)] == ["b", "c"]


@promise
def ending_a_batch_and_taking_the_next_is_one_call(h: Harness) -> None:
    h.join("c1")
    h.dispatch_many("a", "b", "c")
    first = h.take("c1", limit=2)
    endings = endings_of(first[:1], Finish()) + endings_of(first[1:], Release())
    taken = h.dequeue("c1", limit=2, endings=endings)
    assert taken.settled == ["finished", "released"]
    assert [job.id for job in taken.jobs] == ["b", "c"]


@promise
def an_overtaken_request_takes_nothing(h: Harness) -> None:
    """No client waits for its reply: its jobs would stay leased for ever."""
    h.join("c1")
    h.dispatch_many("a", "b", "c", "d")
    assert [job.id for job in h.take("c1", request="9")] == ["a"]
    late = h.dequeue("c1", request="8")
    assert (late.state, late.jobs, late.next_in) == ("overtaken", [], 0)
    assert [job.id for job in h.take("c1", request="9")] == ["a"], "a repeat of the last request"
    assert h.dequeue("c1", limit=0, request="11").jobs == []
    assert h.dequeue("c1", request="10").jobs == [], "a request that took nothing counts"
    assert h.dequeue("c1", limit=0, request="11").jobs == []
    assert [job.id for job in h.take("c1", request="12")] == ["b"]
    assert [job.id for job in h.take("c1", request="r1")] == ["c"], "a request that is not a number"
    assert [job.id for job in h.take("c1", request="1")] == ["d"]


@promise
def a_lost_lease_among_many_finishes_is_reported(h: Harness) -> None:
    h.join("c1")
    h.dispatch_many("a", "b", "c", "d")
    a, b, c, d = h.take("c1", limit=4)
    assert h.end(b, Finish()) == "finished"
    assert h.end(d, Release()) == "released"
    taken = h.dequeue("c1", endings=[Ending(job.id, job.token, Finish()) for job in (a, b, c, d)])
    assert taken.settled == ["finished", "lost", "finished", "lost"]
    (d,) = taken.jobs
    late = [Ending("d", d.token, Release()), Ending("a", a.token, Finish())]
    late += [Ending("d", d.token, Finish()), Ending("\udcff", 1, Finish())]
    assert h.dequeue("c1", endings=late).settled == ["released", "lost", "lost", "lost"]


# Budgets


@promise
def a_job_is_retried_exactly_max_retries_times(h: Harness) -> None:
    h.dispatch(options=JobOptions(max_retries=2))
    outcomes: list[str] = []
    for count in range(3):
        run = h.take_one()
        assert run.retry_count == count
        outcomes.append(h.end(run, RetryLater(WHY, after=0)))
    assert outcomes == ["retried", "retried", "failed"]
    assert [(job.retry_count, job.error) for job in h.records()] == [(2, WHY)]


@promise
def a_job_is_given_up_at_its_max_stalls_th_stall(h: Harness) -> None:
    h.dispatch(options=JobOptions(max_stalls=2))
    for client in ("c1", "c2"):
        assert not h.records()
        h.join(client, lease=1)
        h.take_one(client, lease=1)
        h.later(1.1)
        assert h.sweep() == 1
    assert set(h.rows()) == {"failed"}
    record = h.row("failed")
    assert record.stall_count == 2
    assert record.error is not None
    assert record.error.kind == "stall"


@promise
def a_job_is_given_up_at_its_max_timeouts_th_timeout(h: Harness) -> None:
    h.dispatch(options=JobOptions(max_timeouts=2, min_backoff=1))
    assert h.end(h.take_one(), TimedOut()) == "timed_out"
    h.later(2)
    assert h.end(h.take_one(), TimedOut()) == "failed"
    assert h.records()[0].timeout_count == 2


@promise
def the_backoff_doubles_up_to_its_limit(h: Harness) -> None:
    h.dispatch(options=JobOptions(min_backoff=2, max_backoff=10))
    for expected in (2, 4, 8, 10, 10):
        h.end(h.take_one(), RetryLater(WHY))
        assert h.due_in(h.row("scheduled")) == expected
        h.later(expected + 0.001)


@promise
def limits_come_from_the_job_else_the_queue_else_the_defaults(h: Harness) -> None:
    h.dispatch("default")
    h.end(h.take_one(), RetryLater(WHY))
    assert h.due_in(h.row("scheduled", "default")) == 2
    h.call(h.commands.configure(limits=JobOptions(min_backoff=5, max_retries=0)))
    h.dispatch("queue")
    assert h.end(h.take_one(), RetryLater(WHY)) == "failed"
    h.dispatch("job", options=JobOptions(max_retries=1))
    assert h.end(h.take_one(), RetryLater(WHY)) == "retried"
    assert h.due_in(h.row("scheduled", "job")) == 5


@promise
def an_interruption_does_not_count_as_an_attempt(h: Harness) -> None:
    h.dispatch(options=JobOptions(max_retries=0, max_stalls=1, max_timeouts=1))
    for _ in range(5):
        run = h.take_one()
        assert (run.retry_count, run.stall_count, run.timeout_count) == (0, 0, 0)
        assert h.end(run, Release()) == "released"


# Jobs given up


@promise
def the_failed_record_is_bounded_and_keeps_the_newest(h: Harness) -> None:
    h.call(h.commands.configure(failed_limit=3))
    for id_ in ("e", "d", "c"):
        _give_up(h, id_)
        h.later(1)
    _give_up(h, "b", "a")
    assert {job.id for job in h.records()} == {"c", "b", "a"}
    h.later(1)
    _give_up(h, "c")
    _give_up(h, *"vwxyz")
    assert {job.id for job in h.records()} == {"x", "y", "z"}
    h.call(h.commands.configure(failed_limit=1))
    assert [job.id for job in h.records()] == ["z"]


@promise
def the_failed_record_stays_bounded_when_jobs_fail_again(h: Harness) -> None:
    """Bug: it did not when new records replaced those of the same ids."""
    h.call(h.commands.configure(failed_limit=4))
    for ids in ("abcd", "abce"):
        _give_up(h, *ids)
        h.later(1)
    assert {job.id for job in h.records()} == {"a", "b", "c", "e"}


@promise
def the_newest_failures_are_kept_when_the_clock_stands_still(h: Harness) -> None:
    """Bug: of failures at the same instant, others were kept."""
    h.call(h.commands.configure(failed_limit=2))
    h.dispatch_many(*"dcba")
    for run in h.take(limit=4):
        h.end(run, Fail(WHY))
    assert [job.id for job in h.records()] == ["a", "b"]


@promise
def a_job_given_up_dispatches_a_fail_job_with_an_id_derived_from_its_run(h: Harness) -> None:
    h.call(h.commands.configure(fail_handler=True))
    h.dispatch(payload=b"payload", options=JobOptions(max_retries=1))
    h.end(h.take_one(), RetryLater(WHY, after=0))
    run = h.take_one()
    assert h.end(run, RetryLater(WHY)) == "failed"
    [job] = h.call(h.fail_commands.dequeue("~f", lease=30, limit=9)).jobs
    assert (job.id, job.payload) == (f"a:{run.token}", b"payload")
    assert job.origin is not None
    assert (job.origin.id, job.origin.token, job.origin.retry_count) == ("a", run.token, 1)
    assert job.origin.error == WHY
    assert h.end(run, Fail(WHY)) == "lost"
    assert h.call(h.fail_commands.counts()).waiting == 0


@promise
def without_a_fail_handler_the_fail_queue_stays_empty(h: Harness) -> None:
    _give_up(h, "a")
    assert not [label for label in h.dump() if label.startswith("-fail")]


@promise
def a_requeued_job_starts_with_counts_at_zero(h: Harness) -> None:
    h.dispatch(payload=b"x", options=JobOptions(max_retries=0, max_stalls=5))
    dispatched = h.row("due").dispatched_at_epoch
    h.end(h.take_one(), RetryLater(WHY))
    h.later(5)
    requeue = h.commands.requeue("failed", ["a", "a", "b"])
    assert h.call(requeue) == ["requeued", "exists", "absent"]
    job = h.row("due")
    assert (job.payload, job.retry_count, job.error) == (b"x", 0, None)
    assert job.options == JobOptions(max_retries=0, max_stalls=5)
    assert job.dispatched_at_epoch == dispatched
    assert not h.records()


@promise
def a_payload_that_cannot_be_decoded_is_quarantined(h: Harness) -> None:
    h.dispatch(payload=b"\xff\x00")
    assert h.end(h.take_one(), Broken(WHY)) == "broken"
    [record] = h.records("broken")
    assert (record.id, record.payload, record.error) == ("a", b"\xff\x00", WHY)
    assert h.call(h.commands.requeue("broken", ["a"])) == ["requeued"]
    assert h.take_one().payload == b"\xff\x00"


@promise
def a_requeued_broken_job_keeps_the_time_of_its_dispatch(h: Harness) -> None:
    """Bug: it had another time of dispatch."""
    h.dispatch()
    dispatched = h.row("due").dispatched_at_epoch
    h.later(5)
    h.end(h.take_one(), Broken(WHY))
    h.call(h.commands.requeue("broken", ["a"]))
    assert h.row("due").dispatched_at_epoch == dispatched


@promise
def records_can_be_dropped_and_trimmed(h: Harness) -> None:
    for id_ in ("a", "b", "c", "d"):
        _give_up(h, id_)
        h.later(1)
    assert h.call(h.commands.drop("failed", ["b", "b", "nobody"])) == 1
    assert h.call(h.commands.trim("failed", 1)) == 2
    assert [job.id for job in h.records()] == ["d"]
    assert h.call(h.commands.trim("failed", 0)) == 1
    assert h.left() == set()


@promise
def a_finished_job_leaves_nothing(h: Harness) -> None:
    for outcome in (Finish(), Cancel()):
        h.dispatch(options=JobOptions(max_retries=3), at=h.time + 1)
        h.later(2)
        h.end(h.take_one(), RetryLater(WHY, after=0))
        h.dispatch(payload=b"2", flags="1f00")
        h.end(h.take_one(), outcome)
        assert h.left() == set()


@promise
def an_empty_queue_leaves_only_its_settings_and_counters(h: Harness) -> None:
    h.call(h.commands.configure(fail_handler=True))
    h.join("c1", lease=5)
    h.dispatch_many(*"abcdefg")
    runs = h.take("c1", limit=6, request="r1", lease=5)
    h.dispatch("a", b"held")
    h.cancel("b", running=True)
    outcomes = (Finish(), Release(), Fail(WHY), Broken(WHY), RetryLater(WHY))
    for run, outcome in zip(runs, outcomes, strict=False):
        h.end(run, outcome)
    h.later(6)
    assert h.sweep() == 1
    h.cancel(*"abcdefg")
    h.call(h.commands.drop("failed", ["c"]))
    h.call(h.commands.drop("broken", ["d"]))
    h.call(h.fail_commands.cancel([f"c:{runs[2].token}"]))
    assert h.left() == set()
