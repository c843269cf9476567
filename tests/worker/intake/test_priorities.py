"""Queues that share one worker: which is served first, and that each has its turn."""

import asyncio
import random
import threading
from collections import defaultdict
from functools import partial
from typing import Any

from queasy import Client, Queue, SyncClient
from tests.servers import Server, wait_until
from tests.worker.fleet import ON_ONE_SERVER, Fleet
from tests.worker.inline import until, until_empty, working

pytestmark = ON_ONE_SERVER
FEW = 8  # jobs of lower priority already taken when the higher ones come: two dequeues of four


def test_higher_priority_drains_first_and_then_the_lower_one(
    fleet: Fleet, sync_client: SyncClient
) -> None:
    high, low = sync_client.queue("high"), sync_client.queue("low")
    low.dispatch_many([{"sleep": 0.02}] * 100)
    high.dispatch_many([{"sleep": 0.02}] * 60)
    worker = fleet.serve("--queue", "high", "--queue", "low", processes=1)
    fleet.journal.wait_for("end", 100, queue="low")
    starts = [line["queue"] for line in fleet.journal.lines("start")]
    last_high = len(starts) - starts[::-1].index("high")
    assert starts[:last_high].count("low") <= FEW
    assert len(fleet.journal.lines("end", queue="high")) == 60
    assert worker.stop() == 0


def test_new_jobs_of_higher_priority_run_before_a_backlog(
    fleet: Fleet, sync_client: SyncClient
) -> None:
    high, low = sync_client.queue("high"), sync_client.queue("low")
    worker = fleet.serve("--queue", "high", "--queue", "low", processes=1)
    low.dispatch_many([{"sleep": 0.02}] * 150)
    fleet.journal.wait_for("start", 5, queue="low")
    high.dispatch_many([{"sleep": 0.02}] * 40)
    (first, *_) = fleet.journal.wait_for("end", 40, queue="high")
    starts = [line for line in fleet.journal.lines("start") if line["at"] >= first["at"]]
    last_high = max(n for n, line in enumerate(starts) if line["queue"] == "high")
    assert sum(line["queue"] == "low" for line in starts[:last_high]) <= FEW
    fleet.journal.wait_for("end", 150, queue="low")
    assert worker.stop() == 0


def overlapping(lines: list[dict[str, Any]], queue: str) -> list[tuple[Any, Any]]:
    """Pairs of a run of this queue and another run in the same process at the same time."""
    runs = {
        (line["pid"], line["token"], line["queue"], line["id"]): line["at"]
        for line in lines
        if line["event"] == "start"
    }
    spans = [
        (*run, runs[run], line["at"])
        for line in lines
        if line["event"] == "end"
        and (run := (line["pid"], line["token"], line["queue"], line["id"])) in runs
    ]
    alone = [span for span in spans if span[2] == queue]
    assert alone
    return [
        (one, other)
        for one in alone
        for other in spans
        if other is not one and other[0] == one[0] and other[4] < one[5] and one[4] < other[5]
    ]


def test_jobs_of_size_100_and_of_size_1_share_a_worker(
    fleet: Fleet, sync_client: SyncClient
) -> None:
    whole, small = sync_client.queue("whole"), sync_client.queue("small")
    small.dispatch_many([{"sleep": 0.05}] * 300)
    whole.dispatch_many([{"sleep": 0.1}] * 5)
    worker = fleet.serve("--queue", "whole", "--queue", "small", processes=1)
    fleet.journal.wait_for("end", 300, queue="small")
    fleet.journal.wait_for("end", 5, queue="whole")
    assert overlapping(fleet.journal.lines(), "whole") == []
    assert worker.stop() == 0


