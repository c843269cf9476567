"""Poison jobs, which kill their process, and suspects, the jobs that ran in a process that died.

A poison job is given up in the end. The jobs that ran beside it are not, and suspects do not delay
other jobs.
"""

import itertools
import math
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queasy import Dispatch, JobOptions, SyncClient
from queasy.sync import SyncQueue
from tests.servers import Server, wait_until
from tests.worker.fleet import ON_ONE_SERVER, ROOT, Fleet, Played, Together, totals

pytestmark = ON_ONE_SERVER
together = Together()
RUNS = re.compile(r"\bruns=(\d+)")


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, server: Server) -> Iterator[Played]:
    with together.playing(request, server) as playing:
        yield playing


@together.of(
    exit={"exit": 3},
    segfault={"signal": "SIGSEGV"},
    memory={"bomb": 1000},
)
def test_poison_job_is_given_up_after_three_deaths_alone_and_its_neighbours_are_not(
    fleet: Fleet, client: SyncClient, case: dict[str, Any]
) -> None:
    queue = client.queue("poison")
    neighbours = [f"neighbour-{n}" for n in range(50)]
    # The first run of a neighbour lasts until the process has died. The next run is long enough to
    # overlap the run of the poison job, if the worker does not isolate that.
    died = Path(f"{fleet.journal.path}-died")
    data = {"first": {"until": str(died)}, "then": {"sleep": 0.15}}
    jobs = [Dispatch(data, id=id_) for id_ in neighbours]
    # Most neighbours precede the poison job. Those that follow it have not started when it dies.
    queue.dispatch_many([*jobs[:45], Dispatch(case, id="poison"), *jobs[45:]])
    worker = fleet.serve("--queue", "poison", "--max-memory", "200M", processes=2)
    wait_until(lambda: bool(worker.events("process_died")), "the poison job has killed its process")
    died.touch()

    (given_up,) = fleet.journal.wait_for("gave up")
    assert (given_up["id"], given_up["kind"], given_up["stalls"]) == ("poison", "stall", 3)
    for id_ in neighbours:
        # Two, if the process died after the end of its run, and before the report.
        ends = fleet.journal.wait_for("end", id=id_)
        assert {line["stalls"] for line in ends} == {0}
    starts = fleet.journal.lines("start", id="poison")
    # Each process that died ran at most half as many jobs as the one before; the last three one.
    together = [int(n) for line in worker.events("process_died") for n in RUNS.findall(line)]
    assert together[-3:] == [1, 1, 1]
    for before, after in itertools.pairwise(together):
        assert after <= math.ceil(before / 2)
    assert [line["stalls"] for line in starts] == [0] * (len(together) - 3) + [0, 1, 2]
    assert len({line["pid"] for line in starts}) == len(together)
    if "bomb" in case:
        assert len(worker.events("process_killing")) == len(together)

    # Unless neighbours ran in the process that died first, the test shows nothing.
    first_death = starts[0]["pid"]
    ran_there = {line["id"] for line in fleet.journal.lines("start", pid=first_death)}
    ended_there = {line["id"] for line in fleet.journal.lines("end", pid=first_death)}
    assert len(ran_there - ended_there) > 10

    assert worker.stop() == 0
    assert [job.id for job in queue.jobs("failed")] == ["poison"]
    assert totals(queue)["finished"] == 50
    assert totals(queue.fail_queue)["finished"] == 1
    assert queue.counts().waiting == queue.counts().active == 0


