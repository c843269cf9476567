"""Promises about suspects: jobs that ran in a client when it died."""

from queasy.job import JobError
from queasy.options import JobOptions
from queasy.outcomes import Finish, Release, RetryLater, TimedOut
from tests.store.harness import Harness
from tests.store.promise import promise

WHY = JobError(type="Boom", message="it broke")


def _crash(h: Harness, *ids: str) -> None:
    """Suspects: jobs of a client that was evicted as dead."""
    h.join("dead")
    h.dispatch_many(*ids)
    h.take("dead", limit=len(ids))
    _evict_as_dead(h)


def _evict_as_dead(h: Harness) -> None:
    while h.call(h.commands.evict("dead", "stall"))[0] == "more":
        pass


def _batches(h: Harness, limit: int = 9) -> list[str]:
    """Takes and finishes batches until nothing is due; returns the ids of each."""
    batches: list[str] = []
    while jobs := h.take(limit=limit):
        batches.append("".join(job.id for job in jobs))
        assert {h.end(job, Finish()) for job in jobs} == {"finished"}
    return batches


@promise
def a_job_of_a_client_that_died_is_a_suspect(h: Harness) -> None:
    _crash(h, "a", "b")
    assert all(h.row("due", id_).suspect for id_ in "ab")


@promise
def a_suspect_is_leased_alone(h: Harness) -> None:
    h.dispatch_many("a", "b")
    older = h.take(limit=2)
    _crash(h, "x", "y")
    h.dispatch_many("c", "d", "e")
    for job in older:
        h.end(job, Release())
    assert h.waiting() == list("abxycde")
    assert _batches(h) == ["ab", "x", "y", "cde"]


@promise
def a_suspect_is_leased_whatever_the_limit(h: Harness) -> None:
    _crash(h, "x", "y")
    assert _batches(h, limit=1) == ["x", "y"]


@promise
def after_a_suspect_the_reply_says_that_more_is_due(h: Harness) -> None:
    _crash(h, "x", "y")
    h.dispatch_many("a", "b")
    for left in ("yab", "ab"):
        before = h.dump()[":info"]
        taken = h.dequeue(limit=9)
        assert (len(taken.jobs), taken.next_in) == (1, 0)
        assert h.waiting() == list(left)
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
    for suspect in (False, True):
        assert len(h.take(limit=2, lease=5)) == 2
        h.later(6)
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
    _crash(h, "a", "b")
    assert {job.id for job in h.records()} == {"a", "b"}
    h.call(h.commands.requeue("failed", ["a", "b"]))
    assert _batches(h) == ["ab"]
    fail_jobs = h.call(h.fail_commands.dequeue("~f", lease=30, limit=9)).jobs
    assert [job.suspect for job in fail_jobs] == [False, False]


@promise
def only_the_started_jobs_of_a_dead_client_stall(h: Harness) -> None:
    h.join("c1", "c2")
    h.dispatch_many(*"abcd")
    h.take("c1", limit=3)
    h.take_one("c2")
    assert h.call(h.commands.evict("c1", "stall", ["b", "d", "nobody"])) == ("gone", 3)
    jobs = {id_: h.row("due", id_) for id_ in "abc"}
    assert {id_: job.stall_count for id_, job in jobs.items()} == {"a": 0, "b": 1, "c": 0}
    assert [id_ for id_, job in jobs.items() if job.suspect] == ["b"]
    assert h.row("active", "d").client == "c2", "the job belongs to another client"


@promise
def a_repeated_eviction_continues_with_the_same_ids(h: Harness) -> None:
    ids = [f"j{n:03}" for n in range(150)]
    h.join("c1")
    h.dispatch_many(*ids)
    h.take("c1", limit=150)
    started = ids[1::2]
    assert h.call(h.commands.evict("c1", "stall", started)) == ("more", 100)
    assert h.call(h.commands.evict("c1", "stall", started)) == ("gone", 50)
    jobs, _ = h.call(h.commands.jobs("waiting", b"", 1000))
    assert [job.id for job in jobs if job.suspect] == started
    assert [job.id for job in jobs if job.stall_count] == started


# Clients that skip suspects


@promise
def a_client_that_skips_suspects_takes_the_jobs_after_them(h: Harness) -> None:
    ids = [f"s{n}" for n in range(150)]
    _crash(h, *ids)
    h.dispatch_many("a", "b")
    assert [job.id for job in h.take(limit=9, skips_suspects=True)] == ["a", "b"]
    assert h.waiting() == [f"s{n}" for n in range(150)]


@promise
def a_client_that_skips_suspects_stays_within_its_limit(h: Harness) -> None:
    _crash(h, "x")
    h.dispatch_many(*"abcd")
    assert [job.id for job in h.take(limit=3, skips_suspects=True)] == ["a", "b", "c"]
    assert h.waiting() == ["x", "d"]


