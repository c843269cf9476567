"""Wrong clocks: those of clients decide nothing, that of the server may step by an hour.

Uses libfaketime (Debian: faketime) in real processes.
"""

import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from queasy import SyncClient
from queasy.sync import SyncQueue
from tests.servers import Server, ServerKind, start_server, wait_until
from tests.worker.fleet import ON_ONE_SERVER, Fleet, fleet_on, totals

HOUR = 3600.0
LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)

pytestmark = pytest.mark.skipif(
    LIBRARY is None, reason="libfaketime is not installed: wrong clocks are NOT TESTED"
)


def skewed(seconds: float) -> dict[str, str]:
    """The environment of a process with a clock that is wrong by `seconds`.

    Its monotonic clock is right, as with a real wrong clock. (`time.sleep` fails under
    libfaketime, which lacks clock_nanosleep: jobs and scripts here wait in other ways.)
    """
    return {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME": f"{seconds:+.0f}",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def environment(server: Server, prefix: str) -> dict[str, str]:
    return {**os.environ, "TEST_URL": server.url, "TEST_PREFIX": prefix}


@contextmanager
def fleet_of(server: Server, prefix: str, folder: Path, clock: dict[str, str]) -> Generator[Fleet]:
    """Workers with a wrong clock."""
    folder.mkdir()
    with fleet_on(server.url, prefix, folder) as fleet:
        fleet.environment |= clock
        yield fleet


# Clients

PRODUCER = """
import os, sys, time
from datetime import UTC, datetime, timedelta
from queasy import SyncClient
skew = float(sys.argv[1])
assert abs(time.time() - float(sys.argv[2]) - skew) < 60, "libfaketime does nothing"
with SyncClient(os.environ["TEST_URL"], prefix=os.environ["TEST_PREFIX"]) as client:
    plain, waits = client.queue("plain"), client.queue("waits")
    plain.dispatch({}, id=f"now{skew:+.0f}")
    plain.dispatch({}, id=f"delayed{skew:+.0f}", delay=3)
    plain.dispatch({"first": {"raise": "once"}}, id=f"retried{skew:+.0f}")
    waits.dispatch({"sleep": 4}, id=f"long{skew:+.0f}")
    soon = datetime.now(UTC) + timedelta(minutes=30)
    plain.dispatch({}, id=f"absolute{skew:+.0f}", run_at=soon)
"""

CONSUMER = """
import os, select, sys
from queasy import SyncClient
with SyncClient(os.environ["TEST_URL"], prefix=os.environ["TEST_PREFIX"]) as client:
    queue = client.queue(sys.argv[1])
    lease = queue.lease(seconds=2, timeout=10)
    for _ in range(3):  # longer than the lease, which is extended
        select.select([], [], [], 1)
        assert lease.extend(2), "the lease was lost"
    assert lease.complete()
    lease = queue.lease(seconds=2, timeout=10)
    lease.retry(after=1)
    again = queue.lease(seconds=2, timeout=10)
    assert (again.job.id, again.job.retry_count) == (lease.job.id, 1)
    assert again.complete()
"""


@ON_ONE_SERVER
@pytest.mark.chaos
def test_wrong_client_clocks_change_nothing(server: Server, prefix: str, tmp_path: Path) -> None:
    ahead, behind = skewed(HOUR), skewed(-HOUR)
    with (
        SyncClient(server.url, prefix=prefix) as client,
        fleet_of(server, prefix, tmp_path / "ahead", ahead) as first,
        fleet_of(server, prefix, tmp_path / "behind", behind) as second,
        fleet_of(server, prefix, tmp_path / "right", {}) as third,
    ):
        fleets = (first, second, third)
        for worker in [fleet.start("--processes", "1") for fleet in fleets]:
            worker.wait_until_serving(1)

        def lines(event: str, id_: str) -> list[dict[str, object]]:
            return [line for f in fleets for line in f.journal.lines(event, id=id_)]

        for name in ("pulled-ahead", "pulled-behind"):
            client.queue(name).dispatch_many([{"n": 1}, {"n": 2}])
        clocks = {HOUR: ahead, -HOUR: behind, 0.0: {}}
        base = environment(server, prefix)
        consumers = [
            subprocess.Popen([sys.executable, "-c", CONSUMER, name], env=base | clock)
            for name, clock in {"pulled-ahead": ahead, "pulled-behind": behind}.items()
        ]
        begun = time.monotonic()
        producers = [
            subprocess.Popen(
                [sys.executable, "-c", PRODUCER, str(skew), str(time.time())], env=base | clock
            )
            for skew, clock in clocks.items()
        ]
        assert [process.wait(30) for process in producers] == [0, 0, 0]
        plain = client.queue("plain")
        early = {f"delayed{skew:+.0f}" for skew in clocks if lines("start", f"delayed{skew:+.0f}")}
        assert not early or time.monotonic() - begun > 3, f"these ran early: {early}"
        for skew in clocks:
            for name in ("now", "delayed", "retried", "long"):
                id_ = f"{name}{skew:+.0f}"
                wait_until(lambda id_=id_: bool(lines("end", id_)), f"{id_} has run")
                runs = 2 if name == "retried" else 1
                assert len(lines("start", id_)) == runs, f"{id_} ran too often"
        assert [process.wait(30) for process in consumers] == [0, 0]

        timed = client.queue("timed")
        timed.dispatch_many([{"first": {"spawn": 60}}] * 6)
        wait_until(
            lambda: sum(len(fleet.journal.lines("end", timeouts=1)) for fleet in fleets) == 6,
            "all were stopped in time and ran again",
        )

        # An absolute time follows the caller's clock: here half an hour after its own "now".
        absolute = [f"absolute{skew:+.0f}" for skew in (HOUR, 0.0)]
        assert {job.id for job in plain.jobs()} == set(absolute)
        wait_until(lambda: bool(lines("end", f"absolute{-HOUR:+.0f}")), "what was past ran at once")
        right = plain.get(absolute[1])
        late = plain.get(absolute[0])
        assert right is not None
        assert late is not None
        assert abs(late.run_at_epoch - right.run_at_epoch - HOUR) < 60
        for queue in (plain, timed, client.queue("waits")):
            assert "stalled" not in totals(queue)


# The server


class SteppingServer:
    """A server with a clock that tests can set while it runs."""

    def __init__(self, server: Server, clock: Path) -> None:
        self.server, self._clock = server, clock
        self.offset = 0.0

    def step_to(self, offset: float) -> None:
        """Sets the error of the clock, by replacing the file that libfaketime reads."""
        fresh = self._clock.with_suffix(".new")
        fresh.write_text(f"{offset:+.0f}\n")
        fresh.rename(self._clock)
        self.offset = offset
        wait_until(
            lambda: abs(self.server.call("TIME")[0] - time.time() - offset) < 60,
            f"the server's clock is off by {offset:+.0f}",
        )


@pytest.fixture
def stepping(
    kind: ServerKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SteppingServer]:
    clock = tmp_path / "clock"
    clock.write_text("+0\n")
    with monkeypatch.context() as patch:
        for name, value in {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(clock),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }.items():
            patch.setenv(name, value)
        context = start_server(kind, appendonly=True)
        server = context.__enter__()
    try:
        running = SteppingServer(server, clock)
        try:
            running.step_to(HOUR)
            running.step_to(0)
        except TimeoutError:
            pytest.skip(f"libfaketime does nothing to {kind}: its steps are NOT TESTED")
        yield running
    finally:
        context.__exit__(None, None, None)


def run_through(
    stepping: SteppingServer, folder: Path, steps: tuple[float, ...], seconds: int
) -> None:
    """Runs a worker, a pull lease and delayed jobs while the server's clock steps."""
    url = stepping.server.url
    with (
        SyncClient(url, prefix="c") as client,
        fleet_of(stepping.server, "c", folder / "fleet", {}) as fleet,
    ):
        worker = fleet.serve(processes=1)
        plain, pulled = client.queue("plain"), client.queue("pulled")
        plain.dispatch({}, id="in two hours", delay=2 * HOUR)
        pulled.dispatch({}, id="pulled")
        lease = pulled.lease(seconds=9)
        highest = 0.0
        for number, offset in enumerate(steps):
            long = plain.dispatch({"sleep": seconds}, id=f"long{number}").id
            fleet.journal.wait_for("start", id=long)
            stepping.step_to(offset)
            highest = max(highest, offset)
            assert lease.extend(9), "the lease was lost by a step"
            begun = time.monotonic()
            plain.dispatch({}, id=f"now{number}")
            fleet.journal.wait_for("end", id=f"now{number}", seconds=5)
            plain.dispatch({}, id=f"delayed{number}", delay=1)
            delayed = fleet.journal.wait_for("end", id=f"delayed{number}", seconds=10)
            if (
                offset == highest
            ):  # otherwise the delay may be short: the server's time never goes back
                assert delayed[0]["at"] - begun >= 1, "a delay was cut short"
            wait_until(
                lambda long=long: lease.extend(9) and bool(fleet.journal.lines("end", id=long)),
                f"{long} has run",
            )
        for number in range(len(steps)):
            assert len(fleet.journal.lines("start", id=f"long{number}")) == 1, "it ran twice"
        assert lease.complete()
        assert not fleet.journal.lines("start", id="in two hours")
        assert worker.process.poll() is None
        sane(plain, steps)
        assert pulled.audit() == []
        assert worker.stop(20) == 0
        assert not worker.events("process_died")


def sane(queue: SyncQueue, steps: tuple[float, ...]) -> None:
    counted = totals(queue)
    ran = 3 * len(steps)
    assert counted["dispatched"] == ran + 1
    assert counted["finished"] == counted["dequeued"] == ran
    assert "stalled" not in counted
    minutes = [stat for stat in queue.stats() if stat.minute is not None]
    assert sum(stat.count for stat in minutes if stat.kind == "finished") <= ran
    assert queue.sweep() == 0
    assert queue.audit() == []


ON_VALKEY = pytest.mark.parametrize("kind", [ServerKind.VALKEY], indirect=True)


@ON_VALKEY
@pytest.mark.parametrize("offset", [HOUR, -HOUR])
def test_step_of_the_server_clock_stalls_nothing(
    stepping: SteppingServer, tmp_path: Path, offset: float
) -> None:
    run_through(stepping, tmp_path, (offset,), seconds=3)


@ON_VALKEY
@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.parametrize("steps", [(HOUR, 0.0, HOUR), (-HOUR, 0.0), (HOUR, 2 * HOUR - 200, -HOUR)])
def test_server_clock_that_jumps_back_and_forth_stalls_nothing(
    stepping: SteppingServer, tmp_path: Path, steps: tuple[float, ...]
) -> None:
    run_through(stepping, tmp_path, steps, seconds=15)  # longer than the grace after a step


@ON_VALKEY
def test_jobs_run_early_by_at_most_the_step_of_the_clock(stepping: SteppingServer) -> None:
    with SyncClient(stepping.server.url, prefix="c") as client:
        queue = client.queue("q")
        for minutes in (1, 59, 61, 120):
            queue.dispatch({}, id=f"{minutes}", delay=minutes * 60)
        stepping.step_to(-HOUR)
        assert queue.lease(timeout=0) is None
        stepping.step_to(HOUR)
        assert [take_now(queue) for _ in range(3)] == ["1", "59", None]
        stepping.step_to(0)
        queue.dispatch({}, id="new")
        assert take_now(queue) == "new"
        queue.dispatch({}, id="later", delay=2 * HOUR)
        assert take_now(queue) is None
        assert queue.audit() == []


def take_now(queue: SyncQueue) -> str | None:
    lease = queue.lease(timeout=0)
    if lease is None:
        return None
    assert lease.complete()
    return lease.job.id