# 0 is success. The others (temporary failure, protocol error, bad configuration) are common codes
# that a supervisor could mistake for an exit of the child's own accord.
@together.of(
    success={"exit": 0}, temporary={"exit": 75}, protocol={"exit": 76}, config={"exit": 78}
)
def test_poison_job_is_given_up_whatever_its_exit_code(
    fleet: Fleet, client: SyncClient, case: dict[str, Any]
) -> None:
    queue = client.queue("poison")
    worker = fleet.serve("--queue", "poison", processes=1)
    queue.dispatch(case, id="poison")
    # 15 s: shorter than the three leases of 9 s that would pass if the jobs waited for expiry.
    (given_up,) = fleet.journal.wait_for("gave up", seconds=15)
    assert (given_up["kind"], given_up["stalls"]) == ("stall", 3)
    assert len(fleet.journal.lines("start", id="poison")) == 3
    assert worker.stop() == 0
    assert totals(queue)["stalled"] == 3


@together
def test_jobs_taken_but_not_started_in_a_process_that_died_are_not_suspects(
    fleet: Fleet, client: SyncClient
) -> None:
    queue = client.queue("waits")
    others = [Dispatch({}, id=f"next-{n}") for n in range(5)]
    queue.dispatch_many([Dispatch({"first": {"exit": 3}, "then": {}}, id="poison"), *others])
    worker = fleet.serve("--queue", "waits", processes=1)
    ends = fleet.journal.wait_for("end", 6)
    assert {line["id"]: line["stalls"] for line in ends} == {
        "poison": 1, **{other.id: 0 for other in others}
    }  # fmt: skip
    assert worker.stop() == 0


@together
def test_outcomes_of_other_jobs_are_reported_before_a_suspect_starts(
    fleet: Fleet, client: SyncClient
) -> None:
    """Bug: a suspect killed the worker before it had reported them, and those jobs ran again."""
    worker = fleet.serve("--queue", "waits", "--queue", "crowd-0", processes=1)
    poisoned, queue = client.queue("crowd-0"), client.queue("waits")
    poisoned.dispatch({"exit": 3}, id="poison")
    fleet.journal.wait_for("start", id="poison")
    others = [f"other-{n}" for n in range(5)]
    queue.dispatch_many([Dispatch({"sleep": 0.7}, id=id_) for id_ in others])
    wait_until(lambda: bool(poisoned.counts().failed), "the poison job is given up")
    for id_ in others:
        fleet.journal.wait_for("end", id=id_)
    assert worker.stop() == 0
    assert sorted(line["id"] for line in fleet.journal.lines("end")) == others
    assert totals(queue)["finished"] == len(others)


@together
def test_job_that_kills_its_process_after_its_handler_returned_is_given_up(
    fleet: Fleet, client: SyncClient
) -> None:
    """Bug: it was not in the table any more. It ran again and again, and was never counted."""
    queue = client.queue("waits")
    worker = fleet.serve("--queue", "waits", processes=1)
    queue.dispatch({"exit_after": 1}, id="poison", options=JobOptions(max_stalls=2))
    wait_until(lambda: bool(queue.counts().failed), "the poison job is given up", 15)
    (failed,) = queue.jobs("failed")
    assert (failed.id, failed.stall_count) == ("poison", 2)
    assert len(fleet.journal.lines("end", id="poison")) == 2
    assert worker.stop() == 0


@together
def test_job_whose_process_died_before_its_outcome_was_reported_runs_again(
    fleet: Fleet, client: SyncClient
) -> None:
    worker = fleet.serve("--queue", "waits", processes=1)
    client.queue("waits").dispatch({"first": {"exit_after": 1}, "then": {}}, id="job")
    _, again = fleet.journal.wait_for("end", 2, id="job")
    assert again["stalls"] == 1
    assert worker.stop() == 0


