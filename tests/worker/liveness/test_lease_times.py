"""All that follows from the lease of a worker: in which order, and how far apart."""

from dataclasses import asdict
from datetime import timedelta

import pytest

from queasy import InvalidInput
from queasy.worker.lease_times import (
    DEFAULT_TIMES,
    LONGEST_LEASE,
    SHORTEST_LEASE,
    LeaseTimes,
)

LEASES = [SHORTEST_LEASE, 3.7, 5.0, 6.0, 8.0, 12.0, 13.0, 30.0, 120.0, LONGEST_LEASE]
# Of lua/keys.lua, in seconds: the server takes a longer silence for an outage of its own. While
# jobs are leased, a shorter silence than the second needs no note.
OUTAGE, SILENCE = 10.0, 2.0


@pytest.fixture(params=LEASES)
def times(request: pytest.FixtureRequest) -> LeaseTimes:
    return LeaseTimes.of(request.param)


def test_leases_are_bumped_several_times_before_the_cut_off(times: LeaseTimes) -> None:
    longest_pause = times.bump_every + times.check_every
    assert 3 * longest_pause <= times.cut_off
    assert times.check_every <= times.bump_every / 4


def test_heartbeat_that_is_not_answered_is_repeated_before_the_cut_off(times: LeaseTimes) -> None:
    assert times.bump_every + times.check_every + 1 * times.call_timeout < times.cut_off


def test_worker_is_frozen_well_before_its_lease_ends(times: LeaseTimes) -> None:
    assert times.cut_off + 5 * times.watch_every <= times.lease
    assert times.lease - times.cut_off >= 0.8, "a process may not get its turn for so long"


def test_worker_whose_supervisor_does_not_freeze_it_kills_itself_in_time(
    times: LeaseTimes,
) -> None:
    assert times.cut_off + times.watch_every < times.self_kill
    assert times.self_kill + 2 * times.guard_every < times.lease


def test_worker_of_a_silent_supervisor_kills_itself_before_its_lease_ends(
    times: LeaseTimes,
) -> None:
    last_bump_before = times.bump_every + times.check_every
    ends_after = times.lease - last_bump_before
    assert times.supervisor_silent + 2 * times.guard_every < ends_after
    assert times.supervisor_silent > 4 * times.watch_every, "a supervisor that runs is not silent"


def test_server_hears_of_a_worker_more_often_than_an_outage_lasts(times: LeaseTimes) -> None:
    assert times.bump_every + times.check_every < SILENCE
    assert times.idle_lease - times.idle_margin < OUTAGE
    assert times.bump_every + times.call_timeout < OUTAGE


def test_idle_lease_is_renewed_before_it_ends_and_is_not_much_longer(times: LeaseTimes) -> None:
    assert times.lease < times.idle_lease <= times.lease + 7
    assert times.idle_margin > times.bump_every + times.check_every
    assert times.idle_margin < times.lease, "a worker that polls in time needs no bump"


def test_default_times_are_those_that_the_documents_name() -> None:
    assert asdict(DEFAULT_TIMES) == {
        "lease": 13.0, "bump_every": 1.0, "check_every": 0.2, "call_timeout": 13 / 3,
        "cut_off": 11.25, "watch_every": 0.25, "self_kill": 11.75, "guard_every": 0.5,
        "supervisor_silent": 10.0, "idle_lease": 20.0, "idle_margin": 11.0,
    }  # fmt: skip


def test_default_lease_outlasts_a_silence_that_is_no_outage() -> None:
    assert DEFAULT_TIMES.lease >= OUTAGE + 3 * DEFAULT_TIMES.bump_every


@pytest.mark.parametrize("lease", [0, 2.99, 600.1, -5, float("nan"), float("inf"), "3", None, True])
def test_lease_outside_the_range_is_refused(lease: object) -> None:
    with pytest.raises(InvalidInput, match=r"lease: expected (3 to 600 seconds|seconds or)"):
        LeaseTimes.checked(lease)  # type: ignore[arg-type]


def test_lease_may_be_a_timedelta() -> None:
    assert LeaseTimes.checked(timedelta(minutes=2)) == LeaseTimes.of(120.0)
