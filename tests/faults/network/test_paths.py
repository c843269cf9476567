"""The path of one worker to the server fails. Others still reach the server and get its jobs.

Whatever the path answers, it says nothing about the paths of others: the worker is frozen before
its leases run out, and takes no further step unless the server confirms them.
"""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise

import pytest

from queasy import Client, JobOptions, SyncClient
from queasy.worker.lease_times import DEFAULT_TIMES
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
    is_stopped,
    totals,
    wait_until_gone,
)
from tests.worker.inline import working

CUT_OFF = DEFAULT_TIMES.cut_off
LEASE = DEFAULT_TIMES.lease

pytestmark = ON_ONE_SERVER
together = Together()
QUEUES = ("--queue", "plain", "--queue", "waits")
FAULTS = ("refuse", "reset", "deaf", "loading", "clusterdown")
# Seconds for which a path fails: the lease runs out, and another worker gets the job meanwhile.
AWAY = LEASE + 12
# For tests that end the fault themselves.
LONG = 600
proxies: list[ProxyProgram] = []


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, server: Server) -> Iterator[Played]:
    with ExitStack() as stack:
        # One for each test and case, to take from the list.
        proxies.extend(stack.enter_context(start_proxy(server.port, seed)) for seed in range(12))
        yield stack.enter_context(together.playing(request, server))


def serve_by_proxy(fleet: Fleet, *options: str, processes: int = 1) -> tuple[Running, ProxyProgram]:
    """A worker with a path of its own to the server."""
    proxy, direct = proxies.pop(), fleet.environment["TEST_URL"]
    fleet.environment["TEST_URL"] = proxy.url
    worker = fleet.serve(*QUEUES, *options, processes=processes)
    fleet.environment["TEST_URL"] = direct
    return worker, proxy


def wait_until_frozen(worker: Running, pid: int) -> None:
    wait_until(lambda: bool(worker.events("process_frozen")), "the worker is frozen")
    # The kernel stops a process when its turn comes, before it takes another step.
    wait_until(lambda: is_stopped(pid), "the kernel has stopped it")


@together.of(**{fault: fault for fault in FAULTS})
def test_worker_whose_path_fails_never_overlaps_with_one_that_reaches_the_server(
    fleet: Fleet, client: SyncClient, case: str
) -> None:
    """Bug: a refused connection, LOADING and CLUSTERDOWN counted as proof that no other client
    reached the server, and the worker ran its jobs on for ever."""
    plain = client.queue("plain")
    worker, proxy = serve_by_proxy(fleet)
    plain.dispatch({"first": {"tick": 100, "deaf": True}, "then": {"tick": 5}}, id="job")
    (first,) = fleet.journal.wait_for("start", id="job")
    other = fleet.serve(*QUEUES, processes=1)
    proxy.tell(f"{case} {AWAY}")

    (end,) = fleet.journal.wait_for("end", id="job")
    assert [end["pid"]] == other.children()
    wait_until_gone([first["pid"]], 30)  # the path is back, and the server says that it lost
    (_, second) = fleet.journal.lines("start", id="job")
    ticks = fleet.journal.lines("tick", id="job", pid=first["pid"])
    margin = second["at"] - ticks[-1]["at"]
    print(f"\n  {case}: the last step was {margin:.2f} s before the next run")
    assert margin > 0
    assert (end["stalls"], totals(plain)["finished"]) == (1, 1)
    assert worker.events("process_frozen")
    assert not worker.events("process_thawed")
    assert "why=lost" in worker.events("process_died")[0]

    worker.wait_until_serving(2)  # a new process
    assert other.stop() == 0
    plain.dispatch({}, id="later")
    fleet.journal.wait_for("end", id="later")
    assert worker.stop() == 0


