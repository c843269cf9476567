"""Workers stopped and restarted under load: no job is lost or repeated, no retry or stall counted.

`make restarts` does it 200 times.
"""

import random
import re
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import pytest

from queasy import SyncClient
from tests.servers import Server, wait_until
from tests.worker.fleet import ON_ONE_SERVER, Fleet, Running

QUEUES = ("waits", "plain")
WORKERS = 3
PATIENT, HASTY = 20.0, 0.2  # seconds of grace; every job takes less than PATIENT
LONG = 1.5


@dataclass
class Producer:
    """Dispatches until the block ends."""

    server: Server
    prefix: str
    random: random.Random
    ids: list[tuple[str, str]] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        with SyncClient(self.server.url, prefix=self.prefix) as client:
            queues = {name: client.queue(name) for name in QUEUES}
            while not self._over.wait(self.random.uniform(0.0, 0.04)):
                name = self.random.choice(QUEUES)
                self.ids.append((name, queues[name].dispatch(self._data()).id))

    def _data(self) -> object:
        kind = self.random.random()
        if kind < 0.4:
            return "quick"
        if kind < 0.9:
            return {"sleep": self.random.uniform(0, 0.3)}
        return {"sleep": self.random.uniform(0.3, LONG)}

    def __enter__(self) -> "Producer":
        self._thread = threading.Thread(target=self.run)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()


class Restarts:
    """Stops workers at any moment, in any way, and starts others in their place."""

    def __init__(self, fleet: Fleet, generator: random.Random) -> None:
        self._fleet = fleet
        self._random = generator
        self.how: Counter[str] = Counter()
        self.slowest = 0.0
        self.codes: list[tuple[int, str]] = []
        """Exit codes other than 0, with the log."""
        self.patient: list[Running] = []
        """Workers with enough grace for every job."""
        self.running = [self._start() for _ in range(WORKERS)]

    def _start(self) -> tuple[Running, float]:
        grace = self._random.choice((PATIENT, HASTY))
        worker = self._fleet.start("--processes", "2", "--grace", str(grace))
        return worker, grace

    def one(self) -> None:
        number = self._random.randrange(WORKERS)
        worker, grace = self.running[number]
        if self._random.random() < 0.75:
            worker.wait_until_serving(2)
        if not worker.events("process_serving"):
            self.how["before it served"] += 1
        begun = time.monotonic()
        worker.signal(signal.SIGTERM)
        twice = self._random.random() < 0.3
        if twice:
            self.how["twice in a row"] += 1
            time.sleep(self._random.uniform(0, 0.2))
            worker.signal(signal.SIGTERM)
        code = worker.process.wait(60)
        self.slowest = max(self.slowest, time.monotonic() - begun)
        self.how["with a grace of 20 s" if grace == PATIENT else "with a grace of 0.2 s"] += 1
        # The signal came before Python installed its handler: nothing was started yet.
        deaf = code == -signal.SIGTERM and not worker.events("supervisor_started")
        if code and not deaf:
            self.codes.append((code, worker.log))
        if grace == PATIENT and not twice:
            self.patient.append(worker)
        self.running[number] = self._start()
        time.sleep(self._random.uniform(0, 0.5))


@ON_ONE_SERVER
@pytest.mark.timeout(0)
def test_restarts_under_load_lose_nothing_repeat_nothing_and_count_nothing(
    fleet: Fleet,
    server: Server,
    prefix: str,
    sync_client: SyncClient,
    pytestconfig: pytest.Config,
) -> None:
    count = pytestconfig.getoption("--restarts", 12)
    seed = random.Random().randrange(10**6)
    print(f"\n{count} restarts, seed {seed}")
    generator = random.Random(seed)
    started = time.monotonic()
    restarts = Restarts(fleet, generator)
    with Producer(server, prefix, random.Random(seed + 1)) as producer:
        fleet.journal.wait_for("end")
        for number in range(1, count + 1):
            restarts.one()
            if number % 10 == 0:
                minutes = (time.monotonic() - started) / 60
                print(f"  {number} of {count} restarts, {minutes:.1f} minutes", flush=True)
    took = time.monotonic() - started
    queues = [sync_client.queue(name) for name in QUEUES]
    all_counts = lambda: [queue.counts() for queue in queues]  # noqa: E731
    wait_until(
        lambda: all(not (c.due or c.scheduled or c.active) for c in all_counts()), "all is done"
    )
    for worker, _ in restarts.running:
        assert worker.wait_until_serving(2).stop() == 0

    lines = fleet.journal.lines()
    ended = Counter((line["queue"], line["id"]) for line in lines if line["event"] == "end")
    starts = [line for line in lines if line["event"] == "start"]
    finished: set[str] = set()
    again = []
    for line in lines:  # in the order of writing
        if line["event"] == "start" and line["id"] in finished:
            again.append(line)
        elif line["event"] == "end":
            finished.add(line["id"])
    stalled = [stat for queue in queues for stat in queue.stats() if stat.kind == "stalled"]
    print(f"  {took:.0f} s; the slowest stop took {restarts.slowest:.1f} s")
    print("  " + ", ".join(f"{n} {how}" for how, n in sorted(restarts.how.items())))
    interrupted = len(starts) - len(producer.ids)
    print(f"  {len(producer.ids)} jobs, {len(starts)} runs, so {interrupted} interrupted")
    print(f"  lost {len(set(producer.ids) - set(ended))}, run again {len(again)}, "
          f"stalls {sum(stat.count for stat in stalled if stat.minute is None)}, "
          f"cut short {len(cut_short(restarts.patient, lines))}, "
          f"exit codes {Counter(code for code, _ in restarts.codes) or 0}")  # fmt: skip
    assert set(ended) == set(producer.ids)
    assert again == [], [line for line in lines if line["id"] in {one["id"] for one in again}]
    assert stalled == []
    counted = [line for line in starts if line["stalls"] or line["retries"] or line["timeouts"]]
    assert counted == []
    assert cut_short(restarts.patient, lines) == []
    assert restarts.codes == []


def cut_short(workers: list[Running], lines: list[dict[str, object]]) -> list[dict[str, object]]:
    """Runs that did not end although their worker had enough grace."""
    served = "\n".join(line for worker in workers for line in worker.events("process_serving"))
    pids = set(map(int, re.findall(r" pid=(\d+)", served)))
    ended = {(line["id"], line["token"]) for line in lines if line["event"] == "end"}
    return [
        line
        for line in lines
        if line["event"] == "start"
        and line["pid"] in pids
        and (line["id"], line["token"]) not in ended
    ]
