"""Promises about jobs that are given up or retried in bulk."""

from typing import Any

import msgspec

from queasy.job import Job, JobError
from queasy.options import JobOptions
from queasy.outcomes import Broken, Fail, Finish, RetryLater
from queasy.store.records import DispatchItem
from tests.store.harness import Harness, endings_of
from tests.store.promise import promise

WHY = JobError("E", "no", "permanent", "line 1\nline 2")
MANY = [f"job{number:02}" for number in range(20)]


def given_up(h: Harness, client: str, ids: list[str], why: JobError | None) -> list[Any]:
    """The jobs in the failed record and in the fail queue, without their tokens."""
    h.call(h.commands.configure(fail_handler=True))
    h.call(h.commands.dispatch([DispatchItem(id_, f"of {id_}".encode()) for id_ in ids]))
    jobs = h.take(client, limit=len(ids))
    assert h.call(h.commands.settle(endings_of(jobs, Fail(why)))) == ["failed"] * len(ids)
    fail_jobs = h.call(h.fail_commands.dequeue("~f", lease=30, limit=99)).jobs
    token_of = {job.id: job.token for job in jobs}
    assert [job.id for job in fail_jobs] == [f"{id_}:{token_of[id_]}" for id_ in ids]
    assert {job.id: job.token for job in h.records()} == token_of
    assert {job.origin.id: job.origin.token for job in fail_jobs if job.origin} == token_of
    seen = [_seen(job) for job in h.records()]
    seen += [(_seen(job.origin), job.payload) for job in fail_jobs if job.origin]
    assert h.call(h.fail_commands.settle(endings_of(fail_jobs, Finish()))) == ["finished"] * len(
        ids
    )
    return seen


def _seen(job: Job) -> Any:
    counts = job.retry_count, job.stall_count, job.timeout_count
    times = round(job.ended_at_epoch, 3), round(job.dispatched_at_epoch, 3)
    return job.id, job.payload, job.error, counts, times


@promise
def jobs_given_up_in_bulk_are_the_same_as_one_by_one(h: Harness) -> None:
    h.join("c1")
    for ids in (MANY[:1], MANY):
        for why in (WHY, None):
            short = given_up(h, "c1", ids, why)
            assert h.left() == {":clients", ":failed", ":failed_at"}
            assert len(short) == 2 * len(ids)
            h.call(h.commands.drop("failed", ids))
            assert short == given_up(h, "~long", ids, why)
            h.call(h.commands.drop("failed", ids))
    totals = {line.kind: line.count for line in h.call(h.commands.stats()) if line.minute is None}
    assert totals["failed"] == 4 * (1 + len(MANY))
    of_fail_queue = h.call(h.fail_commands.stats())
    totals = {line.kind: line.count for line in of_fail_queue if line.minute is None}
    assert totals["dispatched"] == totals["finished"] == 4 * (1 + len(MANY))


@promise
def without_a_fail_handler_jobs_given_up_in_bulk_leave_the_fail_queue_empty(h: Harness) -> None:
    h.join("c1")
    h.dispatch()
    assert h.end(h.take_one("c1"), Fail(WHY)) == "failed"
    assert not [label for label in h.dump() if label.startswith("-fail")]


@promise
def jobs_are_given_up_in_the_order_of_their_outcomes(h: Harness) -> None:
    """In bulk, or one by one (as a job that was scheduled)."""
    h.call(h.commands.configure(fail_handler=True))
    h.join("c1")
    for id_ in "abcd":
        h.dispatch(id_, after=0.001 if id_ in "bd" else None)
    h.later(1)
    jobs = h.take("c1", limit=4)
    h.call(h.commands.settle(endings_of(sorted(jobs, key=lambda job: job.id), Fail(WHY))))
    fail_jobs, _ = h.call(h.fail_commands.jobs("waiting", b"", 9))
    assert [job.id[0] for job in fail_jobs] == list("abcd")
    assert sorted([job.id for job in h.records()]) == list("abcd")


@promise
def a_job_given_up_in_bulk_is_given_up_once(h: Harness) -> None:
    h.join("c1")
    h.dispatch_many("a", "b")
    a, b = h.take("c1", limit=2)
    endings = [*endings_of([a, a], Fail(WHY)), *endings_of([b], Finish())]
    assert h.call(h.commands.settle(endings)) == ["failed", "lost", "finished"]
    before = h.dump()
    assert h.call(h.commands.settle([*endings, *endings_of([b], Fail())])) == ["lost"] * 4
    assert h.dump() == before


@promise
def the_record_of_a_job_given_up_has_its_earlier_attempts(h: Harness) -> None:
    h.join("c1")
    h.dispatch()
    h.end(h.take_one("c1"), RetryLater(WHY, after=0))
    assert h.end(h.take_one("c1"), Fail(WHY)) == "failed"
    assert [job.retry_count for job in h.records()] == [1]


@promise
def a_held_dispatch_becomes_a_new_job_when_the_run_is_given_up(h: Harness) -> None:
    h.join("c1")
    h.dispatch()
    job = h.take_one("c1")
    assert h.dispatch(payload=b"2") == "blocked"
    assert h.end(job, Fail(WHY)) == "failed"
    assert h.take_one("c1").payload == b"2"


