"""The server refuses a worker that runs: its password was changed, or a permission taken away."""

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

QUEUES = 26  # those of tests.worker.app, and three fail queues
SECONDS = 2.0


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
    server.call("CLIENT", "KILL", "USER", "worker")  # else who is in stays in


def take_permissions(server: Server) -> None:
    server.call("ACL", "SETUSER", "worker", "-@all")


def calls(server: Server) -> int:
    """Commands that the server was sent from outside, refused or not."""
    stats = server.call("INFO", "commandstats")
    outside = ("cmdstat_auth", "cmdstat_fcall", "cmdstat_ssubscribe")
    return sum(stats[n]["calls"] + stats[n]["rejected_calls"] for n in outside if n in stats)


def events_of(running: Running, what: str) -> Callable[[], bool]:
    return lambda: bool(running.events(what))


@pytest.mark.parametrize("revoke", [change_password, take_permissions])
def test_a_worker_that_is_refused_says_so_keeps_its_jobs_and_goes_on(
    guarded: Server, fleet: Fleet, revoke: Callable[[Server], None]
) -> None:
    running = fleet.serve(processes=1)
    with SyncClient(guarded.url_as("default", "")) as client:
        plain = client.queue("plain")
        plain.dispatch({"sleep": SECONDS}, id="a")
        plain.dispatch({"sleep": SECONDS + 2}, id="b")
        fleet.journal.wait_for("start", 2)
        revoke(guarded)
        wait_until(events_of(running, "server_access_denied"), "it says so")
        before = calls(guarded)
        time.sleep(SECONDS)  # measured, not waited for
        a_second = (calls(guarded) - before) / SECONDS
        plain.dispatch({}, id="c")
        fleet.journal.wait_for("end", id="a")
        # They cannot be reported; and who still listens may have been handed the other one.
        assert {job.id for job in plain.jobs("active")} - {"c"} == {"a", "b"}
        allow(guarded)
        fleet.journal.wait_for("end", 3)
        wait_until(lambda: not plain.counts().active, "all is reported")
        wait_until(events_of(running, "server_reachable"), "it says that, too")
    assert running.stop() == 0
    assert {line["id"]: line["stalls"] for line in fleet.journal.lines("start")} == {
        "a": 0, "b": 0, "c": 0,
    }  # fmt: skip
    assert len(fleet.journal.lines("start")) == 3
    assert PASSWORD not in running.log
    # For each queue one who reports or looks, one who keeps the lease, and some that listens.
    assert a_second < 5 * QUEUES, f"{a_second:.0f} calls a second from one worker"


def test_a_worker_that_may_not_listen_looks_now_and_then(guarded: Server, fleet: Fleet) -> None:
    guarded.call("ACL", "SETUSER", "worker", "-ssubscribe")
    running = fleet.serve(processes=1)
    wait_until(events_of(running, "subscribe_failed"), "it says so")
    with SyncClient(guarded.url_as("default", "")) as client:
        before = calls(guarded)
        time.sleep(SECONDS)  # measured, not waited for
        a_second = (calls(guarded) - before) / SECONDS
        client.queue("plain").dispatch({}, id="a")
        fleet.journal.wait_for("end", id="a")
        wait_until(lambda: not client.queue("plain").counts().active, "it is reported")
    assert running.stop() == 0
    # A look, and a try to listen on a connection of its own.
    assert a_second < 5 * QUEUES, f"{a_second:.0f} calls a second from one worker"


def test_what_is_taken_when_the_server_lets_it_in_again_is_not_cut_off(
    guarded: Server, fleet: Fleet
) -> None:
    """It was, several times over, until the leases of every other queue had been kept, too."""
    running = fleet.serve(processes=1)
    with SyncClient(guarded.url_as("default", "")) as client:
        client.queue("waits").dispatch({"sleep": 60}, id="a")
        fleet.journal.wait_for("start", id="a")
        take_permissions(guarded)
        queues = [client.queue(f"crowd-{n}") for n in range(8)]
        for number, queue in enumerate(queues):
            queue.dispatch({"sleep": 1}, id=f"b{number}")
        wait_until(events_of(running, "leases_unconfirmed"), "it ends its run")
        pids = running.children()
        allow(guarded)
        fleet.journal.wait_for("end", 8)
        fleet.journal.wait_for("start", 2, id="a")
        client.queue("waits").cancel("a", running=True)
        queues.append(client.queue("waits"))
        wait_until(lambda: not any(queue.counts().active for queue in queues), "all is reported")
        assert running.children() == pids
    assert running.stop() == 0
    starts = [line["id"] for line in fleet.journal.lines("start")]
    assert sorted(starts) == ["a", "a", *(f"b{number}" for number in range(8))]
