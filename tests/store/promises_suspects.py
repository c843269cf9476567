"""Promises about suspects: jobs that ran in a client when it died."""

import math

from queasy.job import Job, JobError
from queasy.options import JobOptions
from queasy.outcomes import Finish, Release, RetryLater, TimedOut
from tests.store.harness import Harness
from tests.store.promise import promise

WHY = JobError(type="Boom", message="it broke")


def _crash(h: Harness, *ids: str, started: int | None = None) -> None:
    """Suspects: jobs of a process that died, in which `started` jobs ran, or only these."""
    h.join("dead")
    h.dispatch_many(*ids)
    jobs: list[Job] = []
    while taken := h.take("dead", limit=1000, beside=10_000):  # no earlier suspects
        jobs += taken
    assert {job.id for job in jobs} == set(ids)
    for first in range(0, len(jobs), 1000):
        h.die(*jobs[first : first + 1000], started=started or len(ids))
    h.call(h.commands.evict("dead"))


def _batches(h: Harness, limit: int = 9, **more: int) -> list[str]:
    """Takes and finishes batches until nothing is due; returns the ids of each."""
    batches: list[str] = []
    while jobs := h.take(limit=limit, **more):
        batches.append("".join(job.id for job in jobs))
        assert {h.end(job, Finish()) for job in jobs} == {"finished"}
    return batches


