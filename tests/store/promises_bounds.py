"""Promises about how much one call does, however many jobs there are and however large."""

import redis

from queasy.job import Job, JobError
from queasy.options import JobOptions
from queasy.outcomes import Broken, Fail, Finish, Release, RetryLater, TimedOut
from queasy.store.records import DispatchItem, Ending
from queasy.worker.intake.unreported import MAX_ENDING_BYTES
from tests.store.harness import Harness, endings_of, refused
from tests.store.promise import promise

MEGABYTE = bytes(2**20)
WHY = JobError(type="Boom", message="it broke")
# A call stops when it has handled two megabytes; a dequeue reads five payloads at once.


def take_large(h: Harness, number: int = 6, payload: bytes = MEGABYTE) -> list[Job]:
    """Leases jobs to one client, with a lease of five seconds."""
    h.join("c1", lease=5)
    h.call(h.commands.dispatch([DispatchItem(f"j{n:02}", payload) for n in range(number)]))
    jobs: list[Job] = []
    while len(jobs) < number:
        jobs += h.take("c1", limit=1000, lease=5)
    return jobs


@promise
def a_sweep_is_bounded_in_bytes(h: Harness) -> None:
    h.call(h.commands.configure(limits=JobOptions(max_stalls=1), fail_handler=True))
    take_large(h)
    h.later(6)
    assert [h.sweep() for _ in range(4)] == [2, 2, 2, 0]
    assert len(h.records()) == 6


@promise
def a_sweep_ends_at_least_one_job_however_large(h: Harness) -> None:
    h.call(h.commands.configure(limits=JobOptions(max_stalls=1)))
    take_large(h, 2, 9 * MEGABYTE)
    h.later(6)
    assert [h.sweep() for _ in range(3)] == [1, 1, 0]


@promise
def jobs_that_stay_in_place_do_not_count_against_the_bytes_of_a_sweep(h: Harness) -> None:
    take_large(h)
    h.later(6)
    assert [h.sweep(), h.sweep()] == [6, 0], "their payloads are not moved"


@promise
def a_held_dispatch_counts_against_the_bytes_of_a_sweep(h: Harness) -> None:
    take_large(h, payload=b"small")
    for n in range(6):
        assert h.dispatch(f"j{n:02}", MEGABYTE) == "blocked"
    h.later(6)
    assert [h.sweep() for _ in range(4)] == [2, 2, 2, 0]


@promise
def a_sweep_of_cancelled_runs_is_bounded_in_bytes(h: Harness) -> None:
    take_large(h)
    h.cancel(*(f"j{n:02}" for n in range(6)), running=True)
    h.later(6)
    assert [h.sweep() for _ in range(4)] == [2, 2, 2, 0]


@promise
def an_eviction_is_bounded_in_bytes(h: Harness) -> None:
    take_large(h)
    h.cancel(*(f"j{n:02}" for n in range(6)), running=True)
    evict = h.commands.evict("c1")
    assert [h.call(evict) for _ in range(4)] == [
        ("more", 2), ("more", 2), ("gone", 2), ("absent", 0),
    ]  # fmt: skip


@promise
def a_dequeue_is_bounded_in_bytes(h: Harness) -> None:
    h.join("c1")
    h.call(h.commands.dispatch([DispatchItem(f"j{n:02}", MEGABYTE) for n in range(13)]))
    batches = [h.dequeue("c1", limit=1000, request=f"r{n}") for n in range(4)]
    assert [len(taken.jobs) for taken in batches] == [5, 5, 3, 0]
    assert [job.id for taken in batches for job in taken.jobs] == [f"j{n:02}" for n in range(13)]
    assert [taken.next_in for taken in batches][:2] == [0, 0], "more jobs are due"


@promise
def a_requeue_is_bounded_in_bytes(h: Harness) -> None:
    ids = [f"j{n:02}" for n in range(6)]
    for job in take_large(h):
        assert h.end(job, Fail(WHY)) == "failed"
    for done in (0, 2, 4):
        words = h.call(h.commands.requeue("failed", ids[done:]))
        assert words == ["requeued"] * 2 + ["later"] * (4 - done)
    assert h.waiting() == ids


