"""Queues that share one worker: who goes first, and that everybody has a turn."""

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
FEW = 8  # what is being taken while the higher jobs come: two looks of four


def test_the_higher_priority_drains_first_and_the_lower_is_not_forgotten(
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


def test_what_comes_with_a_higher_priority_goes_before_a_backlog(
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
    """Runs that were there while one of this queue was, in the same process."""
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


def test_a_job_of_size_100_has_its_turn_beside_a_queue_that_is_never_empty(
    fleet: Fleet, server: Server, prefix: str, sync_client: SyncClient
) -> None:
    worker = fleet.serve("--queue", "whole", "--queue", "small", processes=1)
    over = threading.Event()

    def keep_full() -> None:
        # Of any length, so that there is never a moment at which none runs.
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
    wait_until(lambda: sync_client.queue("small").counts().due == 0, "the rest is done")
    assert worker.stop() == 0


def test_a_job_scheduled_while_the_worker_is_full_starts_when_it_is_due(
    fleet: Fleet, sync_client: SyncClient
) -> None:
    """A worker without room used to forget the queue for eight seconds."""
    worker = fleet.serve("--queue", "high", "--queue", "low", processes=1)
    sync_client.queue("high").dispatch_many([{"sleep": 0.4}] * 8)  # four at a time
    fleet.journal.wait_for("start", 4, queue="high")
    sync_client.queue("low").dispatch({}, delay=1)
    fleet.journal.wait_for("end", 8, queue="high")
    fleet.journal.wait_for("start", queue="low", seconds=5)
    assert worker.stop() == 0


class Both:
    """A queue of large jobs and one of small ones, in one worker; each run waits to be let go."""

    def __init__(self, client: Client) -> None:
        self.big, self.small = client.queue("big"), client.queue("small")
        self.over = defaultdict[int, asyncio.Event](asyncio.Event)
        self.begun: list[int] = []
        self.big.handler(size=60)(self._run)
        self.small.handler(size=1)(self._run)

    async def _run(self, number: int) -> None:
        self.begun.append(number)
        await self.over[number].wait()


async def test_a_job_that_does_not_fit_keeps_no_room_that_it_does_not_need(client: Client) -> None:
    """Nothing of the same priority was started, with half of the worker idle, until it fitted."""
    both = Both(client)
    async with working(client) as worker:
        await both.big.dispatch_many([0, 1])
        await until(partial(starves, worker), "the second has waited for long enough")
        for number in range(100, 110):
            both.over[number].set()
            await both.small.dispatch(number)
            await until(partial(done, both.begun, number), "it runs beside the large one")
        assert 1 not in both.begun
        both.over[0].set()
        await until(partial(done, both.begun, 1), "the other fits now")
        both.over[1].set()
        await until_empty(both.big)


async def test_room_that_comes_free_bit_by_bit_is_kept_for_a_job_that_does_not_fit(
    client: Client,
) -> None:
    both = Both(client)
    async with working(client) as worker:
        await both.small.dispatch_many(range(100, 300))
        await until(partial(enough, both.begun, 100), "the worker is full")
        await both.big.dispatch(0)
        await until(partial(starves, worker), "it has waited for long enough")
        for ended, number in enumerate(both.begun[:100], 1):
            both.over[number].set()
            await until(partial(left, both.small, 200 - ended), "it is told, and another asked for")
        await until(partial(done, both.begun, 0), "it fits now")
        assert len(both.begun) < 201, "the others had a turn, and no more"
        for number in range(300):
            both.over[number].set()
        await until_empty(both.small)


async def starves(worker: Any) -> bool:
    return any(queue.starved for queue in worker._worker.queues)


async def left(queue: Queue, jobs: int) -> bool:
    counts = await queue.counts()
    return counts.due + counts.active == jobs


async def done(these: list[int], number: int) -> bool:
    return number in these


async def enough(these: list[int], count: int) -> bool:
    return len(these) >= count
