"""Promises about dispatch: upsert, singleton ids, held dispatches, cancel."""

import msgspec

from queasy.job import JobError
from queasy.options import JobOptions
from queasy.outcomes import Fail, Finish, Release, RetryLater
from queasy.store.records import DispatchItem, pack_options
from tests.store.harness import Harness
from tests.store.promise import promise

WHY = JobError(type="Boom", message="it broke")


def _retried(h: Harness) -> None:
    """A job 'a' that was retried once and is due again."""
    h.dispatch(payload=b"1", options=JobOptions(max_retries=7))
    h.end(h.take_one(), RetryLater(WHY, after=1))
    h.later(2)


# A waiting id


@promise
def a_dispatch_replies_with_its_status(h: Harness) -> None:
    assert h.dispatch() == "created"
    assert h.dispatch(payload=b"2") == "updated"
    assert h.dispatch(flags="0f00") == "unchanged"
    h.take_one()
    assert h.dispatch() == "blocked"


@promise
def data_is_updated_only_on_request(h: Harness) -> None:
    h.dispatch(payload=b"1", after=60)
    assert h.dispatch(payload=b"2", after=60, flags="0f00") == "unchanged"
    assert h.row("scheduled").payload == b"1"
    assert h.dispatch(payload=b"3", after=60, flags="1f00") == "updated"
    assert h.row("scheduled").payload == b"3"


@promise
def run_at_is_updated_always_never_if_later_or_if_earlier(h: Harness) -> None:
    for mode, at, expected in [
        ("t", 50, 50), ("t", 200, 200), ("f", 50, 100), ("f", 200, 100),
        ("l", 50, 100), ("l", 200, 200), ("e", 50, 50), ("e", 200, 100),
    ]:  # fmt: skip
        h.dispatch(at=h.time + 100)
        status = h.dispatch(at=h.time + at, flags=f"0{mode}00")
        assert h.due_in(h.row("scheduled")) == expected, (mode, at)
        assert status == ("unchanged" if expected == 100 else "updated"), (mode, at)
        h.cancel("a")


@promise
def each_option_is_updated_on_its_own(h: Harness) -> None:
    h.dispatch(options=JobOptions(max_retries=1, max_stalls=2, timeout=3), after=60)
    one = frozenset({"max_stalls"})
    h.dispatch(options=JobOptions(max_retries=9, max_stalls=8), update=one, flags="0f00")
    assert h.row("scheduled").options == JobOptions(max_retries=1, max_stalls=8, timeout=3)
    cleared = frozenset({"timeout"})
    assert h.dispatch(options=JobOptions(), update=cleared, flags="0f00") == "updated"
    assert h.row("scheduled").options == JobOptions(max_retries=1, max_stalls=8)
    assert h.dispatch(options=JobOptions(), update=cleared, flags="0f00") == "unchanged"


@promise
def counts_are_reset_only_on_request(h: Harness) -> None:
    _retried(h)
    h.dispatch(payload=b"2", flags="1f00")
    kept = h.row("due")
    assert (kept.retry_count, kept.error) == (1, WHY)
    assert h.dispatch(flags="0f10") == "updated"
    reset = h.row("due")
    assert (reset.retry_count, reset.error, reset.payload) == (0, None, b"2")
    assert reset.options == JobOptions(max_retries=7)
    assert h.dispatch(flags="0f10") == "unchanged"


@promise
def an_update_keeps_the_time_of_the_first_dispatch(h: Harness) -> None:
    h.dispatch(after=60)
    first = h.row("scheduled").dispatched_at_epoch
    h.later(5)
    h.dispatch(payload=b"2", after=90)
    assert h.row("scheduled").dispatched_at_epoch == first
    h.dispatch()
    assert h.row("due").dispatched_at_epoch == first


@promise
def only_if_absent_leaves_an_existing_job_unchanged(h: Harness) -> None:
    assert h.dispatch(payload=b"1", flags="1t11") == "created"
    assert h.dispatch(payload=b"2", after=60, flags="1t11") == "exists"
    run = h.take_one()
    assert run.payload == b"1"
    assert h.dispatch(payload=b"3", flags="1t11") == "exists"
    h.end(run, Finish())
    assert h.left() == set()


@promise
def only_if_absent_leaves_a_held_dispatch_unchanged(h: Harness) -> None:
    h.dispatch(payload=b"1")
    run = h.take_one()
    assert h.dispatch(payload=b"2", after=60) == "blocked"
    before = h.row("blocked")
    assert h.dispatch(payload=b"3", flags="1t11") == "exists"
    assert h.row("blocked") == before
    h.end(run, Finish())
    assert h.row("scheduled").payload == b"2"