@together
def test_frozen_worker_goes_on_when_its_leases_are_confirmed(
    fleet: Fleet, client: SyncClient
) -> None:
    """The path is back before the lease is over, and the freeze does not count as a timeout."""
    plain, timeout = client.queue("plain"), CUT_OFF + 3
    worker, proxy = serve_by_proxy(fleet)
    options = JobOptions(timeout=timeout)
    plain.dispatch({"tick": LEASE + 8}, id="job", options=options)
    plain.dispatch({"spawn": LEASE + 8}, id="subprocess", options=options)
    fleet.journal.wait_for("start", 2)
    (spawned,) = fleet.journal.wait_for("spawned")
    (pid,) = worker.children()
    # No other client calls for ten seconds: after that the server takes it for an outage of its
    # own, and the leases last until the worker is back.
    proxy.tell(f"refuse {LEASE + 5}")
    wait_until_frozen(worker, pid)
    subprocess = spawned["spawned"]
    wait_until(lambda: is_stopped(subprocess), "subprocesses of handlers are frozen as well")

    fleet.journal.wait_for("end", 2)
    ticks = [line["at"] for line in fleet.journal.lines("tick", id="job")]
    pause = max(later - earlier for earlier, later in pairwise(ticks))
    print(f"\n  frozen for {pause:.2f} s")
    assert pause > LEASE + 5 - CUT_OFF - 1
    assert ticks[-1] - ticks[0] > timeout + 1, "without the freeze, this is a timeout"
    wait_until(lambda: not plain.counts().active, "all is reported")
    assert worker.children() == [pid]
    assert len(worker.events("process_thawed")) == 1
    assert not worker.events("event_loop_blocked")
    assert totals(plain)["dequeued"] == totals(plain)["finished"] == 2
    assert {(line["stalls"], line["timeouts"]) for line in fleet.journal.lines()} == {(0, 0)}
    assert worker.stop() == 0


@together
def test_sigterm_ends_a_frozen_worker_after_the_grace_time(
    fleet: Fleet, client: SyncClient
) -> None:
    plain, grace = client.queue("plain"), 3.0
    worker, proxy = serve_by_proxy(fleet, "--grace", str(grace), processes=2)
    plain.dispatch({"first": {"tick": 100}}, id="job")
    (first,) = fleet.journal.wait_for("start", id="job")
    proxy.tell(f"refuse {LONG}")
    wait_until_frozen(worker, first["pid"])
    assert not worker.events("heartbeat_resumed"), "it was logged after each failed heartbeat"
    began = time.monotonic()
    worker.signal(signal.SIGTERM)
    wait_until_gone([first["pid"]], 30)
    took = time.monotonic() - began
    assert worker.process.wait(30) == 0
    print(f"\n  killed after {took:.2f} s, ended after {time.monotonic() - began:.2f} s")
    assert grace < took < grace + 3
    fleet.serve(*QUEUES, processes=1)
    (end,) = fleet.journal.wait_for("end", id="job")
    assert fleet.journal.lines("tick", id="job", pid=first["pid"])[-1]["at"] < end["at"]


@together
def test_worker_thawed_while_it_stops_keeps_to_the_grace_time(
    fleet: Fleet, client: SyncClient
) -> None:
    plain, grace = client.queue("plain"), 6.0
    worker, proxy = serve_by_proxy(fleet, "--grace", str(grace))
    plain.dispatch({"first": {"tick": 100}, "then": {}}, id="job")
    (first,) = fleet.journal.wait_for("start", id="job")
    proxy.tell(f"refuse {LONG}")
    wait_until_frozen(worker, first["pid"])
    began = time.monotonic()
    worker.signal(signal.SIGTERM)
    wait_until(lambda: bool(worker.events("supervisor_stopping")), "it is asked to stop")
    proxy.tell("calm")
    assert worker.process.wait(30) == 0
    took = time.monotonic() - began
    print(f"\n  ended after {took:.2f} s")
    assert took < grace + 2
    assert worker.events("process_thawed")
    assert totals(plain)["released"] == 1, "it was thawed, and released its job"
    assert plain.cancel("job")