@together
def test_jobs_of_a_process_that_died_run_again_in_groups(fleet: Fleet, client: SyncClient) -> None:
    """Bug: each ran alone, one after the other. One crash with many runs cost minutes."""
    queue, journal = client.queue("waits"), fleet.journal
    worker = fleet.serve("--queue", "waits", "--capacity", "400", processes=1)
    jobs = [f"job-{n}" for n in range(40)]
    data = {"first": {"sleep": 60}, "then": {"sleep": 1}}
    queue.dispatch_many([Dispatch(data, id=id_) for id_ in jobs])
    for id_ in jobs:
        journal.wait_for("start", id=id_)
    (pid,) = worker.children()
    os.kill(pid, signal.SIGKILL)
    # Two groups of twenty, for a second each. One by one would take 40 seconds.
    wait_until(lambda: len(journal.lines("end")) == len(jobs), "all have run again", 15)
    assert {line["stalls"] for line in journal.lines("end")} == {0}
    runs = [journal.lines(event, id=id_)[-1] for id_ in jobs for event in ("start", "end")]
    running = most = 0
    for line in sorted(runs, key=lambda line: line["at"]):
        running += 1 if line["event"] == "start" else -1
        most = max(most, running)
    assert 10 < most <= 20
    assert worker.stop() == 0


@together
def test_larger_groups_of_suspects_run_before_smaller_ones(
    fleet: Fleet, client: SyncClient
) -> None:
    """Bug: the oldest group ran down to single jobs, while larger groups waited."""
    journal, jobs = fleet.journal, [f"job-{n}" for n in range(8)]
    client.queue("waits").dispatch_many([Dispatch({"sleep": 60}, id=id_) for id_ in jobs])
    worker = fleet.serve("--queue", "waits", "--grace", "0", processes=1)
    groups: list[list[str]] = []
    gone: set[int] = set()
    for size in (8, 4, 4):
        wait_until(lambda: bool(set(worker.children()) - gone), "another process has started")
        (pid,) = set(worker.children()) - gone
        journal.wait_for("start", size, pid=pid)
        groups.append(sorted(line["id"] for line in journal.lines("start", pid=pid)))
        os.kill(pid, signal.SIGKILL)
        gone.add(pid)
    assert groups == [jobs, jobs[:4], jobs[4:]], "not two of the four jobs that ran when it died"
    assert worker.stop() == 0


@together
def test_busy_worker_leaves_a_suspect_to_others_and_runs_the_jobs_after_it(
    fleet: Fleet, client: SyncClient
) -> None:
    queue, journal = client.queue("waits"), fleet.journal
    _make_suspect(queue, {"sleep": 0.2})
    worker = fleet.serve("--queue", "waits", "--queue", "crowd-0", processes=1)
    client.queue("crowd-0").dispatch({"sleep": 60}, id="long")
    journal.wait_for("start", id="long")
    queue.resume()
    for n in range(3):
        queue.dispatch({"sleep": 0.1}, id=f"other-{n}")
        journal.wait_for("end", id=f"other-{n}", seconds=15)
    assert [job.id for job in queue.jobs("due")] == ["suspect"]
    client.queue("crowd-0").cancel("long", running=True)
    journal.wait_for("end", id="suspect")
    assert len(journal.lines("start", id="suspect")) == 1
    assert worker.stop() == 0


@together
def test_suspect_gets_its_turn_in_a_worker_that_is_never_idle(
    fleet: Fleet, client: SyncClient
) -> None:
    """A stream of other jobs, of which some always run, does not delay it for ever."""
    queue, journal = client.queue("waits"), fleet.journal
    _make_suspect(queue, {"sleep": 0.2})
    worker = fleet.serve("--queue", "waits", "--queue", "crowd-0", processes=1)
    others = [Dispatch({"sleep": 0.3 + n % 10 / 10}) for n in range(1000)]
    client.queue("crowd-0").dispatch_many(others)
    journal.wait_for("end", 20)
    queue.resume()
    (run,) = journal.wait_for("start", id="suspect", seconds=20)
    (end,) = journal.wait_for("end", id="suspect")
    overlapping = [line for line in journal.lines() if run["at"] < line["at"] < end["at"]]
    assert overlapping == [], "it ran alone"
    assert len(journal.lines("end")) < len(others)
    journal.wait_for("end", len(others) + 1)
    assert worker.stop() == 0


