"""One id, dispatched by many producers to many workers: one run at a time, the last data wins."""

import itertools
import subprocess
import sys
from contextlib import ExitStack

from queasy import SyncClient
from tests.servers import Server, wait_until
from tests.worker.fleet import ON_ONE_SERVER, ROOT, Fleet

pytestmark = ON_ONE_SERVER
DISPATCHES, PRODUCERS = 10_000, 4
EACH = DISPATCHES // PRODUCERS

PRODUCER = """
import sys
from queasy import SyncClient
url, prefix, name, count = sys.argv[1:]
with SyncClient(url, prefix=prefix) as client:
    queue = client.queue("waits")
    for number in range(int(count)):
        queue.dispatch({"sleep": 0.001, "producer": name, "number": number}, id="same")
"""


def test_one_id_dispatched_ten_thousand_times_never_overlaps_and_the_last_data_wins(
    fleet: Fleet, server: Server, prefix: str, sync_client: SyncClient
) -> None:
    workers = [fleet.serve(processes=2) for _ in range(2)]
    queue = sync_client.queue("waits")
    with ExitStack() as stack:
        producers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", PRODUCER, server.url, prefix, f"{n}", f"{EACH}"],
                    cwd=ROOT,
                )
            )
            for n in range(PRODUCERS)
        ]
        stack.callback(lambda: [producer.kill() for producer in producers])
        assert [producer.wait(60) for producer in producers] == [0] * PRODUCERS

    def drained() -> bool:
        counts = queue.counts()
        return not (counts.due or counts.active or counts.blocked)

    wait_until(drained, "the last dispatch has run")
    runs = [line for line in fleet.journal.lines() if line["event"] in ("start", "end")]
    assert all(line["id"] == "same" for line in runs)
    # Each run ends before the next one starts, in whichever process.
    assert [line["event"] for line in runs] == ["start", "end"] * (len(runs) // 2)
    assert all(before["at"] <= after["at"] for before, after in itertools.pairwise(runs))
    starts = runs[::2]
    assert [(line["pid"], line["token"]) for line in starts] == [
        (line["pid"], line["token"]) for line in runs[1::2]
    ]
    tokens = [line["token"] for line in starts]
    assert tokens == sorted(set(tokens))
    assert 1 < len(starts) < DISPATCHES
    assert len({line["pid"] for line in starts}) > 1, "the test proves nothing if one child ran all"
    # The data of one producer runs in its order, and data that was replaced does not come back.
    for name in map(str, range(PRODUCERS)):
        numbers = [d["number"] for line in starts if (d := line["data"])["producer"] == name]
        assert numbers == sorted(set(numbers))
    assert starts[-1]["data"]["number"] == EACH - 1, "the last data of the producer that was last"

    queue.dispatch({"sleep": 0, "producer": "final", "number": 0}, id="same")
    wait_until(drained, "the final dispatch has run")
    assert fleet.journal.lines("end")[-1]["data"]["producer"] == "final"
    assert [worker.stop() for worker in workers] == [0, 0]
    assert [stat for stat in queue.stats() if stat.kind == "stalled"] == []