def test_job_of_size_100_runs_although_another_queue_is_never_empty(
    fleet: Fleet, server: Server, prefix: str, sync_client: SyncClient
) -> None:
    worker = fleet.serve("--queue", "whole", "--queue", "small", processes=1)
    over = threading.Event()

    def keep_full() -> None:
        # Of random length, so that there is never a moment at which no job runs.
        lengths = random.Random(1)
        with SyncClient(server.url, prefix=prefix) as client:
            small = client.queue("small")
            while not over.is_set():
                if small.counts().due < 100:
                    small.dispatch_many({"sleep": lengths.uniform(0.2, 0.8)} for _ in range(100))
                over.wait(0.02)

    load = threading.Thread(target=keep_full)
    load.start()
    try:
        fleet.journal.wait_for("end", 150, queue="small")
        whole = sync_client.queue("whole")
        for turn in (1, 2):
            whole.dispatch({"sleep": 0.1})
            fleet.journal.wait_for("end", turn, queue="whole", seconds=8)
            done = len(fleet.journal.lines("end", queue="small"))
            fleet.journal.wait_for("end", done + 50, queue="small", seconds=8)
            assert sync_client.queue("small").counts().due > 0
    finally:
        over.set()
        load.join()
    assert overlapping(fleet.journal.lines(), "whole") == []
    wait_until(lambda: sync_client.queue("small").counts().due == 0, "the small jobs are done")
    assert worker.stop() == 0


def test_job_scheduled_while_the_worker_is_full_starts_when_it_is_due(
    fleet: Fleet, sync_client: SyncClient
) -> None:
    """Bug: a worker without room did not poll the queue for eight seconds."""
    worker = fleet.serve("--queue", "high", "--queue", "low", processes=1)
    sync_client.queue("high").dispatch_many([{"sleep": 0.4}] * 8)  # four at a time
    fleet.journal.wait_for("start", 4, queue="high")
    sync_client.queue("low").dispatch({}, delay=1)
    fleet.journal.wait_for("end", 8, queue="high")
    fleet.journal.wait_for("start", queue="low", seconds=5)
    assert worker.stop() == 0


class TwoQueues:
    """A queue of large jobs and one of small jobs. Job n runs until `may_end[n]` is set."""

    def __init__(self, client: Client) -> None:
        self.big, self.small = client.queue("big"), client.queue("small")
        self.may_end = defaultdict[int, asyncio.Event](asyncio.Event)
        self.started: list[int] = []
        self.big.handler(size=60)(self._run)
        self.small.handler(size=1)(self._run)

    async def _run(self, number: int) -> None:
        self.started.append(number)
        await self.may_end[number].wait()


async def test_starved_job_reserves_no_more_room_than_it_needs(client: Client) -> None:
    """Bug: until the large job fitted, no job of its priority started in a half idle worker."""
    queues = TwoQueues(client)
    async with working(client) as worker:
        await queues.big.dispatch_many([0, 1])
        await until(partial(starves, worker), "the second large job is starved")
        for number in range(100, 110):
            queues.may_end[number].set()
            await queues.small.dispatch(number)
            await until(
                partial(done, queues.started, number), "the small job runs beside the large one"
            )
        assert 1 not in queues.started
        queues.may_end[0].set()
        await until(partial(done, queues.started, 1), "the second large job fits now")
        queues.may_end[1].set()
        await until_empty(queues.big)


async def test_room_that_comes_free_unit_by_unit_is_reserved_for_a_starved_job(
    client: Client,
) -> None:
    queues = TwoQueues(client)
    async with working(client) as worker:
        await queues.small.dispatch_many(range(100, 300))
        await until(partial(enough, queues.started, 100), "the worker is full")
        await queues.big.dispatch(0)
        await until(partial(starves, worker), "the large job is starved")
        for ended, number in enumerate(queues.started[:100], 1):
            queues.may_end[number].set()
            await until(partial(left, queues.small, 200 - ended), "the outcome is reported")
        await until(partial(done, queues.started, 0), "the large job fits now")
        assert len(queues.started) < 201, "not all small jobs ran before the large one"
        for number in range(300):
            queues.may_end[number].set()
        await until_empty(queues.small)


async def starves(worker: Any) -> bool:
    return any(queue.starved for queue in worker._worker.queues)


async def left(queue: Queue, jobs: int) -> bool:
    counts = await queue.counts()
    return counts.due + counts.active == jobs


async def done(these: list[int], number: int) -> bool:
    return number in these


async def enough(these: list[int], count: int) -> bool:
    return len(these) >= count