@promise
def an_error_in_another_packing_is_still_read(h: Harness) -> None:
    """With fields in another order, or with longer heads than needed."""
    h.join("c1")
    plain = msgspec.msgpack.encode({"type": "E", "message": "no"})
    long_head = b"\xde\x00\x02" + plain[1:]
    error, when = b"\xa5error", b"\xa4when"
    for packed in (
        b"\x81" + error + plain,
        b"\x82" + error + plain + when + b"\xa0",
        b"\x82" + error + plain + when + b"\xd9\x01" + b"1",
        b"\x82" + when + b"\xa0" + error + plain,
        b"\x81" + error + long_head,
        b"\xde\x00\x01" + error + plain,
        b"\x82" + when + b"\xd9\x01" + b"1" + error + plain,
    ):
        h.dispatch()
        job = h.take_one("c1")
        command = h.commands.settle(endings_of([job], Fail(WHY)))
        args = (*command.args[:-1], packed)
        assert h.call(msgspec.structs.replace(command, args=args)) == ["failed"]
        [record] = h.records()
        assert record.readable
        assert (record.error, record.payload) == (JobError("E", "no"), b"1")


@promise
def the_long_entry_does_not_stay_in_a_fail_queue_unless_it_is_a_job(h: Harness) -> None:
    h.join("c1")
    long = "-" * 72
    assert h.call(h.fail_commands.dispatch([DispatchItem(long, b"mine")]))[0].status == "created"
    for ids in (MANY[:10], MANY[10:]):
        h.call(h.commands.configure(fail_handler=True))
        h.dispatch_many(*ids)
        h.call(h.commands.settle(endings_of(h.take("c1", limit=10), Fail(WHY))))
        fail_jobs = h.call(h.fail_commands.dequeue("~f", lease=30, limit=99)).jobs
        assert [job.payload for job in fail_jobs if job.id == long] == [b"mine"] * (
            ids == MANY[:10]
        )
        assert len([job for job in fail_jobs if job.origin]) == 10
        h.call(h.fail_commands.settle(endings_of(fail_jobs, Finish())))
    assert not [label for label in h.left() if label.startswith("-fail")]


@promise
def a_fail_job_with_an_unreadable_origin_is_marked_unreadable(h: Harness) -> None:
    h.join("c1")
    h.call(h.commands.configure(fail_handler=True))
    h.dispatch()
    h.end(h.take_one("c1"), Fail(WHY))
    [fail_job] = h.call(h.fail_commands.jobs("waiting", b"", 9))[0]
    h.redis.hset(h.fail_keys.base + "info", fail_job.id, b"\x81\xa6origin\x85junk")
    [taken] = h.call(h.fail_commands.dequeue("~f", lease=30, limit=9)).jobs
    assert not taken.readable
    assert h.call(h.fail_commands.settle(endings_of([taken], Broken(WHY)))) == ["broken"]


@promise
def a_retried_job_with_an_unreadable_record_is_marked_unreadable(h: Harness) -> None:
    h.join("c1")
    h.dispatch()
    h.end(h.take_one("c1"), RetryLater(WHY, after=0))
    info = bytes(h.redis.hget(h.keys.base + "info", "a") or b"")  # pyright: ignore[reportArgumentType]
    h.redis.hset(h.keys.base + "info", "a", info[:-3])
    taken = h.take_one("c1")
    assert not taken.readable
    assert h.end(taken, Broken(WHY)) == "broken"


@promise
def a_suspect_that_was_retried_once_is_still_a_suspect(h: Harness) -> None:
    h.join("c1", "c2")
    h.dispatch("a")
    h.end(h.take_one("c1"), RetryLater(WHY, after=0))
    h.die(h.take_one("c1"))
    h.dispatch("b")
    assert [job.id for job in h.take("c2", limit=9)] == ["a"], "a suspect is leased alone"


@promise
def first_retries_in_bulk_are_the_same_as_one_by_one(h: Harness) -> None:
    h.join("c1", lease=3600)
    for after, why in ((None, WHY), (None, None), (5, WHY), (0, WHY)):
        seen: list[Any] = []
        for client in ("c1", "~long"):
            h.dispatch_many(*MANY)
            h.later(3)
            jobs = h.take(client, limit=len(MANY))
            words = h.call(h.commands.settle(endings_of(jobs, RetryLater(why, after=after))))
            assert words == ["retried"] * len(MANY)
            again, _ = h.call(h.commands.jobs("waiting", b"", 99))
            ages = [round(h.time - job.dispatched_at_epoch, 3) for job in again]
            assert ages == [3] * len(MANY)
            seen.append([(*_seen(job)[:4], h.due_in(job), job.state) for job in again])
            h.cancel(*MANY)
            h.later(1)
        assert [row[0] for row in seen[0]] == MANY
        assert seen[0] == seen[1]
    assert h.left() == {":clients"}


@promise
def a_job_without_retries_is_given_up(h: Harness) -> None:
    h.call(h.commands.configure(limits=JobOptions(max_retries=0)))
    h.join("c1")
    h.dispatch()
    assert h.end(h.take_one("c1"), RetryLater(WHY)) == "failed"


@promise
def a_waiter_is_woken_for_a_retry_that_is_due(h: Harness) -> None:
    h.join("c1", "c2")
    h.dispatch()
    job = h.take_one("c1")
    assert h.dequeue("c2", waiter="c2", waits=8).jobs == []
    assert h.end(job, RetryLater(WHY, after=0)) == "retried"
    assert h.call(h.commands.counts()).waiters == 0
