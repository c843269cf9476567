"""Jobs that kill their process: given up in the end, and none of their neighbours with them."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queasy import Dispatch, SyncClient
from queasy.worker.liveness.inflight_table import PASSES_SUSPECTS
from tests.servers import Server, wait_until
from tests.worker.fleet import ON_ONE_SERVER, ROOT, Fleet, Played, Together, totals

pytestmark = ON_ONE_SERVER
together = Together()


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, server: Server) -> Iterator[Played]:
    with together.playing(request, server) as playing:
        yield playing


@together.of(
    exit={"exit": 3},
    segfault={"signal": "SIGSEGV"},
    memory={"bomb": 1000},
)
def test_poison_is_given_up_after_three_deaths_and_nobody_else_is(
    fleet: Fleet, client: SyncClient, case: dict[str, Any]
) -> None:
    queue = client.queue("poison")
    neighbours = [f"neighbour-{n}" for n in range(50)]
    # They are there until it has died, and again where they are not alone the next time.
    died = Path(f"{fleet.journal.path}-died")
    data = {"first": {"until": str(died)}, "then": {"sleep": 0.15}}
    jobs = [Dispatch(data, id=id_) for id_ in neighbours]
    # Behind most of them, whoever takes it: those behind it have not started when it dies.
    queue.dispatch_many([*jobs[:45], Dispatch(case, id="poison"), *jobs[45:]])
    worker = fleet.serve("--queue", "poison", "--max-memory", "200M", processes=2)
    wait_until(lambda: bool(worker.events("process_died")), "the poison has worked")
    died.touch()

    (given_up,) = fleet.journal.wait_for("gave up")
    assert (given_up["id"], given_up["kind"], given_up["stalls"]) == ("poison", "stall", 3)
    starts = fleet.journal.lines("start", id="poison")
    assert [line["stalls"] for line in starts] == [0, 1, 2]
    assert len({line["pid"] for line in starts}) == 3
    if "bomb" in case:
        assert len(worker.events("process_killing")) == 3

    for id_ in neighbours:
        (end,) = fleet.journal.wait_for("end", id=id_)
        assert end["stalls"] <= 1
    # Some of them did die with it, or there was nothing to show.
    first_death = starts[0]["pid"]
    ran_there = {line["id"] for line in fleet.journal.lines("start", pid=first_death)}
    ended_there = {line["id"] for line in fleet.journal.lines("end", pid=first_death)}
    assert len(ran_there - ended_there) > 10

    assert worker.stop() == 0
    assert len(worker.events("process_died")) == 3
    assert [job.id for job in queue.jobs("failed")] == ["poison"]
    assert totals(queue)["finished"] == 50
    assert totals(queue.fail_queue)["finished"] == 1
    assert queue.counts().waiting == queue.counts().active == 0


# 0 is success; the others are what a child says of itself (see exits.py), and common besides.
@together.of(success={"exit": 0}, unfinished={"exit": 75}, lost={"exit": 76}, setup={"exit": 78})
def test_poison_is_given_up_whatever_it_says_at_the_exit(
    fleet: Fleet, client: SyncClient, case: dict[str, Any]
) -> None:
    queue = client.queue("poison")
    worker = fleet.serve("--queue", "poison", processes=1)
    queue.dispatch(case, id="poison")
    # Nobody waits for a lease to run out: that would be three times 9 s.
    (given_up,) = fleet.journal.wait_for("gave up", seconds=15)
    assert (given_up["kind"], given_up["stalls"]) == ("stall", 3)
    assert len(fleet.journal.lines("start", id="poison")) == 3
    assert worker.stop() == 0
    assert totals(queue)["stalled"] == 3


@together
def test_those_that_were_taken_and_had_not_started_are_no_suspects(
    fleet: Fleet, client: SyncClient
) -> None:
    queue = client.queue("waits")
    others = [Dispatch({}, id=f"behind-{n}") for n in range(5)]
    queue.dispatch_many([Dispatch({"first": {"exit": 3}, "then": {}}, id="poison"), *others])
    worker = fleet.serve("--queue", "waits", processes=1)
    ends = fleet.journal.wait_for("end", 6)
    assert {line["id"]: line["stalls"] for line in ends} == {
        "poison": 1, **{other.id: 0 for other in others}
    }  # fmt: skip
    assert worker.stop() == 0


@together
def test_what_others_did_is_reported_before_a_suspect_starts(
    fleet: Fleet, client: SyncClient
) -> None:
    """They ran again with each of its deaths: their worker died before it could report."""
    worker = fleet.serve("--queue", "waits", "--queue", "crowd-0", processes=1)
    poisoned, queue = client.queue("crowd-0"), client.queue("waits")
    poisoned.dispatch({"exit": 3}, id="poison")
    fleet.journal.wait_for("start", id="poison")
    others = [f"other-{n}" for n in range(5)]
    queue.dispatch_many([Dispatch({"sleep": 0.7}, id=id_) for id_ in others])
    wait_until(lambda: bool(poisoned.counts().failed), "the poison is given up")
    for id_ in others:
        fleet.journal.wait_for("end", id=id_)
    assert worker.stop() == 0
    assert sorted(line["id"] for line in fleet.journal.lines("end")) == others
    assert totals(queue)["finished"] == len(others)


@together
def test_suspects_leave_half_of_the_processes_to_everything_else(
    fleet: Fleet, client: SyncClient
) -> None:
    """They held up whatever was due behind them, for as long as they all took one by one."""
    queue, journal = client.queue("poison"), fleet.journal
    worker = fleet.serve("--queue", "poison", processes=2)
    suspects = [f"suspect-{n}" for n in range(12)]
    data = {"first": {"sleep": 60}, "then": {"sleep": 1}}
    queue.dispatch_many([Dispatch(data, id=id_) for id_ in suspects])
    for id_ in suspects:
        journal.wait_for("start", id=id_)
    for pid in worker.children():
        os.kill(pid, signal.SIGKILL)
    others = [f"other-{n}" for n in range(50)]
    for id_ in suspects[:2]:
        journal.wait_for("start", 2, id=id_)
    queue.dispatch_many([Dispatch({}, id=id_) for id_ in others])
    for id_ in others:
        journal.wait_for("end", id=id_)
    assert len([line for line in journal.lines("end") if line["id"] in suspects]) < len(suspects)

    for id_ in suspects:
        (end,) = journal.wait_for("end", id=id_)
        assert end["stalls"] == 1
    runs = [line for line in journal.lines("start") if line["id"] in suspects and line["stalls"]]
    assert len({line["pid"] for line in runs}) == 1
    assert worker.stop() == 0


def _passes(pid: int) -> bool:
    """Whether this child leaves suspects to others, as its table says."""
    table, *_ = [
        file for file in Path(f"/proc/{pid}/fd").iterdir() if "queasy-table" in str(file.readlink())
    ]
    return memoryview(table.read_bytes()).cast("I")[PASSES_SUSPECTS] != 0


def _begin_on(pids: list[int], fleet: Fleet, client: SyncClient, seconds: float) -> None:
    """Jobs that take so long in their first run, until each of these processes has one."""
    queue, journal, sent = client.queue("poison"), fleet.journal, 0
    while not all(journal.lines("start", pid=pid) for pid in pids):
        queue.dispatch({"first": {"sleep": seconds}}, id=f"long-{sent}")
        journal.wait_for("start", id=f"long-{sent}")
        sent += 1


def _kill(pid: int, fleet: Fleet) -> None:
    """And waits until all that had begun there ends elsewhere."""
    journal = fleet.journal
    os.kill(pid, signal.SIGKILL)
    ended = {line["id"] for line in journal.lines("end", pid=pid)}
    suspects = {line["id"] for line in journal.lines("start", pid=pid)} - ended
    assert suspects
    for id_ in suspects:
        (end,) = journal.wait_for("end", id=id_, seconds=20)
        assert end["stalls"] == 1


@together
def test_who_has_nothing_to_do_takes_the_suspects_of_one_whose_runs_take_long(
    fleet: Fleet, client: SyncClient
) -> None:
    """They waited for the longest of those, beside a process that had nothing to do at all."""
    worker = fleet.serve("--queue", "poison", "--grace", "0", processes=2)
    taking, passing = sorted(worker.children(), key=_passes)
    assert (_passes(taking), _passes(passing)) == (False, True)
    _begin_on([taking, passing], fleet, client, 60)
    _kill(passing, fleet)
    assert _passes(taking)
    assert worker.stop() == 0


@together
def test_where_nobody_new_can_start_who_is_there_takes_suspects(
    fleet: Fleet, client: SyncClient
) -> None:
    """Nobody did, until the code was mended."""
    folder = fleet.journal.path.parent
    code = folder / "breaks.py"
    code.write_bytes((ROOT / "tests/worker/app.py").read_bytes())
    worker = fleet.serve("--queue", "poison", processes=2, app="breaks:client", folder=folder)
    taking, _ = sorted(worker.children(), key=_passes)
    _begin_on([taking], fleet, client, 2)
    code.write_text("raise RuntimeError('half of it was copied')\n")
    _kill(taking, fleet)
    assert worker.stop() == 0