@promise
def only_if_waiting_makes_a_scheduled_job_due_and_keeps_the_rest(h: Harness) -> None:
    h.dispatch(payload=b"1", options=JobOptions(max_retries=7))
    h.end(h.take_one(), RetryLater(WHY, after=60))
    before = h.row("scheduled")
    assert h.dispatch(payload=b"2", flags="0t02") == "updated"
    job = h.row("due")
    assert (job.payload, job.retry_count, job.error) == (b"1", 1, WHY)
    assert job.options == JobOptions(max_retries=7)
    assert job.dispatched_at_epoch == before.dispatched_at_epoch
    assert h.due_in(job) == 0
    assert h.dispatch(payload=b"2", flags="0t02") == "unchanged"


@promise
def only_if_waiting_neither_creates_nor_holds(h: Harness) -> None:
    assert h.dispatch(flags="0t02") == "absent"
    assert h.left() == set()
    h.dispatch()
    run = h.take_one()
    assert h.dispatch(flags="0t02") == "active"
    assert set(h.rows()) == {"active"}
    h.dispatch(payload=b"2", after=60)
    assert h.dispatch(flags="0t02") == "active"
    assert h.due_in(h.row("blocked")) == 60
    h.end(run, Finish())
    assert h.row("scheduled").payload == b"2"


@promise
def a_due_job_keeps_its_place_when_it_is_dispatched_again(h: Harness) -> None:
    h.dispatch_many("a", "b")
    h.later(1)
    assert h.dispatch("a", b"new") == "updated"
    assert h.waiting() == ["a", "b"]
    assert h.dispatch("a", at=h.time - 100, flags="0e00") == "unchanged"
    assert h.waiting() == ["a", "b"]


@promise
def an_id_may_occur_twice_in_one_batch(h: Harness) -> None:
    items = [DispatchItem("a", b"1"), DispatchItem("b", b"2"), DispatchItem("a", b"3", "+60000")]
    done = h.call(h.commands.dispatch(items))
    assert [one.status for one in done] == ["created", "created", "updated"]
    assert h.row("scheduled").payload == b"3"
    assert h.waiting() == ["b", "a"]


@promise
def an_empty_error_counts_as_none(h: Harness) -> None:
    h.dispatch()
    run = h.take_one()
    empty = b"\x81\xa5error\x80"
    call = h.commands.settle([])
    words = ("retry", "a", str(run.token), empty)
    h.call(msgspec.structs.replace(call, args=words))
    job = h.row("scheduled")
    assert (job.readable, job.error, job.retry_count) == (True, None, 1)


# An active id


@promise
def a_held_dispatch_becomes_a_new_job_when_the_run_finishes(h: Harness) -> None:
    for outcome in (Finish(), Fail(WHY)):
        _retried(h)
        run = h.take_one()
        h.later(1)
        accepted = h.time
        h.dispatch(payload=b"2", at=h.time + 60, options=JobOptions(max_stalls=9), flags="0f00")
        h.later(1)
        h.end(run, outcome)
        job = h.row("scheduled")
        assert (job.payload, job.retry_count, job.error) == (b"2", 0, None)
        assert job.options == JobOptions(max_stalls=9)
        assert (job.dispatched_at_epoch, h.due_in(job)) == (accepted, 59)
        h.cancel("a")


@promise
def a_held_dispatch_is_applied_to_a_retried_job_by_its_flags(h: Harness) -> None:
    _retried(h)
    run = h.take_one()
    h.dispatch(
        payload=b"2", after=600, flags="0f00", options=JobOptions(max_stalls=9), update=False
    )
    h.end(run, RetryLater(WHY, after=60))
    job = h.row("scheduled")
    assert (job.payload, job.retry_count, h.due_in(job)) == (b"1", 2, 60)
    assert job.options == JobOptions(max_retries=7)

    h.later(61)
    run = h.take_one()
    h.dispatch(payload=b"3", at=h.time + 600, flags="1t10", options=JobOptions(max_stalls=9))
    h.end(run, RetryLater(WHY, after=60))
    job = h.row("scheduled")
    assert (job.payload, job.retry_count, job.error) == (b"3", 0, None)
    assert job.options == JobOptions(max_retries=7, max_stalls=9)
    assert h.due_in(job) == 600


@promise
def a_held_dispatch_is_applied_to_a_released_or_stalled_job(h: Harness) -> None:
    h.dispatch(payload=b"1")
    run = h.take_one()
    h.dispatch(payload=b"2")
    h.end(run, Release())
    assert h.take_one(lease=5).payload == b"2"
    h.dispatch(payload=b"3")
    h.later(6)
    h.sweep()
    assert h.take_one().payload == b"3"


