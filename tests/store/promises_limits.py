"""Promises about the limits of a job, about pull leases that run out, and about what is left of a
job that was given up."""

from collections.abc import Callable

import msgspec

from queasy.job import Job, JobError
from queasy.options import JobOptions
from queasy.outcomes import Cancel, Fail, Finish, Outcome, Release, RetryLater, TimedOut
from tests.store.harness import Harness, endings_of, refused
from tests.store.promise import promise

WHY = JobError(type="Boom", message="it broke")
NONE = JobOptions(
    max_retries="unlimited", max_stalls="unlimited", max_timeouts="unlimited",
    max_expiries="unlimited", min_backoff=0,
)  # fmt: skip


def _expire(h: Harness, client: str = "") -> Job:
    """Takes a job and lets its lease run out."""
    job = h.take_one(client, lease=1)
    h.later(1.1)
    assert h.sweep() == 1
    return job


# Pull leases that run out


@promise
def a_pull_lease_that_runs_out_counts_as_an_expiry_and_not_as_a_stall(h: Harness) -> None:
    h.dispatch()
    for expiries in range(1, 8):
        _expire(h)
        job = h.row("due")
        assert (job.expiry_count, job.stall_count) == (expiries, 0)
        assert job.error is not None
        assert (job.error.kind, job.error.type) == ("expiry", "Expired")
        assert f"(expiry {expiries})" in job.error.message
    h.join("c1", lease=1)
    _expire(h, "c1")
    assert (h.row("due").expiry_count, h.row("due").stall_count) == (7, 1)
    totals = {line.kind: line.count for line in h.call(h.commands.stats()) if line.minute is None}
    assert (totals["expired"], totals["stalled"]) == (7, 1)


@promise
def a_pull_lease_that_runs_out_makes_no_suspect(h: Harness) -> None:
    h.dispatch()
    for _ in range(3):
        _expire(h)
        assert not h.row("due").suspect


@promise
def a_job_whose_pull_lease_ran_out_returns_to_the_front(h: Harness) -> None:
    h.dispatch_many("a", "b")
    assert _expire(h).id == "a"
    assert h.waiting() == ["a", "b"]


@promise
def a_job_is_given_up_at_its_max_expiries_th_expiry(h: Harness) -> None:
    h.dispatch(options=JobOptions(max_expiries=2))
    for _ in range(2):
        assert not h.records()
        _expire(h)
    record = h.row("failed")
    assert (record.expiry_count, record.stall_count) == (2, 0)
    assert record.error is not None
    assert record.error.kind == "expiry"


@promise
def a_cancelled_run_does_not_wait_again_when_its_pull_lease_runs_out(h: Harness) -> None:
    h.dispatch()
    h.take_one(lease=1)
    h.cancel("a", running=True)
    h.later(1.1)
    h.sweep()
    assert h.left() == set()


@promise
def a_client_cannot_report_a_stall_or_an_expiry(h: Harness) -> None:
    h.dispatch()
    job = h.take_one()
    command = h.commands.settle(endings_of([job], Release()))
    for verb in ("stall", "expiry"):
        wrong = msgspec.structs.replace(command, args=(verb, *command.args[1:]))
        with refused("expected a verb that ends a lease"):
            h.call(wrong)
    assert h.end(job, Finish()) == "finished"


@promise
def a_dispatch_that_resets_counts_resets_expiries(h: Harness) -> None:
    h.dispatch()
    _expire(h)
    assert h.dispatch(payload=b"2") == "updated"
    assert h.row("due").expiry_count == 0


# Unlimited


@promise
def an_unlimited_count_never_gives_a_job_up(h: Harness) -> None:
    """Even a count that is as large as the number which says so on the wire."""
    so_many = dict.fromkeys(("retry_count", "stall_count", "timeout_count", "expiry_count"), 2**31)
    for of_queue in (False, True):
        if of_queue:
            h.call(h.commands.configure(limits=NONE))
        h.dispatch(options=None if of_queue else NONE)
        info = h.redis.hget(h.keys.base + "info", "a")
        counted = so_many if info is None else msgspec.msgpack.decode(info) | so_many  # pyright: ignore[reportArgumentType,reportUnknownVariableType]
        h.redis.hset(h.keys.base + "info", "a", msgspec.msgpack.encode(counted))
        assert h.end(h.take_one(), RetryLater(WHY, after=0)) == "retried"
        assert h.end(h.take_one(), TimedOut(WHY)) == "timed_out"
        assert h.die(h.take_one()) == ["stalled"]
        _expire(h)
        job = h.row("due")
        assert (job.retry_count, job.stall_count) == (2**31 + 1, 2**31 + 1)
        assert (job.timeout_count, job.expiry_count) == (2**31 + 1, 2**31 + 1)
        h.cancel("a")


