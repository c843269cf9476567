"""Promises about plain jobs, which have only a payload and finish at their first run.

Most jobs are plain. The library writes them in bulk, and keeps the same promises.
"""

import math
import re
import struct
from typing import Any

from queasy.job import JobError
from queasy.outcomes import Finish, Release, RetryLater
from queasy.store.library import source
from queasy.store.records import DispatchItem, Ending
from tests.store.harness import Harness, endings_of, refused
from tests.store.promise import promise

MANY = [f"job{number:02}" for number in range(40)]


def server(h: Harness) -> Any:
    """A connection for what no command of the library shows."""
    return h.redis


@promise
def a_plain_finish_with_a_stale_token_changes_nothing(h: Harness) -> None:
    h.join("c1")
    h.dispatch()
    stale = h.take_one("c1")
    assert h.end(stale, Release()) == "released"
    fresh = h.take_one("c1")
    before = h.dump()
    assert h.end(stale, Finish()) == "lost"
    assert h.dump() == before
    assert h.end(fresh, Finish()) == "finished"


@promise
def a_plain_lease_ends_once_and_leaves_nothing(h: Harness) -> None:
    h.join("c1")
    h.dispatch_many("a", "b")
    jobs = h.take("c1", limit=2)
    endings = endings_of([*jobs, *jobs], Finish())
    assert h.call(h.commands.settle(endings)) == ["finished", "finished", "lost", "lost"]
    assert h.left() == {":clients"}


@promise
def a_plain_finish_leaves_nothing_of_an_earlier_attempt(h: Harness) -> None:
    h.join("c1")
    h.dispatch()
    assert h.end(h.take_one("c1"), RetryLater(JobError("E", "no"), after=0)) == "retried"
    job = h.take_one("c1")
    assert job.retry_count == 1
    assert h.end(job, Finish()) == "finished"
    assert h.left() == {":clients"}


@promise
def a_cancelled_run_that_finishes_leaves_no_cancel_request(h: Harness) -> None:
    h.join("c1")
    h.dispatch()
    job = h.take_one("c1")
    h.cancel("a", running=True)
    assert h.end(job, Finish()) == "finished"
    assert h.left() == {":clients"}


@promise
def a_held_dispatch_becomes_a_new_job_when_a_plain_run_finishes(h: Harness) -> None:
    h.join("c1")
    h.dispatch()
    job = h.take_one("c1")
    assert h.dispatch(payload=b"2") == "blocked"
    assert h.end(job, Finish()) == "finished"
    assert h.take_one("c1").payload == b"2"


@promise
def a_plain_dispatch_may_occur_twice_in_a_batch(h: Harness) -> None:
    items = [DispatchItem("a", b"1"), DispatchItem("b", b"2"), DispatchItem("a", b"3")]
    absent = DispatchItem("a", b"4", flags="1t11")
    done = h.call(h.commands.dispatch([*items, absent]))
    assert [one.status for one in done] == ["created", "created", "updated", "exists"]
    assert h.waiting() == ["a", "b"]
    assert [job.payload for job in h.take(limit=2)] == [b"3", b"2"]


@promise
def a_plain_dispatch_may_occur_twice_in_a_large_batch(h: Harness) -> None:
    first = [DispatchItem(id_, b"1") for id_ in MANY]
    later = [DispatchItem("job07", b"2", "+5000"), DispatchItem("job09", b"3")]
    done = h.call(h.commands.dispatch([*first, *later]))
    assert [one.status for one in done] == ["created"] * 40 + ["updated"] * 2
    assert h.waiting() == [*(id_ for id_ in MANY if id_ != "job07"), "job07"]
    assert (h.row("scheduled", "job07").payload, h.row("due", "job09").payload) == (b"2", b"3")


