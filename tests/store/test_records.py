"""Jobs as the client reads them from the server's replies."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from queasy.job import NOT_CANCELLED, Job
from queasy.operation import run_operation_sync
from queasy.operations import evict
from queasy.options import JobOptions
from queasy.store.commands import QueueCommands
from tests.store.harness import START, Harness

LIMITS = JobOptions(max_retries=7, timeout=60)


def test_a_requested_cancel_shows_on_the_job_of_the_holder(h: Harness) -> None:
    h.dispatch_many("a", "b")
    a, b = h.take(limit=2)
    assert "cancelled" not in repr(a)
    a.flag.on = True
    assert (a.cancelled, b.cancelled, NOT_CANCELLED.on) == (True, False, False)
    assert "cancelled=True" in repr(a)


def test_a_row_says_whether_a_cancel_was_requested(h: Harness) -> None:
    h.dispatch_many("a", "b")
    held = h.take(limit=2)
    h.cancel("a", running=True)
    assert h.row("active", "a").cancelled
    assert h.row("active", "b").flag is NOT_CANCELLED
    assert h.row("active", "a") == held[0], "expected the same job"


def test_a_leased_job_carries_the_options_in_force(h: Harness) -> None:
    commands = QueueCommands(h.keys, limits=LIMITS)
    h.dispatch("plain")
    h.dispatch("own", options=JobOptions(timeout=5, max_stalls=1))
    plain, own = h.call(commands.dequeue("~x", lease=30, limit=2)).jobs
    assert plain.options is LIMITS
    assert own.options == JobOptions(max_retries=7, timeout=5, max_stalls=1)
    (row,) = h.call(commands.get("own"))
    assert row.options == JobOptions(timeout=5, max_stalls=1), "a row has the job's own options"


def test_without_limits_a_job_carries_its_own_options(h: Harness) -> None:
    h.dispatch("plain")
    h.dispatch("own", options=JobOptions(timeout=5))
    assert [job.options for job in h.take(limit=2)] == [JobOptions(), JobOptions(timeout=5)]


def test_a_leased_job_has_the_time_of_its_lease(h: Harness) -> None:
    h.dispatch("a")
    assert h.row("due").leased_at is None
    h.later(5)
    leased_at = h.take_one().leased_at
    assert leased_at is not None
    assert abs((leased_at - datetime.fromtimestamp(START + 5, UTC)).total_seconds()) < 0.001


@pytest.mark.parametrize("token", [0, 1, 10**13, 10**18, 10**400])
def test_a_token_out_of_range_gives_no_lease_time(token: int) -> None:
    job = Job(id="a", queue="q", state="active", payload=b"")
    assert msgspec.structs.replace(job, token=token).leased_at is None


@pytest.mark.parametrize(
    ("died", "jobs", "companions", "stalls"),
    [(True, 150, 74, 0), (True, 1, 0, 1), (False, 150, None, 0), (True, 1100, 549, 0)],
)
def test_eviction_makes_suspects_of_all_jobs_of_a_client_that_died(
    h: Harness, died: bool, jobs: int, companions: int | None, stalls: int
) -> None:
    h.join("c1")
    for first in range(0, jobs, 1000):
        h.dispatch_many(*(f"j{n:04}" for n in range(first, min(first + 1000, jobs))))
        h.take("c1", limit=1000)
    store: Any = SimpleNamespace(run=h.call, closings=0)
    assert run_operation_sync(store, evict(h.commands, "c1", died=died)) == jobs
    found, _ = h.call(h.commands.jobs("waiting", b"", 1000))
    assert {job.companions for job in found} == {companions}
    assert {job.stall_count for job in found} == {stalls}
    assert h.call(h.commands.counts()).waiting == jobs


@pytest.mark.parametrize("info", [{"options": {"max_retries": 1e30}}, {"origin": {"token": "abc"}}])
def test_invalid_record_does_not_affect_other_jobs_of_its_batch(
    h: Harness, info: dict[str, Any]
) -> None:
    """Bug: it raised after the server had leased the batch, so that no job of the batch ran."""
    h.dispatch_many("good", "odd", "too")
    h.redis.hset(h.keys.base + "info", "odd", msgspec.msgpack.encode(info))
    jobs = {job.id: job.readable for job in h.take(limit=3)}
    assert jobs == {"good": True, "odd": False, "too": True}


def test_a_scheduled_job_has_the_time_of_its_dispatch(h: Harness) -> None:
    """The fast path for scheduled jobs reads it too, and skips records that only look alike."""
    h.dispatch("plain", after=10)
    h.dispatch("retried", after=10)
    alike = msgspec.msgpack.encode({"dispatched_as": START * 1000})
    h.redis.hset(h.keys.base + "info", "retried", alike)
    h.later(11)
    jobs = {job.id: job for job in h.take(limit=2)}
    rows = {id_: h.row("active", id_) for id_ in jobs}
    assert {id_: job.dispatched_at_epoch for id_, job in jobs.items()} == {
        "plain": pytest.approx(START, abs=0.001),
        "retried": rows["retried"].run_at_epoch,
    }
    for id_, job in jobs.items():
        assert job.dispatched_at_epoch == rows[id_].dispatched_at_epoch
        assert job.run_at_epoch == rows[id_].run_at_epoch
