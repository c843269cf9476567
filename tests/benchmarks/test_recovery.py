"""What `benchmarks.recovery` plans and concludes, and that a fleet of it runs."""

import sys
from pathlib import Path

import pytest
from benchmarks.harness.bench_server import bench_server
from benchmarks.harness.recovery_shape import FULL, WAITING, Round, Shape, shape
from benchmarks.harness.recovery_trial import Measured, Trial

from benchmarks import recovery


def test_a_fleet_follows_from_its_seed_and_number() -> None:
    assert shape(7, 31) == shape(7, 31)
    assert shape(7, 31) != shape(8, 31)


def test_a_host_that_serves_the_queues_is_left_after_all_faults() -> None:
    for number in range(500):
        one = shape(1, number)
        others = sum(duty in (*FULL, "consumers") for duty in one.duties)
        waiting = sum(duty in WAITING for duty in one.duties)
        assert 1 <= len(one.rounds) <= waiting + min(others, 1) - 1


def test_the_plan_has_as_many_faults_as_were_requested() -> None:
    plan = list(recovery.fleets(1, 20, 10))
    faults = [one.fault for fleet in plan for one in fleet.rounds]
    assert faults.count("kill") >= 20
    assert faults.count("freeze") >= 10


def measured(*seconds: float) -> list[Measured]:
    return [Measured("kill", "idle", 1, n, 0, worst=worst) for n, worst in enumerate(seconds)]


def test_the_table_shows_the_slowest_fault() -> None:
    assert recovery.row("kill", measured(1, 2, 3, 40)) == "| kill | 4 | 2.0 | 40.0 | 40.0 | 40.0 |"
    assert recovery.row("kill", []) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="a trial reads /proc: NOT TESTED here")
def test_a_job_for_a_frozen_host_runs_on_another(tmp_path: Path) -> None:
    one = Round(
        fault="freeze", short=0, running=0, at_once=False, before=0, after=(0.0,), settling=0.5,
        returns=True,
    )  # fmt: skip
    fleet = Shape(0, "idle", 1, 1, 1, ("idle", "idle"), (one,))
    with bench_server() as server:
        (found,) = Trial(fleet, 1, server, tmp_path).run()
    assert found.worst < recovery.BOUND
    assert found.problems == []