@promise
def further_dispatches_merge_into_the_held_one(h: Harness) -> None:
    h.dispatch(payload=b"1")
    run = h.take_one()
    h.dispatch(payload=b"2", at=h.time + 100, options=JobOptions(max_retries=1))
    h.dispatch(payload=b"3", at=h.time + 50, flags="0l00", options=JobOptions(max_stalls=2))
    h.dispatch(payload=b"4", at=h.time + 70, flags="0e00")
    held = h.row("blocked")
    assert (held.payload, h.due_in(held)) == (b"2", 70)
    assert held.options == JobOptions(max_retries=1, max_stalls=2)
    h.dispatch(payload=b"5", at=h.time + 500, flags="1f00")
    h.end(run, Finish())
    job = h.row("scheduled")
    assert (job.payload, h.due_in(job)) == (b"5", 70)


@promise
def merged_flags_compose_when_the_run_is_retried(h: Harness) -> None:
    for first, then in [
        (("l", 100), ("e", 80)), (("e", 80), ("l", 100)), (("l", 100), ("l", 200)),
        (("e", 200), ("e", 100)), (("l", 50), ("t", 70)), (("t", 70), ("l", 90)),
        (("t", 70), ("f", 10)), (("e", 80), ("f", 10)),
    ]:  # fmt: skip
        for retried_in in (10, 150):
            _retried(h)
            run = h.take_one()
            h.dispatch(payload=b"2", at=h.time + first[1], flags=f"0{first[0]}00")
            h.dispatch(payload=b"3", at=h.time + then[1], flags=f"0{then[0]}10")
            h.dispatch(payload=b"4", flags="1f00")
            h.end(run, RetryLater(WHY, at=h.time + retried_in))
            job = h.row("scheduled")
            assert h.due_in(job) == _moved(_moved(retried_in, *first), *then)
            assert (job.payload, job.retry_count) == (b"4", 0)
            h.cancel("a")


def _moved(run_at: float, mode: str, to: float) -> float:
    return {"t": to, "f": run_at, "l": max(run_at, to), "e": min(run_at, to)}[mode]


@promise
def a_batch_may_hold_and_merge_at_once(h: Harness) -> None:
    h.dispatch(payload=b"1")
    run = h.take_one()
    options = pack_options(JobOptions(max_retries=4), update=True)
    items = [DispatchItem("a", b"2", "+1000", "", options), DispatchItem("a", b"3", "", "1f00")]
    assert [one.status for one in h.call(h.commands.dispatch(items))] == ["blocked", "blocked"]
    h.end(run, Finish())
    job = h.row("scheduled")
    assert (job.payload, job.options) == (b"3", JobOptions(max_retries=4))


# Cancel


@promise
def cancel_removes_a_waiting_job_completely(h: Harness) -> None:
    h.dispatch_many("a", "b")
    h.dispatch("c", after=60, options=JobOptions(max_retries=1))
    assert h.cancel("a", "c", "a", "nobody") == ["cancelled", "cancelled", "absent", "absent"]
    assert h.waiting() == ["b"]
    h.cancel("b")
    assert h.left() == set()


@promise
def cancel_drops_a_held_dispatch_and_leaves_the_run_alone(h: Harness) -> None:
    h.dispatch()
    run = h.take_one()
    assert h.cancel("a") == ["active"]
    h.dispatch(payload=b"2")
    assert h.cancel("a") == ["cancelled"]
    assert set(h.rows()) == {"active"}
    assert h.end(run, Finish()) == "finished"
    assert h.left() == set()


@promise
def a_cancel_request_reaches_the_holder_until_the_run_has_ended(h: Harness) -> None:
    h.join("c1")
    h.dispatch()
    run = h.take_one("c1")
    assert h.cancel("a", running=True) == ["requested"]
    assert h.cancel("a", running=True) == ["requested"]
    for _ in range(2):
        [(state, asked)] = h.call(h.commands.bump(["c1"], 30)).clients
        assert (state, [(one.id, one.token) for one in asked]) == ("ok", [("a", run.token)])
    assert [one.id for one in h.dequeue("c1").cancels] == ["a"]
    assert h.call(h.commands.extend("a", run.token, 30)) == "cancel"
    assert h.row("active").cancelled
    assert h.end(run, Finish()) == "finished"
    assert h.call(h.commands.bump(["c1"], 30)).clients == [("ok", [])]


@promise
def a_run_with_a_requested_cancel_never_returns_to_the_queue(h: Harness) -> None:
    for outcome in (Release(), RetryLater(WHY)):
        h.dispatch()
        run = h.take_one()
        h.cancel("a", running=True)
        assert h.end(run, outcome) == "cancelled"
        assert h.left() == set()
    h.dispatch()
    h.take_one(lease=5)
    h.cancel("a", running=True)
    h.later(6)
    assert h.sweep() == 1
    assert h.left() == set()