@promise
def a_scheduled_dispatch_may_occur_twice_in_a_batch(h: Harness) -> None:
    first = [DispatchItem(id_, b"1", "+5000") for id_ in MANY]
    later = [DispatchItem("job07", b"2", "+9000"), DispatchItem("job09", b"3", "")]
    done = h.call(h.commands.dispatch([*first, *later]))
    assert [one.status for one in done] == ["created"] * 40 + ["updated"] * 2
    others = [id_ for id_ in MANY if id_ not in {"job07", "job09"}]
    assert h.waiting() == ["job09", *others, "job07"]
    jobs = [h.row("scheduled", id_) for id_ in ("job06", "job07")] + [h.row("due", "job09")]
    assert [job.payload for job in jobs] == [b"1", b"2", b"3"]
    assert [h.due_in(job) for job in jobs] == [5, 9, 0]
    assert [round(job.dispatched_at.timestamp() - h.time, 2) for job in jobs] == [0, 0, 0]


@promise
def a_scheduled_dispatch_wakes_no_waiter(h: Harness) -> None:
    h.join("c1", "c2")
    for client in ("c1", "c2"):
        assert h.take(client, waiter=client, waits=4.0) == []
    h.call(h.commands.dispatch([DispatchItem(id_, b"1", "+50000") for id_ in MANY]))
    assert h.call(h.commands.counts()).waiters == 2


@promise
def a_refused_finish_changes_nothing(h: Harness) -> None:
    """Nor does it delete values it has not read: the infos, and then the payloads."""
    h.join("c1")
    h.dispatch()
    assert h.end(h.take_one("c1"), RetryLater(JobError("E", "no"), after=0)) == "retried"
    job = h.take_one("c1")
    before = h.dump()
    data = h.keys.base + "data"
    server(h).rename(data, data + "-of-before")
    server(h).set(data, "junk")
    with refused("expected a hash"):
        h.end(job, Finish())
    server(h).rename(data + "-of-before", data)
    assert h.dump() == before
    assert h.end(job, Finish()) == "finished"


@promise
def the_runs_of_a_large_batch_keep_their_times(h: Harness) -> None:
    """The server stores one of them in a longer form."""
    h.join("c1")
    h.dispatch_many(*"abcdefgh")
    before = {job.id: job.run_at for job in h.call(h.commands.jobs("waiting", b"", 100))[0]}
    jobs = h.take("c1", limit=8)
    assert {job.id: h.row("active", job.id).run_at for job in jobs} == before
    assert h.call(h.commands.settle(endings_of(jobs, Release()))) == ["released"] * 8
    assert h.waiting() == list("abcdefgh")


@promise
def many_leases_are_stored_as_a_table_without_the_long_entry(h: Harness) -> None:
    h.join("c1")
    h.dispatch_many(*MANY)
    jobs = h.take("c1", limit=40)
    h.audit()
    assert server(h).object("ENCODING", h.keys.base + "leases") == b"skiplist"
    assert server(h).object("ENCODING", h.keys.base + "active") == b"hashtable"
    assert server(h).zcard(h.keys.base + "leases") == 40
    h.dequeue("c1", endings=endings_of(jobs, Finish()))
    assert h.left() == {":clients"}


@promise
def many_jobs_are_stored_as_tables_without_the_long_entry(h: Harness) -> None:
    h.dispatch_many(*MANY)
    h.call(h.commands.dispatch([DispatchItem(f"later {id_}", b"1", "+60000") for id_ in MANY]))
    h.audit()
    for name, size, table in (
        ("waiting", 80, b"skiplist"),
        ("data", 80, b"hashtable"),
        ("info", 40, b"hashtable"),
    ):
        key = h.keys.base + name
        assert server(h).object("ENCODING", key) == table
        assert (server(h).zcard if name == "waiting" else server(h).hlen)(key) == size


