"""Workers with leases of their own: a short one, and a long one.

The promises are those of the default: a silent worker's jobs run elsewhere in bounded time, and
never in two workers at once.
"""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from queasy import Client, SyncClient
from queasy.worker.lease_times import LeaseTimes
from tests.proxy import Proxy
from tests.proxy.program import ProxyProgram, start_proxy
from tests.servers import Server, wait_until
from tests.worker.fleet import (
    ON_ONE_SERVER,
    Fleet,
    Played,
    Running,
    Together,
    alive,
    totals,
    wait_until_gone,
)
from tests.worker.inline import working

pytestmark = ON_ONE_SERVER
together = Together()
SHORT = LeaseTimes.of(3.0)
# As in test_hosts.py: the jobs of a silent worker return within its lease and this many seconds.
GRACE = 10.0
QUEUE = ("--queue", "plain")
FAULTS = ("refuse", "deaf", "loading")
proxies: list[ProxyProgram] = []


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, server: Server) -> Iterator[Played]:
    with ExitStack() as stack:
        proxies.extend(stack.enter_context(start_proxy(server.port, seed)) for seed in range(3))
        yield stack.enter_context(together.playing(request, server))


def _serve(fleet: Fleet, lease: float, *options: str) -> Running:
    return fleet.serve(*QUEUE, "--lease", str(lease), *options, processes=1)


def _steps_end_before_the_next_run(fleet: Fleet, first: int) -> None:
    (_, second) = fleet.journal.lines("start", id="job")
    last = fleet.journal.lines("tick", id="job", pid=first)[-1]
    margin = second["at"] - last["at"]
    print(f"\n  the last step was {margin:.2f} s before the next run")
    assert margin > 0


@together
def test_job_of_a_silent_host_with_a_short_lease_runs_elsewhere_soon(
    fleet: Fleet, client: SyncClient
) -> None:
    fleet.environment["QUEASY_HOST"] = "one"
    silent = _serve(fleet, 3)
    plain = client.queue("plain")
    plain.dispatch({"first": {"sleep": 90}, "then": {}}, id="job")
    (first,) = fleet.journal.wait_for("start", id="job")
    fleet.environment["QUEASY_HOST"] = "two"
    other = _serve(fleet, 3)
    since = time.monotonic()
    for pid in (silent.pid, first["pid"]):
        os.kill(pid, signal.SIGSTOP)
    (end,) = fleet.journal.wait_for("end", id="job", seconds=SHORT.lease + GRACE)
    assert [end["pid"]] == other.children()
    (_, second) = fleet.journal.lines("start", id="job")
    print(f"\n  it ran elsewhere after {second['at'] - since:.2f} s")
    assert second["at"] - since < SHORT.lease + GRACE
    assert totals(plain)["stalled"] == 1
    for pid in (first["pid"], silent.pid):
        os.kill(pid, signal.SIGKILL)
    assert other.stop() == 0


@together
def test_stopped_process_with_a_short_lease_is_killed_when_its_lease_is_over(
    fleet: Fleet, client: SyncClient
) -> None:
    worker = _serve(fleet, 3)
    client.queue("plain").dispatch({"first": {"sleep": 90}, "then": {}}, id="job")
    (first,) = fleet.journal.wait_for("start", id="job")
    os.kill(first["pid"], signal.SIGSTOP)
    since = time.monotonic()
    (end,) = fleet.journal.wait_for("end", id="job", seconds=SHORT.lease + GRACE)
    assert time.monotonic() - since > SHORT.lease
    assert end["pid"] != first["pid"]
    assert "why=sigstop" in worker.events("process_died")[0]
    assert worker.stop() == 0


@together.of(**{fault: fault for fault in FAULTS})
def test_worker_with_a_short_lease_never_overlaps_with_one_that_reaches_the_server(
    fleet: Fleet, client: SyncClient, case: str
) -> None:
    proxy, direct = proxies.pop(), fleet.environment["TEST_URL"]
    fleet.environment["TEST_URL"] = proxy.url
    worker = _serve(fleet, 3)
    fleet.environment["TEST_URL"] = direct
    plain = client.queue("plain")
    plain.dispatch({"first": {"tick": 90, "deaf": True}, "then": {"tick": 3}}, id="job")
    (first,) = fleet.journal.wait_for("start", id="job")
    other = _serve(fleet, 3)
    proxy.tell(f"{case} {SHORT.lease + 4}")
    (end,) = fleet.journal.wait_for("end", id="job")
    assert [end["pid"]] == other.children()
    wait_until_gone([first["pid"]], 30)  # the path is back, and the server says that it lost
    _steps_end_before_the_next_run(fleet, first["pid"])
    assert worker.events("process_frozen")
    assert totals(plain)["finished"] == totals(plain)["stalled"] == 1
    worker.wait_until_serving(2)
    assert worker.stop() == other.stop() == 0