def _make_suspect(queue: SyncQueue, data: Any) -> None:
    """A job that must run alone, as if its process had died while it ran, in a paused queue."""
    queue.dispatch(data, id="suspect")
    assert queue.lease() is not None
    (held,) = queue.jobs("active")
    queue.evict(held.client)
    (suspect,) = queue.jobs("due")
    assert suspect.companions == 0
    queue.pause()


def _start_a_long_run_in_each(
    pids: list[int], fleet: Fleet, client: SyncClient, seconds: float
) -> None:
    """Dispatch jobs with a first run of this length until each process has started one."""
    queue, journal, sent = client.queue("poison"), fleet.journal, 0
    while not all(journal.lines("start", pid=pid) for pid in pids):
        queue.dispatch({"first": {"sleep": seconds}}, id=f"long-{sent}")
        journal.wait_for("start", id=f"long-{sent}")
        sent += 1


def _kill_and_wait_for_its_suspects(pid: int, fleet: Fleet) -> None:
    """Kill a process and wait until the jobs that ran in it have ended in another one."""
    journal = fleet.journal
    os.kill(pid, signal.SIGKILL)
    ended = {line["id"] for line in journal.lines("end", pid=pid)}
    suspects = {line["id"] for line in journal.lines("start", pid=pid)} - ended
    assert suspects
    for id_ in suspects:
        (end,) = journal.wait_for("end", id=id_, seconds=20)
        assert end["stalls"] == (1 if len(suspects) == 1 else 0)


@together
def test_idle_process_takes_suspects_instead_of_a_process_with_a_long_run(
    fleet: Fleet, client: SyncClient
) -> None:
    """Bug: the suspects waited for the longest run to end, although another process was idle."""
    worker = fleet.serve("--queue", "poison", "--grace", "0", processes=2)
    one, other = worker.children()
    _start_a_long_run_in_each([one, other], fleet, client, 60)
    _kill_and_wait_for_its_suspects(other, fleet)
    assert worker.stop() == 0


@together
def test_remaining_process_takes_suspects_if_no_new_process_can_start(
    fleet: Fleet, client: SyncClient
) -> None:
    """Bug: no process took the suspects until the application could be imported again."""
    folder = fleet.journal.path.parent
    code = folder / "breaks.py"
    code.write_bytes((ROOT / "tests/worker/app.py").read_bytes())
    worker = fleet.serve("--queue", "poison", processes=2, app="breaks:client", folder=folder)
    one, _ = worker.children()
    _start_a_long_run_in_each([one], fleet, client, 2)
    code.write_text("raise RuntimeError('only half of the file was copied')\n")
    _kill_and_wait_for_its_suspects(one, fleet)
    assert worker.stop() == 0


def test_suspect_does_not_block_a_worker_with_a_long_run(
    fleet: Fleet, sync_client: SyncClient
) -> None:
    """Bug: the suspect was deferred until the long run had ended, and so were all other jobs."""
    crashing = fleet.serve("--queue", "poison", processes=1)
    sync_client.queue("poison").dispatch({"first": {"sleep": 60}, "then": {}}, id="suspect")
    fleet.journal.wait_for("start", id="suspect")
    fleet.serve("--queue", "waits", "--queue", "poison", "--queue", "plain", processes=1)
    sync_client.queue("waits").dispatch({"sleep": 60}, id="long")
    fleet.journal.wait_for("start", id="long")
    assert len(crashing.children()) == 1
    crashing.signal(signal.SIGSTOP)  # else it starts a process that could take the suspect
    sync_client.queue("poison").evict(_client_of(sync_client), died=True)
    for name in ("plain", "poison"):
        sync_client.queue(name).dispatch({}, id=f"other-{name}")
        fleet.journal.wait_for("end", id=f"other-{name}", seconds=15)
    assert not fleet.journal.lines("end", id="long")
    assert not fleet.journal.lines("end", id="suspect")


def _client_of(client: SyncClient) -> str:
    (holder,) = [info.id for info in client.queue("poison").clients() if info.leases]
    return holder