@promise
def after_a_death_each_job_may_have_half_as_many_companions(h: Harness) -> None:
    for started, companions in ((1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (99, 49), (100, 49)):
        _crash(h, "a", started=started)
        assert h.row("due").companions == companions, started
        assert h.row("due").suspect
        h.cancel("a")


@promise
def a_job_that_dies_in_company_is_alone_after_log_n_deaths(h: Harness) -> None:
    for n in (2, 3, 7, 8, 9, 100, 1000, 1025):
        h.dispatch("a")
        started, deaths = n, 0
        while started > 1:
            h.die(h.take_one(), started=started)
            started, deaths = 1 + (h.row("due").companions or 0), deaths + 1
        assert deaths == math.ceil(math.log2(n))
        assert h.row("due").stall_count == 0
        h.cancel("a")


@promise
def only_a_death_alone_counts_as_a_stall(h: Harness) -> None:
    h.dispatch("a")
    for started in (100, 50, 2, 1, 7, 1):
        assert h.die(h.take_one(), started=started) == ["stalled"]
    assert h.row("due").stall_count == 2
    assert h.row("due").companions == 0
    assert h.die(h.take_one()) == ["failed"]
    (job,) = h.records()
    assert (job.stall_count, job.error and job.error.kind) == (3, "stall")


@promise
def a_death_does_not_raise_the_limit_of_companions(h: Harness) -> None:
    _crash(h, "a", started=5)
    h.die(h.take_one(), started=100)
    assert h.row("due").companions == 2


@promise
def a_death_says_why_the_job_waits_again(h: Harness) -> None:
    _crash(h, "a", "b", "c")
    problem = h.row("due").error
    assert problem is not None
    assert problem.message == "the client died while it ran this job and 2 others"


@promise
def a_death_with_a_wrong_token_changes_nothing(h: Harness) -> None:
    h.dispatch("a")
    old = h.take_one()
    h.end(old, Release())
    new = h.take_one()
    assert h.die(old) == ["lost"]
    assert h.end(new, Finish()) == "finished"


@promise
def a_cancelled_run_does_not_wait_again_after_a_death(h: Harness) -> None:
    h.dispatch("a")
    job = h.take_one()
    h.cancel("a", running=True)
    assert h.die(job, started=9) == ["cancelled"]


@promise
def suspects_are_leased_in_groups_that_they_allow(h: Harness) -> None:
    _crash(h, "a", "b", "c", "d", started=4)
    assert _batches(h) == ["ab", "cd"]
    _crash(h, "x", "y", started=2)
    assert _batches(h) == ["x", "y"]


@promise
def a_suspect_is_leased_whatever_the_limit(h: Harness) -> None:
    _crash(h, "x", "y")
    assert _batches(h, limit=1) == ["x", "y"]


@promise
def a_group_is_as_small_as_any_of_its_jobs_demands(h: Harness) -> None:
    _crash(h, "x", started=6)
    _crash(h, "y", started=3)
    h.dispatch_many("a", "b")
    assert _batches(h) == ["xy", "ab"]


@promise
def larger_groups_of_suspects_run_first(h: Harness) -> None:
    """They clear more jobs at once. It used to be the oldest group, down to each job alone."""
    _crash(h, "v", "w", started=2)  # no companion
    _crash(h, "x", started=4)  # one each
    _crash(h, "a", "b", "c", started=6)  # two each
    _crash(h, "y", started=4)
    assert _batches(h) == ["abc", "xy", "v", "w"]


@promise
def a_larger_group_runs_first_if_it_follows_more_suspects_than_are_requested(h: Harness) -> None:
    _crash(h, "v", "w", started=2)
    _crash(h, "a", "b", "c", started=6)
    assert _batches(h, limit=2) == ["ab", "c", "v", "w"]


@promise
def other_jobs_keep_their_places_among_suspects(h: Harness) -> None:
    _crash(h, "v", started=2)
    h.dispatch("a")
    other = h.take(beside=1)
    _crash(h, "x", "y", started=4)
    h.end(other[0], Release())
    assert h.waiting() == list("vaxy")
    assert _batches(h) == ["xa", "y", "v"]


@promise
def a_suspect_counts_the_jobs_that_run_beside_it(h: Harness) -> None:
    _crash(h, "x", "y", "z", started=6)  # two companions each
    for beside, batch in ((0, "xyz"), (1, "xy"), (2, "x"), (3, "")):
        jobs = h.take(limit=9, beside=beside)
        assert "".join(job.id for job in jobs) == batch
        for job in jobs:
            h.end(job, Release())


@promise
def other_jobs_do_not_wait_for_a_suspect_that_does_not_fit(h: Harness) -> None:
    h.dispatch_many("a", "b")
    older = h.take(limit=2)
    _crash(h, "x", "y")
    h.dispatch_many("c", "d", "e")
    for job in older:
        h.end(job, Release())
    assert h.waiting() == list("abxycde")
    assert _batches(h) == ["abcde", "x", "y"]


@promise
def a_reply_says_which_suspects_were_skipped(h: Harness) -> None:
    assert h.dequeue(limit=9, beside=7).skipped is None
    _crash(h, "x", started=5)
    _crash(h, "y", started=3)
    h.dispatch("a")
    assert h.dequeue(limit=9, beside=7).skipped == 2, "the most of any"
    assert h.dequeue(limit=0, waits=8, beside=7).skipped == 2
    assert h.dequeue(limit=9).skipped is None, "both fit"


@promise
def after_a_group_the_reply_says_that_more_is_due(h: Harness) -> None:
    _crash(h, "x", "y", started=3)
    h.dispatch_many("a", "b")
    before = h.dump()[":info"]
    taken = h.dequeue(limit=9)
    assert [job.id for job in taken.jobs] == ["x", "y"]
    assert taken.next_in == 0
    assert h.dump()[":info"] == before
    assert h.dequeue(limit=9).next_in != 0


@promise
def after_a_suspect_more_is_due_when_the_clock_was_set_back(h: Harness) -> None:
    _crash(h, "x")
    h.dispatch("a")
    h.later(-3600)
    assert h.dequeue(limit=9).next_in == 0


@promise
def after_a_suspect_another_client_is_woken_for_the_rest(h: Harness) -> None:
    _crash(h, "x")
    h.dispatch("a")
    h.join("c1")
    h.redis.zadd(h.keys.base + "waiters", {"c1": h.time * 1000 + 1000})
    h.take(limit=9)
    assert h.call(h.commands.counts()).waiters == 0


@promise
def a_job_is_a_suspect_after_two_expired_leases(h: Harness) -> None:
    h.dispatch_many("a", "b")
    for client, suspect in (("c1", False), ("c2", True)):
        h.join(client, lease=1)
        assert len(h.take(client, limit=2, lease=1)) == 2
        h.later(1.1)
        assert h.sweep() == 2
        assert [h.row("due", id_).suspect for id_ in "ab"] == [suspect, suspect]
    assert _batches(h) == ["a", "b"]


@promise
def a_run_that_ends_by_itself_clears_a_suspect(h: Harness) -> None:
    for outcome in (RetryLater(WHY, after=0), TimedOut(WHY)):
        _crash(h, "a")
        h.dispatch("b")
        h.end(h.take_one(), outcome)
        h.later(60)
        assert _batches(h) == ["ba"]


@promise
def a_released_suspect_is_still_a_suspect(h: Harness) -> None:
    _crash(h, "a")
    assert h.end(h.take_one(), Release()) == "released"
    assert h.row("due").suspect


@promise
def a_job_with_reset_counts_is_not_a_suspect(h: Harness) -> None:
    _crash(h, "a", "b", "c")
    assert h.dispatch("a", flags="0f10") == "updated"
    assert h.dispatch("b", b"new") == "updated"
    assert h.dispatch("c", b"new", flags="1t00") == "updated"
    assert _batches(h) == ["ab", "c"]
    _crash(h, "d")
    run = h.take_one()
    assert h.dispatch("d", b"held") == "blocked"
    assert h.end(run, Release()) == "released"
    assert not h.row("due", "d").suspect


@promise
def a_requeued_suspect_is_not_a_suspect(h: Harness) -> None:
    h.call(h.commands.configure(fail_handler=True, limits=JobOptions(max_stalls=1)))
    _crash(h, "a", started=1)
    _crash(h, "b", started=1)
    assert {job.id for job in h.records()} == {"a", "b"}
    h.call(h.commands.requeue("failed", ["a", "b"]))
    assert _batches(h) == ["ab"]
    fail_jobs = h.call(h.fail_commands.dequeue("~f", lease=30, limit=9)).jobs
    assert [job.suspect for job in fail_jobs] == [False, False]


@promise
def jobs_of_a_dead_client_that_had_not_started_are_released(h: Harness) -> None:
    h.join("c1", "c2")
    h.dispatch_many(*"abcd")
    _, started, _ = h.take("c1", limit=3)
    h.take_one("c2")
    h.die(started)
    assert h.call(h.commands.evict("c1")) == ("gone", 2)
    jobs = {id_: h.row("due", id_) for id_ in "abc"}
    assert {id_: job.stall_count for id_, job in jobs.items()} == {"a": 0, "b": 1, "c": 0}
    assert [id_ for id_, job in jobs.items() if job.suspect] == ["b"]
    assert h.row("active", "d").client == "c2", "the job belongs to another client"


# Suspects that are skipped

ALONE = {f"s{n}" for n in range(150)}


def _crash_alone(h: Harness) -> None:
    _crash(h, *sorted(ALONE), started=2)


@promise
def a_busy_client_takes_the_jobs_after_suspects(h: Harness) -> None:
    _crash_alone(h)
    h.dispatch_many("a", "b")
    assert [job.id for job in h.take(limit=9, beside=1)] == ["a", "b"]
    assert set(h.waiting()) == ALONE


@promise
def a_busy_client_stays_within_its_limit(h: Harness) -> None:
    _crash(h, "x")
    h.dispatch_many(*"abcd")
    assert [job.id for job in h.take(limit=3, beside=1)] == ["a", "b", "c"]
    assert h.waiting() == ["x", "d"]


@promise
def a_suspect_is_recognised_by_its_record_not_by_a_word_in_it(h: Harness) -> None:
    h.dispatch("a")
    why = JobError(type="Boom", message="no companions here")
    h.end(h.take_one(), RetryLater(why, after=0))
    assert [job.id for job in h.take(limit=9, beside=1)] == ["a"]


@promise
def a_scan_past_suspects_is_bounded(h: Harness) -> None:
    for n in range(9):
        _crash(h, *(f"s{n}-{m}" for m in range(111)), started=2)
    h.dispatch_many("a", "b")
    assert [job.id for job in h.take(limit=9, beside=1)] == ["a"], "the first 1,000 are scanned"


@promise
def a_busy_client_sleeps_while_suspects_are_due(h: Harness) -> None:
    _crash(h, "x")
    h.join("c1")
    taken = h.dequeue("c1", limit=9, waiter="c1", waits=8, beside=1)
    assert (taken.jobs, taken.next_in) == ([], 8)
    assert h.dequeue("c1", limit=0, waiter="c1", waits=8, beside=1).next_in != 0
    assert h.call(h.commands.counts()).waiters == 1
    assert h.dequeue(limit=0, waits=8).next_in == 0, "the suspect is due for an idle client"


@promise
def a_busy_client_sleeps_until_the_next_job_is_due(h: Harness) -> None:
    _crash(h, "x")
    h.join("c1")
    h.dispatch("a", after=3)
    assert h.dequeue("c1", limit=9, waiter="c1", waits=8, beside=1).next_in == 3
    h.later(4)
    assert [job.id for job in h.take("c1", limit=9, beside=1)] == ["a"]


def _wait(h: Harness, *, busy: str, idle: str) -> None:
    """Two waiters: `busy` runs another job, `idle` runs none."""
    h.join(busy, idle)
    for client, beside in ((busy, 1), (idle, 0)):
        assert h.take(client, limit=9, waiter=client, waits=8, beside=beside) == []


def _waiters(h: Harness) -> list[bytes]:
    return h.redis.zrange(h.keys.base + "waiters", 0, -1)


@promise
def a_suspect_that_must_run_alone_wakes_only_an_idle_waiter(h: Harness) -> None:
    _crash(h, "x")
    suspect = h.take_one()
    _wait(h, busy="c1", idle="c2")
    h.end(suspect, Release())
    assert _waiters(h) == [b"c1"]
    h.dispatch("a")
    assert _waiters(h) == []


@promise
def a_suspect_that_may_have_companions_wakes_any_waiter(h: Harness) -> None:
    _crash(h, "x", started=9)
    suspect = h.take_one()
    h.join("c1")
    h.take("c1", limit=9, waiter="c1", waits=8, beside=1)
    h.end(suspect, Release())
    assert _waiters(h) == []


@promise
def a_busy_client_wakes_an_idle_one_for_a_suspect(h: Harness) -> None:
    _crash(h, "x")
    suspect = h.take_one()
    h.end(suspect, Release())
    h.join("c1", "c2")
    h.redis.zadd(h.keys.base + "waiters", {"c2": h.time * 1000 + 8000})
    assert h.take("c1", limit=9, waiter="c1", waits=8, beside=1) == []
    assert _waiters(h) == [b"c1"]


@promise
def a_busy_client_is_woken_in_time_for_the_next_job(h: Harness) -> None:
    """It used to sleep while a suspect was due: jobs and sweeps came seconds late."""
    _crash(h, "x")
    h.join("c1", lease=60)
    assert h.take("c1", limit=9, waiter="c1", waits=8, beside=1) == []
    h.dispatch("a", after=9)
    assert _waiters(h) == [b"c1"]
    h.dispatch("b", after=3)
    assert _waiters(h) == []
    assert h.dequeue("c1", limit=9, waiter="c1", waits=8, beside=1).next_in == 3
    h.dispatch("c", after=4)
    assert _waiters(h) == [b"c1"], "it polls in time itself"
    h.take_one("~pulled", lease=1)
    assert _waiters(h) == [], "because a lease expires"


@promise
def a_client_woken_for_a_due_job_polls_in_time_itself(h: Harness) -> None:
    h.join("c1")
    h.dispatch("a")
    h.dispatch("b", after=3)
    h.redis.zadd(h.keys.base + "waiters", {"c1": h.time * 1000 + 8000})
    h.sweep()
    assert _waiters(h) == [b"c1"]


@promise
def a_busy_client_scans_suspects_once(h: Harness) -> None:
    """One scan past a thousand suspects takes 10 ms of the server."""
    _crash_alone(h)
    h.join("c1")

    def pages() -> int:
        return h.redis.info("commandstats")["cmdstat_hmget"]["calls"]

    for limit in (9, 0):
        before = pages()
        assert h.take("c1", limit=limit, waiter="c1", waits=8, beside=1) == []
        # The settings, as many as the limit, 150 in two pages, the waiters.
        assert pages() - before == 1 + 1 + 2 + 1


@promise
def a_busy_client_polls_again_for_a_job_that_was_too_large(h: Harness) -> None:
    _crash(h, "x")
    h.join("c1")
    for id_ in "abcdefgh":
        h.dispatch(id_, b"1" * 1_000_000)
    taken = h.dequeue("c1", limit=9, beside=1)
    assert 0 < len(taken.jobs) < 8
    assert taken.next_in == 0
