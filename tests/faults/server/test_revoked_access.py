"""The server denies access to a running worker: its password or its permissions were changed."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from queasy import SyncClient
from tests.access import PASSWORD, documented_rules
from tests.conftest import audit_all
from tests.servers import Server, ServerKind, start_server, wait_until
from tests.worker.fleet import ON_ONE_SERVER, Fleet, Running, fleet_on

pytestmark = ON_ONE_SERVER

QUEUES = 26  # the queues of tests.worker.app and three fail queues
MEASURED_SECONDS = 2.0


@pytest.fixture
def guarded(kind: ServerKind) -> Iterator[Server]:
    with start_server(kind, appendonly=True) as server:
        allow(server)
        yield server
        audit_all(server, "queasy")


@pytest.fixture
def fleet(guarded: Server, tmp_path: Path) -> Iterator[Fleet]:
    with fleet_on(guarded.url_as("worker", PASSWORD), "queasy", tmp_path) as running:
        yield running


def allow(server: Server) -> None:
    server.call("ACL", "SETUSER", "worker", "reset", *documented_rules("worker"))


def change_password(server: Server) -> None:
    server.call("ACL", "SETUSER", "worker", "resetpass", ">another")
    server.call("CLIENT", "KILL", "USER", "worker")  # else open connections stay authenticated


def take_permissions(server: Server) -> None:
    server.call("ACL", "SETUSER", "worker", "-@all")


def calls(server: Server) -> int:
    """How many commands clients have sent to the server, rejected ones included."""
    stats = server.call("INFO", "commandstats")
    counted = ("cmdstat_auth", "cmdstat_fcall", "cmdstat_ssubscribe")
    return sum(stats[n]["calls"] + stats[n]["rejected_calls"] for n in counted if n in stats)


def has_logged(running: Running, event: str) -> Callable[[], bool]:
    return lambda: bool(running.events(event))


@pytest.mark.parametrize("revoke", [change_password, take_permissions])
def test_worker_that_is_denied_access_logs_it_keeps_its_jobs_and_recovers(
    guarded: Server, fleet: Fleet, revoke: Callable[[Server], None]
) -> None:
    running = fleet.serve(processes=1)
    with SyncClient(guarded.url_as("default", "")) as client:
        plain = client.queue("plain")
        plain.dispatch({"sleep": MEASURED_SECONDS}, id="a")
        plain.dispatch({"sleep": MEASURED_SECONDS + 2}, id="b")
        fleet.journal.wait_for("start", 2)
        revoke(guarded)
        wait_until(has_logged(running, "server_access_denied"), "the worker logs the denial")
        before = calls(guarded)
        time.sleep(MEASURED_SECONDS)  # the length of a measurement, not a wait for an event
        calls_per_second = (calls(guarded) - before) / MEASURED_SECONDS
        plain.dispatch({}, id="c")
        fleet.journal.wait_for("end", id="a")
        # Outcomes cannot be reported. A worker still subscribed may have received c as a hand-off.
        assert {job.id for job in plain.jobs("active")} - {"c"} == {"a", "b"}
        allow(guarded)
        fleet.journal.wait_for("end", 3)
        wait_until(lambda: not plain.counts().active, "all outcomes are reported")
        wait_until(has_logged(running, "server_reachable"), "the worker logs the recovery")
    assert running.stop() == 0
    assert {line["id"]: line["stalls"] for line in fleet.journal.lines("start")} == {
        "a": 0, "b": 0, "c": 0,
    }  # fmt: skip
    assert len(fleet.journal.lines("start")) == 3
    assert PASSWORD not in running.log
    # Each queue: calls that report or poll, that bump, and that subscribe.
    assert calls_per_second < 5 * QUEUES, (
        f"expected fewer, got {calls_per_second:.0f} calls a second"
    )


def test_worker_without_permission_to_subscribe_polls_at_a_low_rate(
    guarded: Server, fleet: Fleet
) -> None:
    guarded.call("ACL", "SETUSER", "worker", "-ssubscribe")
    running = fleet.serve(processes=1)
    wait_until(has_logged(running, "subscribe_failed"), "the worker logs the failure")
    with SyncClient(guarded.url_as("default", "")) as client:
        before = calls(guarded)
        time.sleep(MEASURED_SECONDS)  # the length of a measurement, not a wait for an event
        calls_per_second = (calls(guarded) - before) / MEASURED_SECONDS
        client.queue("plain").dispatch({}, id="a")
        fleet.journal.wait_for("end", id="a")
        wait_until(lambda: not client.queue("plain").counts().active, "the outcome is reported")
    assert running.stop() == 0
    # Each queue: a poll, and an attempt to subscribe on a separate connection.
    assert calls_per_second < 5 * QUEUES, (
        f"expected fewer, got {calls_per_second:.0f} calls a second"
    )


def test_jobs_taken_after_access_is_restored_are_not_interrupted(
    guarded: Server, fleet: Fleet
) -> None:
    """Bug: the worker interrupted them until the leases of all other queues were confirmed."""
    running = fleet.serve(processes=1)
    with SyncClient(guarded.url_as("default", "")) as client:
        client.queue("waits").dispatch({"sleep": 60}, id="a")
        fleet.journal.wait_for("start", id="a")
        take_permissions(guarded)
        queues = [client.queue(f"crowd-{n}") for n in range(8)]
        for number, queue in enumerate(queues):
            queue.dispatch({"sleep": 1}, id=f"b{number}")
        wait_until(has_logged(running, "process_frozen"), "the worker is frozen")
        pids = running.children()
        allow(guarded)
        fleet.journal.wait_for("end", 8)
        client.queue("waits").cancel("a", running=True)
        queues.append(client.queue("waits"))
        wait_until(
            lambda: not any(queue.counts().active for queue in queues), "all outcomes are reported"
        )
        assert running.children() == pids
    assert running.stop() == 0
    starts = [line["id"] for line in fleet.journal.lines("start")]
    assert sorted(starts) == ["a", *(f"b{number}" for number in range(8))]
    assert len(running.events("process_frozen")) == 1