@promise
def a_suspect_is_recognised_by_its_record_not_by_a_word_in_it(h: Harness) -> None:
    h.dispatch("a")
    why = JobError(type="Boom", message="a suspect word")
    h.end(h.take_one(), RetryLater(why, after=0))
    assert [job.id for job in h.take(limit=9, skips_suspects=True)] == ["a"]


@promise
def a_client_that_skips_suspects_takes_them_when_there_is_nothing_else(h: Harness) -> None:
    h.join("dead")
    for n in range(11):
        h.dispatch_many(*(f"{n}-{m}" for m in range(100)))
    while h.take("dead", limit=1000):
        pass
    _evict_as_dead(h)
    assert len(h.take(limit=9, skips_suspects=True)) == 1


@promise
def a_client_that_skips_suspects_sleeps_while_suspects_are_due(h: Harness) -> None:
    _crash(h, "x")
    h.join("c1")
    taken = h.dequeue("c1", limit=9, waiter="c1", waits=8, skips_suspects=True)
    assert (taken.jobs, taken.next_in) == ([], 8)
    assert h.dequeue("c1", limit=0, waiter="c1", waits=8, skips_suspects=True).next_in != 0
    assert h.call(h.commands.counts()).waiters == 1
    assert h.dequeue(limit=0, waits=8).next_in == 0, "the suspect is due for other clients"


@promise
def a_client_that_skips_suspects_sleeps_until_the_next_job_is_due(h: Harness) -> None:
    _crash(h, "x")
    h.join("c1")
    h.dispatch("a", after=3)
    assert h.dequeue("c1", limit=9, waiter="c1", waits=8, skips_suspects=True).next_in == 3
    h.later(4)
    assert [job.id for job in h.take("c1", limit=9, skips_suspects=True)] == ["a"]


def _wait(h: Harness, *, skipping: str, taking: str) -> None:
    """Two waiters: `skipping` skips suspects, `taking` accepts them."""
    h.join(skipping, taking)
    for client, skips_suspects in ((skipping, True), (taking, False)):
        assert h.take(client, limit=9, waiter=client, waits=8, skips_suspects=skips_suspects) == []


def _waiters(h: Harness) -> list[bytes]:
    return h.redis.zrange(h.keys.base + "waiters", 0, -1)


@promise
def suspects_wake_only_waiters_that_accept_them(h: Harness) -> None:
    _crash(h, "x")
    suspect = h.take_one()
    _wait(h, skipping="c1", taking="c2")
    h.end(suspect, Release())
    assert _waiters(h) == [b"c1"]
    h.dispatch("a")
    assert _waiters(h) == []


@promise
def a_client_that_skips_suspects_wakes_one_that_accepts_them(h: Harness) -> None:
    _crash(h, "x")
    suspect = h.take_one()
    h.end(suspect, Release())
    h.join("c1", "c2")
    h.redis.zadd(h.keys.base + "waiters", {"c2": h.time * 1000 + 8000})
    assert h.take("c1", limit=9, waiter="c1", waits=8, skips_suspects=True) == []
    assert _waiters(h) == [b"c1"]


@promise
def a_client_that_skips_suspects_is_woken_in_time_for_the_next_job(h: Harness) -> None:
    """It used to sleep while a suspect was due: jobs and sweeps came seconds late."""
    _crash(h, "x")
    h.join("c1", lease=60)
    assert h.take("c1", limit=9, waiter="c1", waits=8, skips_suspects=True) == []
    h.dispatch("a", after=9)
    assert _waiters(h) == [b"c1"]
    h.dispatch("b", after=3)
    assert _waiters(h) == []
    assert h.dequeue("c1", limit=9, waiter="c1", waits=8, skips_suspects=True).next_in == 3
    h.dispatch("c", after=4)
    assert _waiters(h) == [b"c1"], "it polls in time itself"
    h.join("c2", lease=1)
    h.sweep()
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
def a_client_that_skips_suspects_scans_them_once(h: Harness) -> None:
    """One scan past a thousand suspects takes 10 ms of the server."""
    ids = [f"s{n}" for n in range(150)]
    h.join("dead", "c1")
    h.dispatch_many(*ids)
    h.take("dead", limit=150)
    while h.call(h.commands.evict("dead", "stall"))[0] == "more":
        pass

    def pages() -> int:
        return h.redis.info("commandstats")["cmdstat_hmget"]["calls"]

    for limit in (9, 0):
        before = pages()
        assert h.take("c1", limit=limit, waiter="c1", waits=8, skips_suspects=True) == []
        assert pages() - before == 1 + 3, "the settings, and 150 in three pages"


@promise
def a_client_that_skips_suspects_polls_again_for_a_job_that_was_too_large(h: Harness) -> None:
    _crash(h, "x")
    h.join("c1")
    for id_ in "abcdefgh":
        h.dispatch(id_, b"1" * 1_000_000)
    taken = h.dequeue("c1", limit=9, skips_suspects=True)
    assert 0 < len(taken.jobs) < 8
    assert taken.next_in == 0