# A call that gives jobs up


def accepted(h: Harness, endings: list[Ending]) -> list[str]:
    try:
        return h.call(h.commands.settle(endings))
    except redis.RedisError as error:
        raise AssertionError("refused to end these leases") from error


def refuse_three_accept_two(h: Harness, endings: list[Ending]) -> None:
    """Each of the three endings gives up a job of one megabyte."""
    before = h.dump()
    with refused("QUEASYBAD"):
        h.call(h.commands.settle(endings))
    with refused("QUEASYBAD"):
        h.dequeue("c1", endings=endings)
    assert h.dump() == before, "nothing was written"
    assert "lost" not in accepted(h, endings[1:]) + accepted(h, endings[:1])


@promise
def a_call_that_gives_up_too_many_bytes_is_refused_before_anything_is_written(h: Harness) -> None:
    h.call(h.commands.configure(limits=JobOptions(max_timeouts=1), fail_handler=True))
    a, b, c = take_large(h, 3)
    refuse_three_accept_two(h, endings_of([a, b, c], Fail(WHY)))
    a, b, c = take_large(h, 3)
    refuse_three_accept_two(h, endings_of([a, b, c], TimedOut(WHY)))
    a, b, c = take_large(h, 3)
    refuse_three_accept_two(h, endings_of([a, b, c], Broken(WHY)))
    a, b, c = take_large(h, 3)
    mixed = [Fail(WHY), TimedOut(WHY), Fail(WHY)]
    refuse_three_accept_two(
        h, [Ending(job.id, job.token, why) for job, why in zip((a, b, c), mixed, strict=True)]
    )


@promise
def a_call_may_give_up_what_a_worker_reports_in_one(h: Harness) -> None:
    h.join("c1")
    third = MAX_ENDING_BYTES // 3 + 1
    for sizes in [third] * 3, [1] * 30 + [third, third, 9 * third], [9 * third]:
        items = [DispatchItem(f"j{n}", bytes(size)) for n, size in enumerate(sizes)]
        h.call(h.commands.dispatch(items))
        jobs = h.take("c1", limit=1000)
        assert len(jobs) == len(sizes)
        assert set(accepted(h, endings_of(jobs, Fail(WHY)))) == {"failed"}


@promise
def jobs_that_are_not_given_up_do_not_count_against_the_bytes_of_a_call(h: Harness) -> None:
    for outcome in (Release(), RetryLater(WHY, after=0), TimedOut(WHY), Finish()):
        jobs = take_large(h)
        assert "lost" not in accepted(h, endings_of(jobs, outcome))
        h.clear()


# A client with many leases


def take_thousands(h: Harness) -> list[Job]:
    """Leases jobs to one client; returns the last batch."""
    h.join("c1")
    jobs: list[Job] = []
    for batch in range(3):
        h.dispatch_many(*(f"{batch}-{n:03}" for n in range(600)))
        jobs = h.take("c1", limit=600, request=f"r{batch}")
    return jobs


@promise
def a_repeated_dequeue_of_a_client_with_many_leases_returns_the_same_batch(h: Harness) -> None:
    last = take_thousands(h)
    assert [job.id for job in last] == [f"2-{n:03}" for n in range(600)]
    again = h.take("c1", limit=600, request="r2")
    assert [(job.id, job.token) for job in again] == [(job.id, job.token) for job in last]


@promise
def a_repeated_dequeue_returns_only_jobs_the_client_still_holds(h: Harness) -> None:
    last = take_thousands(h)
    h.call(h.commands.settle(endings_of(last[:300], Fail(WHY))))
    h.dispatch_many(*(job.id for job in last[:200]))
    h.take("~other", limit=100)
    h.take("c1", limit=100)  # the same ids with other tokens, from another request
    again = h.take("c1", limit=600, request="r2")
    assert [job.id for job in again] == [job.id for job in last[300:]]
