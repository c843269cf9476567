"""Poison jobs, which kill their process, and suspects, the jobs that ran in a process that died.

A poison job is given up in the end. The jobs that ran beside it are not, and suspects do not delay
other jobs.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queasy import Dispatch, SyncClient
from queasy.worker.liveness.inflight_table import SKIPS_SUSPECTS
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
def test_poison_job_is_given_up_after_three_deaths_and_its_neighbours_are_not(
    fleet: Fleet, client: SyncClient, case: dict[str, Any]
) -> None:
    queue = client.queue("poison")
    neighbours = [f"neighbour-{n}" for n in range(50)]
    # The first run of a neighbour lasts until the process has died. The next run is long enough to
    # overlap the runs of other suspects, if the worker does not isolate them.
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
    starts = fleet.journal.lines("start", id="poison")
    assert [line["stalls"] for line in starts] == [0, 1, 2]
    assert len({line["pid"] for line in starts}) == 3
    if "bomb" in case:
        assert len(worker.events("process_killing")) == 3

    for id_ in neighbours:
        (end,) = fleet.journal.wait_for("end", id=id_)
        assert end["stalls"] <= 1
    # Unless neighbours ran in the process that died first, the test shows nothing.
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
def test_suspects_leave_half_of_the_processes_to_other_jobs(
    fleet: Fleet, client: SyncClient
) -> None:
    """Bug: suspects, which run one by one, delayed all jobs due after them until the last ended."""
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


def _passes_suspects(pid: int) -> bool:
    """Whether the in-flight table of this child says that it leaves suspects to other processes."""
    table, *_ = [
        file for file in Path(f"/proc/{pid}/fd").iterdir() if "queasy-table" in str(file.readlink())
    ]
    return memoryview(table.read_bytes()).cast("I")[SKIPS_SUSPECTS] != 0


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
        assert end["stalls"] == 1


@together
def test_idle_process_takes_suspects_instead_of_a_process_with_a_long_run(
    fleet: Fleet, client: SyncClient
) -> None:
    """Bug: the suspects waited for the longest run to end, although another process was idle."""
    worker = fleet.serve("--queue", "poison", "--grace", "0", processes=2)
    taking, passing = sorted(worker.children(), key=_passes_suspects)
    assert (_passes_suspects(taking), _passes_suspects(passing)) == (False, True)
    _start_a_long_run_in_each([taking, passing], fleet, client, 60)
    _kill_and_wait_for_its_suspects(passing, fleet)
    assert _passes_suspects(taking)
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
    taking, _ = sorted(worker.children(), key=_passes_suspects)
    _start_a_long_run_in_each([taking], fleet, client, 2)
    code.write_text("raise RuntimeError('only half of the file was copied')\n")
    _kill_and_wait_for_its_suspects(taking, fleet)
    assert worker.stop() == 0


def test_suspect_does_not_block_a_worker_with_a_long_run(
    fleet: Fleet, sync_client: SyncClient
) -> None:
    """Bug: the suspect was deferred until the long run had ended, and so were all other jobs."""
    crashing = fleet.serve("--queue", "poison", processes=1)
    sync_client.queue("poison").dispatch({"first": {"sleep": 60}, "then": {}}, id="suspect")
    fleet.journal.wait_for("start", id="suspect")
    busy = fleet.serve("--queue", "waits", "--queue", "poison", "--queue", "plain", processes=1)
    sync_client.queue("waits").dispatch({"sleep": 30}, id="long")
    fleet.journal.wait_for("start", id="long")
    assert len(crashing.children()) == 1
    crashing.signal(signal.SIGSTOP)  # else it starts a process that could take the suspect
    sync_client.queue("poison").evict(_client_of(sync_client), died=True)
    wait_until(lambda: bool(busy.events("job_released")), "the busy worker releases the suspect")
    sync_client.queue("plain").dispatch({}, id="other")
    fleet.journal.wait_for("end", id="other", seconds=15)
    assert not fleet.journal.lines("end", id="long")


def _client_of(client: SyncClient) -> str:
    (holder,) = [info.id for info in client.queue("poison").clients() if info.leases]
    return holder