@together
def test_worker_with_a_short_lease_ends_itself_if_its_supervisor_is_frozen(
    fleet: Fleet, client: SyncClient
) -> None:
    # No capacity for another job: otherwise its own poll could reveal the lost lease.
    worker = _serve(fleet, 3, "--capacity", "10")
    plain = client.queue("plain")
    plain.dispatch({"first": {"tick": 90, "deaf": True}, "then": {"tick": 3}}, id="job")
    (first,) = fleet.journal.wait_for("start", id="job")
    other = _serve(fleet, 3)
    worker.signal(signal.SIGSTOP)
    (end,) = fleet.journal.wait_for("end", id="job")
    assert [end["pid"]] == other.children()
    wait_until_gone([first["pid"]], 30)
    _steps_end_before_the_next_run(fleet, first["pid"])
    worker.signal(signal.SIGCONT)
    worker.wait_until_serving(2)
    assert worker.stop() == other.stop() == 0


@together
def test_worker_with_a_long_lease_keeps_its_job_through_a_silence_that_ends_a_short_one(
    fleet: Fleet, client: SyncClient
) -> None:
    plain = client.queue("plain")
    patient = _serve(fleet, 60)
    plain.dispatch({"first": {"sleep": 10}, "then": {}}, id="patient")
    (kept,) = fleet.journal.wait_for("start", id="patient")
    hasty = _serve(fleet, 3)
    wait_until(lambda: _leases(client) == {3.0, 60.0}, "both leases are shown")
    for pid in (patient.pid, kept["pid"]):
        os.kill(pid, signal.SIGSTOP)
    plain.dispatch({"first": {"sleep": 90}, "then": {}}, id="hasty")
    (lost,) = fleet.journal.wait_for("start", id="hasty")
    assert [lost["pid"]] == hasty.children()
    other = _serve(fleet, 3)
    for pid in (hasty.pid, lost["pid"]):
        os.kill(pid, signal.SIGSTOP)
    (end,) = fleet.journal.wait_for("end", id="hasty", seconds=SHORT.lease + GRACE)
    assert [end["pid"]] == other.children()
    assert len(fleet.journal.lines("start", id="patient")) == 1, "its lease is not over"
    for pid in (patient.pid, kept["pid"]):
        os.kill(pid, signal.SIGCONT)
    (end,) = fleet.journal.wait_for("end", id="patient")
    assert end["pid"] == kept["pid"]
    assert end["stalls"] == 0
    for pid in (lost["pid"], hasty.pid):
        os.kill(pid, signal.SIGKILL)
    assert patient.stop() == other.stop() == 0
    assert not alive(lost["pid"])


async def test_inline_worker_with_a_short_lease_cancels_its_runs_before_it_ends(
    proxy: Proxy, prefix: str
) -> None:
    async with Client(proxy.url, prefix=prefix) as client:
        began, cancelled = asyncio.Event(), asyncio.Event()
        at: dict[str, float] = {}

        @client.queue("q").handler
        async def handle(_: object) -> None:
            began.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                at["cancelled"] = time.monotonic()
                cancelled.set()
                raise

        await client.queue("q").dispatch(1)
        async with working(client, grace=0, lease=3):
            await began.wait()
            proxy.refuse(60)
            refused_at = time.monotonic()
            async with asyncio.timeout(30):
                await cancelled.wait()
            # No call was confirmed after `refused_at`: the lease ends three seconds later at most.
            print(f"\n  cancelled after {at['cancelled'] - refused_at:.2f} s")
            assert at["cancelled"] - refused_at < SHORT.lease
            proxy.calm()


def _leases(client: SyncClient) -> set[float]:
    return {worker.lease for worker in client.workers(["plain"])}