@promise
def an_unlimited_option_is_read_as_it_was_written(h: Harness) -> None:
    own = JobOptions(max_retries="unlimited", max_stalls=2, timeout="unlimited")
    h.dispatch(options=own)
    assert h.row("due").options == own
    assert h.take_one().options == own


@promise
def a_timeout_of_zero_from_an_older_client_counts_as_not_given(h: Harness) -> None:
    """Such a job could never finish. Now no client may send it."""
    h.dispatch()
    info = msgspec.msgpack.encode({"options": {"timeout": 0, "max_stalls": 2}})
    h.redis.hset(h.keys.base + "info", "a", info)
    assert h.take_one().options == JobOptions(max_stalls=2)


# What is left of a job that was given up


def _given_up(h: Harness) -> list[Job]:
    """The job in the failed record, as get and as list show it, and as its fail handler gets it."""
    (fail_job,) = h.call(h.fail_commands.dequeue("~f", lease=30, limit=9)).jobs
    assert h.call(h.fail_commands.settle(endings_of([fail_job], Finish()))) == ["finished"]
    assert fail_job.origin is not None
    (listed,) = h.records()
    return [fail_job.origin, h.row("failed"), listed]


@promise
def a_job_given_up_has_the_options_that_were_in_force_then(h: Harness) -> None:
    h.join("c1")
    for client in ("c1", ""):  # in bulk, and one by one
        for own in (None, JobOptions(max_stalls=9, timeout=5)):
            limits = JobOptions(max_retries=1, timeout="unlimited")
            h.call(h.commands.configure(limits=limits, fail_handler=True))
            h.dispatch(options=own)
            assert h.end(h.take_one(client), Fail(WHY)) == "failed"
            h.call(h.commands.configure(limits=JobOptions(max_retries=77)))  # too late
            for job in _given_up(h):
                assert job.options == JobOptions(
                    max_retries=1, max_stalls=9 if own else 3, max_timeouts=3,
                    max_expiries="unlimited", min_backoff=2, max_backoff=300,
                    timeout=5 if own else "unlimited",
                )  # fmt: skip
            h.call(h.commands.drop("failed", ["a"]))


@promise
def a_job_given_up_has_its_times_and_all_its_counts(h: Harness) -> None:
    h.call(h.commands.configure(fail_handler=True, limits=JobOptions(min_backoff=0)))
    h.join("c1")
    h.dispatch(after=5)
    dispatched_at = h.time
    h.later(6)
    _expire(h)
    h.die(h.take_one("c1"))
    h.end(h.take_one("c1"), TimedOut(WHY))
    h.end(h.take_one("c1"), RetryLater(WHY, after=30))
    run_at = h.time + 30
    h.later(40)
    job = h.take_one("c1")
    assert h.end(job, Fail(WHY)) == "failed"
    for found in _given_up(h):
        counts = (found.retry_count, found.stall_count, found.timeout_count, found.expiry_count)
        assert counts == (1, 1, 1, 1)
        times = (found.dispatched_at_epoch, found.run_at_epoch, found.ended_at_epoch)
        assert [round(at, 2) for at in times] == [
            round(at, 2) for at in (dispatched_at, run_at, h.time)
        ]
        assert (found.token, found.error) == (job.token, WHY)


@promise
def a_job_given_up_in_its_first_run_was_due_when_it_was_dispatched(h: Harness) -> None:
    h.join("c1")
    h.dispatch()
    run_at = h.row("due").run_at_epoch
    h.later(3)
    h.end(h.take_one("c1"), Fail(WHY))
    assert (h.row("failed").run_at_epoch, h.row("failed").dispatched_at_epoch) == (run_at, run_at)


@promise
def limits_that_cannot_be_read_do_not_hide_a_job_that_was_given_up(h: Harness) -> None:
    h.call(h.commands.configure(fail_handler=True))
    for limits in ({"min_backoff": 1e300}, {"max_retries": -1, "timeout": "x"}, [1]):
        h.redis.hset(h.keys.base + "meta", "limits", msgspec.msgpack.encode(limits))
        h.dispatch(options=JobOptions(max_stalls=2))
        assert h.end(h.take_one(), Fail(WHY)) == "failed"
        for job in _given_up(h):
            assert job.readable
            assert job.options.max_stalls == 2
        h.call(h.commands.drop("failed", ["a"]))
    h.call(h.commands.configure(limits=JobOptions()))