@together
def test_frozen_worker_dies_with_its_supervisor(fleet: Fleet, client: SyncClient) -> None:
    plain = client.queue("plain")
    worker, proxy = serve_by_proxy(fleet)
    plain.dispatch({"first": {"tick": 100}, "then": {}}, id="job")
    (first,) = fleet.journal.wait_for("start", id="job")
    proxy.tell(f"refuse {LONG}")
    wait_until_frozen(worker, first["pid"])
    worker.kill()
    wait_until_gone([first["pid"]], 5)
    fleet.serve(*QUEUES, processes=1)
    fleet.journal.wait_for("end", id="job", seconds=40)


@together
def test_frozen_worker_that_another_program_continues_is_stopped_again(
    fleet: Fleet, client: SyncClient
) -> None:
    plain = client.queue("plain")
    worker, proxy = serve_by_proxy(fleet)
    plain.dispatch({"first": {"tick": 100}, "then": {}}, id="job")
    (first,) = fleet.journal.wait_for("start", id="job")
    proxy.tell(f"refuse {LONG}")
    wait_until_frozen(worker, first["pid"])
    ticks = len(fleet.journal.lines("tick"))
    os.kill(first["pid"], signal.SIGCONT)
    wait_until(lambda: len(fleet.journal.lines("tick")) > ticks, "it runs")
    wait_until(lambda: is_stopped(first["pid"]), "it is stopped again", 1.0)
    assert len(worker.events("process_frozen")) == 1
    worker.kill()
    wait_until(lambda: not alive(first["pid"]), "it died with its supervisor")
    fleet.serve(*QUEUES, processes=1)
    fleet.journal.wait_for("end", id="job", seconds=40)


@together
def test_frozen_worker_takes_no_step_while_its_supervisor_is_stopped(
    fleet: Fleet, client: SyncClient
) -> None:
    plain = client.queue("plain")
    worker, proxy = serve_by_proxy(fleet)
    plain.dispatch({"first": {"tick": 100}, "then": {}}, id="job")
    (first,) = fleet.journal.wait_for("start", id="job")
    proxy.tell(f"refuse {LONG}")
    wait_until_frozen(worker, first["pid"])
    worker.signal(signal.SIGSTOP)
    proxy.tell("calm")
    fleet.serve(*QUEUES, processes=1)
    _, second = fleet.journal.wait_for("start", 2, id="job", seconds=40)
    worker.signal(signal.SIGCONT)
    wait_until_gone([first["pid"]], 30)
    assert fleet.journal.lines("tick", id="job", pid=first["pid"])[-1]["at"] < second["at"]
    assert not worker.events("process_thawed")
    assert worker.stop() == 0


async def test_inline_worker_whose_path_fails_cancels_its_runs_unless_told_otherwise(
    proxy: Proxy, prefix: str
) -> None:
    """Bug: it ran them on for ever if its connections were refused."""
    async with Client(proxy.url, prefix=prefix) as client:
        began: dict[str, asyncio.Event] = {}
        cancelled: dict[str, float] = {}

        async def handle(name: str) -> None:
            began[name].set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled[name] = time.monotonic()
                raise

        for name in ("safe", "reckless"):
            began[name] = asyncio.Event()
            client.queue(name).handler(handle)
            await client.queue(name).dispatch(name, id=name)
        async with (
            working(client, queues=["safe"], grace=0),
            working(client, queues=["reckless"], grace=0, run_unconfirmed=True),
        ):
            for event in began.values():
                await event.wait()
            proxy.refuse(LONG)
            since = time.monotonic()
            async with asyncio.timeout(2 * LEASE):
                while time.monotonic() < since + LEASE or not cancelled:
                    await asyncio.sleep(0.05)
            assert list(cancelled) == ["safe"]
            assert cancelled["safe"] - since < LEASE - 1
            proxy.calm()