@promise
def a_job_may_have_the_long_entry_as_its_id(h: Harness) -> None:
    long = "-" * 72
    assert f"local LONG_ENTRY = '{long}'" in source()
    h.join("c1")
    assert h.dispatch_many(long, *MANY) == ["created"] * 41
    assert h.dispatch_many(*MANY) == ["updated"] * 40
    assert h.waiting() == [long, *MANY]
    job = h.take_one("c1")
    assert (job.id, job.payload) == (long, long.encode())
    h.dispatch_many(*MANY)
    h.audit()
    assert h.end(job, Release()) == "released"
    assert h.take_one("c1").payload == long.encode()


@promise
def many_leases_end_each_by_its_own_token(h: Harness) -> None:
    """Leases of other clients, with a requested cancel, or of a single lease, among plain ones."""
    h.join("c1", "c2")
    h.dispatch_many(*MANY)
    mine, others, one = h.take("c1", limit=30), h.take("c2", limit=5), h.take_one()
    h.cancel("job03", running=True)
    h.dispatch("job05", b"held")
    stale = [Ending(job.id, job.token + 1, Finish()) for job in mine[10:20]]
    endings = [*endings_of(mine[:10], Finish()), *stale, *endings_of([*others, one], Finish())]
    taken = h.dequeue("c1", endings=[*endings, *endings[:2]])
    assert taken.settled == ["finished"] * 10 + ["lost"] * 10 + ["finished"] * 6 + ["lost"] * 2
    assert server(h).hlen(h.keys.base + "active") == 20 + 1
    assert [job.id for job in taken.jobs] == ["job36"]
    assert h.waiting() == ["job37", "job38", "job39", "job05"]
    h.audit()


@promise
def an_infinite_dispatch_time_is_not_a_time(h: Harness) -> None:
    h.join("c1")
    for id_ in "abc":
        h.dispatch(id_, after=1.5)
    assert len(server(h).hget(h.keys.base + "info", "a") or b"") == 24
    never = b"\x81\xaddispatched_at\xcb" + struct.pack(">d", math.inf)
    server(h).hset(h.keys.base + "info", "a", never)
    server(h).hset(h.keys.base + "info", "b", never[:-8] + struct.pack(">d", math.nan))
    h.later(2)
    assert [job.id for job in h.take("c1", limit=3)] == ["c"]
    assert {job.id for job in h.records("broken")} == {"a", "b"}


@promise
def the_counters_of_an_older_queue_are_stored_as_a_table(h: Harness) -> None:
    for number in range(3):
        h.dispatch(str(number))
        h.later(60)
    stats = h.keys.base + "stats"
    assert server(h).object("ENCODING", stats) == b"hashtable"
    names = {name.decode() for name in server(h).hkeys(stats)}
    assert {re.sub(r"^\d+", "N", name) for name in names} == {
        "total:dispatched", "minute:dispatched", "count:dispatched", "N:dispatched",
    }  # fmt: skip
    assert len(names) == 5


@promise
def a_client_that_got_a_job_is_not_a_waiter(h: Harness) -> None:
    h.join("c1", "c2")
    h.dispatch("a", after=30)
    for client in ("c1", "c2"):
        assert not h.dequeue(client, waiter=client, waits=60).jobs
    assert set(server(h).zrange(h.keys.base + "waiters", 0, -1)) == {b"c1", b"c2"}
    h.later(31)
    assert h.take("c1", waiter="c1", waits=60)
    assert set(server(h).zrange(h.keys.base + "waiters", 0, -1)) <= {b"c2"}


@promise
def the_leases_of_one_client_are_listed_in_pages(h: Harness) -> None:
    h.join("c1", "c2")
    h.dispatch_many("a", "b:c", "d", "e")
    jobs, [other] = h.take("c1", limit=3), h.take("c2")
    first, cursor = h.call(h.commands.leases("c1", b"", 2))
    rest, end = h.call(h.commands.leases("c1", cursor, 2))
    assert first + rest == [(job.id, job.token) for job in jobs]
    assert end == b""
    assert h.call(h.commands.leases("c2", b"", 2)) == ([(other.id, other.token)], b"")
    assert h.call(h.commands.leases("unknown", b"", 2)) == ([], b"")