@promise
def a_requeued_job_has_its_own_options_and_no_others(h: Harness) -> None:
    h.call(h.commands.configure(limits=JobOptions(max_retries=1)))
    h.dispatch(options=JobOptions(max_stalls=2))
    h.end(h.take_one(), Fail(WHY))
    assert h.call(h.commands.requeue("failed", ["a"])) == ["requeued"]
    assert h.row("due").options == JobOptions(max_stalls=2)


# A job that finishes has no failed record


def _fail(h: Harness, *ids: str) -> None:
    h.dispatch_many(*ids)
    jobs = h.take("c1", limit=len(ids))
    assert h.call(h.commands.settle(endings_of(jobs, Fail(WHY)))) == ["failed"] * len(ids)


@promise
def a_job_that_finishes_has_no_failed_record(h: Harness) -> None:
    h.join("c1")
    for client in ("c1", ""):  # in bulk, and one by one
        _fail(h, "a", "b", "c")
        h.dispatch_many("a", "b", "other")
        jobs = h.take(client, limit=3)
        assert h.call(h.commands.settle(endings_of(jobs, Finish()))) == ["finished"] * 3
        assert h.rows("a") == {}
        assert [job.id for job in h.records()] == ["c"]
        h.call(h.commands.drop("failed", ["c"]))


@promise
def a_job_that_finishes_in_a_dequeue_has_no_failed_record(h: Harness) -> None:
    h.join("c1")
    _fail(h, "a", "b")
    h.dispatch_many("a")
    jobs = h.take("c1")
    assert h.dequeue("c1", endings=endings_of(jobs, Finish())).settled == ["finished"]
    assert (h.rows("a"), set(h.rows("b"))) == ({}, {"failed"})


@promise
def only_a_finish_removes_a_failed_record(h: Harness) -> None:
    h.join("c1")
    others: tuple[Outcome, ...] = (Cancel(), Release(), RetryLater(WHY, after=0), TimedOut())
    for outcome in others:
        _fail(h, "a")
        h.dispatch("a")
        h.end(h.take_one("c1"), outcome)
        h.cancel("a")
        assert set(h.rows()) == {"failed"}


@promise
def a_failed_record_stays_when_the_job_of_its_fail_handler_finishes(h: Harness) -> None:
    h.join("c1")
    h.call(h.commands.configure(fail_handler=True))
    _fail(h, "a")
    (fail_job,) = h.call(h.fail_commands.dequeue("~f", lease=30, limit=9)).jobs
    assert h.call(h.fail_commands.settle(endings_of([fail_job], Finish()))) == ["finished"]
    assert set(h.rows()) == {"failed"}


@promise
def a_held_dispatch_waits_and_the_failed_record_is_gone_when_a_run_finishes(h: Harness) -> None:
    h.join("c1")
    _fail(h, "a")
    h.dispatch("a")
    job = h.take_one("c1")
    assert h.dispatch("a", b"2") == "blocked"
    assert h.end(job, Finish()) == "finished"
    assert set(h.rows()) == {"due"}


@promise
def a_finish_and_a_failure_in_one_call_keep_the_failed_record_full(h: Harness) -> None:
    """A record that a finish removes does not count against the limit of the others."""
    h.join("c1")
    h.call(h.commands.configure(failed_limit=3))
    _fail(h, "b", "a", "c")
    h.dispatch_many("a", "d")
    a, d = h.take("c1", limit=2)
    endings = [*endings_of([d], Fail(WHY)), *endings_of([a], Finish())]
    assert h.call(h.commands.settle(endings)) == ["failed", "finished"]
    assert [job.id for job in h.records()] == ["d", "c", "b"]


@promise
def the_mark_of_failed_records_goes_with_the_last_of_them(h: Harness) -> None:
    def marked() -> bool:
        return h.redis.hget(h.keys.base + "meta", "has_failed") is not None

    def removed(*, waits: bool, by: Callable[[], object]) -> None:
        """Gives up two jobs. If they are to wait as well, dispatches them again."""
        _fail(h, "a", "b")
        assert marked()
        h.call(h.commands.drop("failed", ["nobody"]))
        h.call(h.commands.trim("failed", 2))
        assert marked()
        if waits:
            h.dispatch_many("a", "b")
        by()
        assert not h.records()
        assert not marked()
        h.cancel("a", "b")

    h.join("c1")
    removed(waits=False, by=lambda: h.call(h.commands.drop("failed", ["a", "b"])))
    removed(waits=True, by=lambda: h.call(h.commands.trim("failed", 0)))
    removed(waits=False, by=lambda: h.call(h.commands.requeue("failed", ["a", "b"])))
    removed(waits=True, by=lambda: [h.end(job, Finish()) for job in h.take("c1", limit=2)])
    removed(waits=False, by=lambda: h.call(h.commands.configure(failed_limit=0)))
