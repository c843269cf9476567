"""A handler blocks the event loop of its process past timeouts: only the guilty job is charged."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queasy import JobOptions, SyncClient
from tests.servers import Server, wait_until
from tests.worker.fleet import ON_ONE_SERVER, Fleet, Played, Running, Together, totals

pytestmark = ON_ONE_SERVER
together = Together()
NEIGHBOURS = {"plain": "until", "waits": "await"}
"""The queue of each neighbour, and what its handler does: it waits for a file."""


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, server: Server) -> Iterator[Played]:
    with together.playing(request, server) as playing:
        yield playing


def block(
    fleet: Fleet,
    client: SyncClient,
    queue: str,
    data: dict[str, Any],
    *,
    timeout: float,
    neighbours: float,
) -> Running:
    """A worker with one process, which a job blocks while its neighbours would end.

    A neighbour is given up if it is charged with a single timeout.
    """
    may_end = Path(f"{fleet.journal.path}-may-end")
    worker = fleet.serve("--queue", "plain", "--queue", "waits", processes=1)
    for name, waits in NEIGHBOURS.items():
        options = JobOptions(timeout=neighbours, max_timeouts=1)
        client.queue(name).dispatch({waits: str(may_end)}, id=name, options=options)
        fleet.journal.wait_for("start", id=name)
    options = JobOptions(timeout=timeout, max_timeouts=1)
    client.queue(queue).dispatch(data, id="blocks", options=options)
    fleet.journal.wait_for("start", id="blocks")
    may_end.touch()
    return worker


def assert_neighbours_end_uncharged(fleet: Fleet, client: SyncClient) -> None:
    for name in NEIGHBOURS:
        end = fleet.journal.wait_for("end", id=name)[-1]
        assert (end["timeouts"], end["stalls"], end["retries"]) == (0, 0, 0)
        wait_until(lambda name=name: client.queue(name).get(name) is None, "it is finished")


def given_up(client: SyncClient) -> list[tuple[str, int, int]]:
    """The jobs that were given up: id, timeouts, stalls."""
    failed = [job for name in NEIGHBOURS for job in client.queue(name).jobs("failed")]
    return [(job.id, job.timeout_count, job.stall_count) for job in failed]


@together
def test_job_that_blocks_the_loop_past_its_timeout_is_the_only_one_charged(
    fleet: Fleet, client: SyncClient
) -> None:
    """Bug: all runs whose timeout had passed were charged, and jobs that were done were given up.

    The event `process_killing` named one of those.
    """
    worker = block(fleet, client, "waits", {"native": 60}, timeout=4.5, neighbours=4)
    wait_until(lambda: bool(given_up(client)), "a job is given up")
    assert_neighbours_end_uncharged(fleet, client)
    assert given_up(client) == [("blocks", 1, 0)]
    (killing,) = worker.events("process_killing")
    assert " why=overdue job=blocks overdue=1 others=1" in killing
    assert worker.stop() == 0
    assert not {"timed_out", "stalled"} & (totals(client.queue("waits")).keys())


@together
def test_job_that_blocks_the_loop_within_its_timeout_costs_its_neighbours_nothing(
    fleet: Fleet, client: SyncClient
) -> None:
    """Bug: its process was killed, the neighbours were given up, and it began again."""
    worker = block(fleet, client, "waits", {"native": 8}, timeout=60, neighbours=4)
    fleet.journal.wait_for("end", id="blocks")
    assert_neighbours_end_uncharged(fleet, client)
    assert worker.events("process_killing") == given_up(client) == []
    assert len(fleet.journal.lines("start")) == 3
    assert worker.stop() == 0


@together
def test_job_that_holds_the_gil_within_its_timeout_costs_its_neighbours_no_timeout(
    fleet: Fleet, client: SyncClient
) -> None:
    """Bug: the neighbours were given up. No thread of the process can say which job it is."""
    worker = block(fleet, client, "plain", {"gil": 8}, timeout=60, neighbours=4)
    fleet.journal.wait_for("end", id="blocks")
    assert_neighbours_end_uncharged(fleet, client)
    assert given_up(client) == []
    killing = worker.events("process_killing")
    assert " why=overdue suspects=3" in killing[0]
    assert len(killing) <= 2
    assert worker.stop() == 0


@together.of(
    gil=("plain", {"gil": 60}, 3),
    subtask=("waits", {"subtask": {"native": 60}}, 2),  # the plain function returns
)
def test_job_that_blocks_its_process_and_cannot_be_known_is_found_by_halving(
    fleet: Fleet, client: SyncClient, case: tuple[str, dict[str, Any], int]
) -> None:
    queue, data, suspects = case
    worker = block(fleet, client, queue, data, timeout=4.5, neighbours=4)
    wait_until(lambda: bool(given_up(client)), "a job is given up", 60)
    assert_neighbours_end_uncharged(fleet, client)
    assert given_up(client) == [("blocks", 1, 0)]
    killing = worker.events("process_killing")
    assert f" why=overdue suspects={suspects}" in killing[0]
    assert " why=overdue job=blocks overdue=1 others=0" in killing[-1]
    assert len(killing) <= 3
    assert worker.stop() == 0
