"""The supervisor returns the jobs of a process that died, however many they are."""

import math
from typing import Any

import pytest

from queasy import Client, Dispatch, InvalidInput
from queasy.options import JobOptions
from queasy.outcomes import TimedOut
from queasy.store.records import DispatchItem, Ending
from queasy.store.store import AsyncStore
from queasy.worker.lease_times import DEFAULT_TIMES
from queasy.worker.liveness.inflight_table import Entry
from queasy.worker.plan import Place
from queasy.worker.supervision.child_state import run_key
from queasy.worker.supervision.messages import Planned
from queasy.worker.supervision.recovery import GoneChild, recover_jobs
from tests.servers import Server

JOBS = 1100
NOTHING_LISTENS = "redis://127.0.0.1:1"


async def _take_all(client: Client, store: AsyncStore, place: Place) -> list[Entry]:
    """More runs of one worker than one call may name."""
    await client.queue("q").dispatch_many([Dispatch(n, id=f"job-{n}") for n in range(JOBS)])
    commands = place.commands("q", fail=False)
    await store.run(commands.register("c1", 30))
    entries: list[Entry] = []
    for request in ("1", "2"):
        taken = await store.run(commands.dequeue("c1", lease=30, limit=1000, request=request))
        entries += [Entry(0, job.id, job.token, 1.0, 2.0) for job in taken.jobs]
    assert len(entries) == JOBS
    return entries


@pytest.mark.parametrize(
    ("overdue", "state", "expected"),
    [
        (False, "due", {"companions": math.ceil(JOBS / 2) - 1, "stall_count": 0}),
        (True, "scheduled", {"companions": None, "timeout_count": 1}),
    ],
    ids=["suspects", "overdue"],
)
async def test_more_than_a_thousand_runs_of_a_dead_process_come_back_at_once(
    server: Server,
    prefix: str,
    client: Client,
    overdue: bool,
    state: Any,
    expected: dict[str, Any],
) -> None:
    """Bug: the server refused the call, and the jobs came back only when their lease ran out."""
    queue = client.queue("q")
    planned = Planned(server.url, prefix, 10.0, None, [("q", False)])
    store = planned.place.store()
    try:
        runs = await _take_all(client, store, planned.place)
        child = GoneChild(
            lease=DEFAULT_TIMES.lease,
            client="c1", planned=planned, runs=runs, runs_are_suspect=not overdue,
            timed_out=frozenset(map(run_key, runs)) if overdue else frozenset(),
            held=frozenset({0}),
        )  # fmt: skip
        assert await recover_jobs(store, child) == JOBS
    finally:
        await store.close()
    assert (await queue.counts()).waiting == JOBS
    async for job in queue.jobs(state):
        assert {name: getattr(job, name) for name in expected} == expected


async def test_large_jobs_of_a_dead_process_are_given_up_in_several_calls(
    server: Server, prefix: str, client: Client
) -> None:
    """The supervisor does not know how large they are, and the server refuses more than 2 MiB."""
    jobs = 7
    planned = Planned(server.url, prefix, 10.0, None, [("q", False)])
    store, commands = planned.place.store(), planned.place.commands("q", fail=False)
    try:
        limits = JobOptions(max_timeouts=1)
        await store.run(commands.configure(limits=limits, fail_handler=True))
        await store.run(commands.register("c1", 30))
        items = [DispatchItem(f"job-{n}", bytes(2**20)) for n in range(jobs)]
        await store.run(commands.dispatch(items))
        runs: list[Entry] = []
        for request in ("1", "2"):
            taken = await store.run(commands.dequeue("c1", lease=30, limit=9, request=request))
            runs += [Entry(0, job.id, job.token, 1.0, 2.0) for job in taken.jobs]
        endings = [Ending(entry.id, entry.token, TimedOut()) for entry in runs]
        with pytest.raises(InvalidInput, match="2097152 bytes"):
            await store.run(commands.settle(endings))
        child = GoneChild(
            lease=DEFAULT_TIMES.lease,
            client="c1", planned=planned, runs=runs, runs_are_suspect=False,
            timed_out=frozenset(map(run_key, runs)), held=frozenset({0}),
        )  # fmt: skip
        assert await recover_jobs(store, child) == jobs
    finally:
        await store.close()
    assert (await client.queue("q").counts()).failed == jobs


async def test_only_queues_of_which_jobs_may_have_been_held_are_logged_as_not_returned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Bug: each queue was, also if the process had never reached the server."""
    for name in ("RETRY_FOR", "RETRY_FOR_IF_NOTHING_HELD"):
        monkeypatch.setattr(f"queasy.worker.supervision.recovery.{name}", 0.0)
    planned = Planned(NOTHING_LISTENS, "p", 1.0, None, [("held", False), ("idle", False)])
    store = planned.place.store()
    for held, lines in ((frozenset({0}), 1), (frozenset[int](), 0)):
        caplog.clear()
        child = GoneChild(
            lease=DEFAULT_TIMES.lease,
            client="c1", planned=planned, runs=[], runs_are_suspect=True, timed_out=frozenset(),
            held=held,
        )  # fmt: skip
        assert await recover_jobs(store, child) == 0
        assert caplog.text.count("jobs_not_returned") == lines
    await store.close()
