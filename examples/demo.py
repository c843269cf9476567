"""The main job, on the embedded server: every promise below is checked, not just printed."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import uvloop

from queasy import Client, Dispatch, JobOptions, Queue

JOBS = 3000
PULLERS = 20


class Summary:
    """Prints what was promised beside what happened, and remembers whether they agree."""

    def __init__(self) -> None:
        self.broken = 0

    def check(self, promise: str, got: object, expected: object) -> None:
        kept = got == expected
        self.broken += not kept
        print(
            f"  {'ok ' if kept else 'NO '} {promise}: {got}"
            + ("" if kept else f", expected {expected}")
        )


async def timed(what: str, jobs: int, work: Callable[[], Awaitable[object]]) -> None:
    start = time.perf_counter()
    await work()
    took = time.perf_counter() - start
    print(f"      {what}: {jobs} jobs in {took:.2f} s, {jobs / took:,.0f} a second")


async def pull_all(queue: Queue, seen: Counter[str]) -> None:
    """Pulls until nothing comes any more; every tenth job fails once and is retried."""
    while lease := await queue.lease(seconds=30, timeout=0):
        if lease.data["n"] % 10 == 0 and lease.job.retry_count == 0:
            await lease.retry(after=0, error="the first try fails")
        elif await lease.complete():
            seen[lease.job.id] += 1


async def ordinary_jobs(queue: Queue, summary: Summary) -> None:
    print("\nDispatch and pull")
    await timed("dispatch_many", JOBS, lambda: queue.dispatch_many({"n": n} for n in range(JOBS)))
    await timed(
        "dispatch, concurrently",
        JOBS,
        lambda: asyncio.gather(*(queue.dispatch({"n": n}) for n in range(JOBS))),
    )
    seen: Counter[str] = Counter()
    await timed(
        f"lease and complete, {PULLERS} at once", 2 * JOBS,
        lambda: asyncio.gather(*(pull_all(queue, seen) for _ in range(PULLERS))),
    )  # fmt: skip
    summary.check("jobs completed", len(seen), 2 * JOBS)
    summary.check("jobs completed more than once", sum(n > 1 for n in seen.values()), 0)


async def one_id(queue: Queue, summary: Summary) -> None:
    print("\nOne id: update, hold behind a run, cancel")
    await queue.dispatch({"version": 1}, id="report", delay=3600)
    again = await queue.dispatch({"version": 2}, id="report", update_run_at="if_earlier")
    summary.check("a second dispatch of an id", again.status, "updated")
    lease = await queue.lease(seconds=30, timeout=1)
    assert lease is not None
    summary.check("the data that runs", lease.data, {"version": 2})
    held = await queue.dispatch({"version": 3}, id="report")
    summary.check("a dispatch while it runs", held.status, "blocked")
    summary.check("others who could take it now", await queue.lease(seconds=1, timeout=0), None)
    summary.check("first to complete", await lease.complete(), True)
    summary.check("second to complete", await lease.complete(), False)
    async with queue.lease(seconds=30) as after:
        assert after is not None
        summary.check("what runs after it", after.data, {"version": 3})
    await queue.dispatch({}, id="never", delay=60)
    summary.check("cancelled", await queue.cancel("never"), True)


async def on_time(queue: Queue, summary: Summary) -> None:
    print("\nSchedule, wait without polling, expire, give up")
    start = time.monotonic()
    await queue.dispatch_many([Dispatch({"at": n}, delay=0.1 * n) for n in (3, 1, 2)])
    order: list[int] = []
    for _ in range(3):
        async with queue.lease(seconds=30) as lease:
            assert lease is not None
            early = time.monotonic() - start < 0.1 * lease.data["at"]
            order.append(-1 if early else lease.data["at"])
    summary.check("scheduled jobs, in the order of their times and never early", order, [1, 2, 3])

    await queue.dispatch({}, id="dropped")
    stale = await queue.lease(seconds=0.2)
    fresh = await queue.lease(seconds=30, timeout=5)
    assert stale is not None
    assert fresh is not None
    summary.check("a lease that ran out goes to the next", fresh.job.stall_count, 1)
    summary.check("whoever had it before completes", await stale.complete(), False)
    await fresh.complete()

    await queue.configure(fail_handler=True)
    await queue.dispatch({"doomed": True}, id="doomed", options=JobOptions(max_retries=0))
    doomed = await queue.lease(seconds=30)
    assert doomed is not None
    await doomed.retry(error="no luck")
    summary.check("without retries left", doomed.ended, "failed")
    async with queue.fail_queue.lease(seconds=30) as failure:
        assert failure is not None
        assert failure.job.origin is not None
        summary.check("its fail job names it", failure.job.origin.id, "doomed")
    summary.check("requeued from the failed record", await queue.requeue("doomed"), 1)
    async with queue.lease(seconds=30) as again:
        assert again is not None


async def main() -> int:
    summary = Summary()
    with tempfile.TemporaryDirectory(prefix="queasy-demo-") as folder:
        async with Client(folder=folder) as client:
            queue = client.queue("demo")
            for part in (ordinary_jobs, one_id, on_time):
                await part(queue, summary)
            print("\nAfterwards")
            counts = await queue.counts()
            summary.check("jobs left", counts.waiting + counts.active + counts.blocked, 0)
            summary.check(
                "faults the audit finds", await queue.audit() + await queue.fail_queue.audit(), []
            )
    if summary.broken:
        print(f"\n{summary.broken} promises were broken!")
    else:
        print("\nEvery promise was kept.")
    return 1 if summary.broken else 0


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
