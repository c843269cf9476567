"""How many plain functions a worker holds ready, by how fast those before them ended."""

import pytest

from queasy.outcomes import Finish
from queasy.worker.execution.pace import MAX_PACE, Pace
from queasy.worker.execution.run import RunEnding
from queasy.worker.intake.portions import NO_PREFETCH_AFTER_RELEASE
from queasy.worker.intake.queue_state import QueueState
from queasy.worker.intake.turnover import FORGET_AFTER, HELD_READY_SECONDS, Turnover
from queasy.worker.liveness.inflight_table import InflightTable
from queasy.worker.plan import DEFAULT_SIZE
from tests.worker.intake.services import Clock, service


def turnover(per_second: float, *, seconds: float = 0.05) -> Turnover:
    """After jobs have ended at that rate for a while."""
    found, now, step = Turnover(), 100.0, 0.002
    for _ in range(int(seconds / step)):
        now += step
        found.note_ended(round(per_second * step), now)
    return found


@pytest.mark.parametrize("per_second", [0, 1000, 50_000])
def test_as_many_are_held_ready_as_end_within_two_milliseconds(per_second: int) -> None:
    expected = per_second * HELD_READY_SECONDS
    assert turnover(per_second).ending_soon(100.051) == pytest.approx(expected, abs=1)


def test_portions_that_come_together_count_as_one() -> None:
    found = turnover(1000)
    for _ in range(20):
        found.note_ended(1, 100.0501)
    found.note_ended(0, 100.07)
    assert found.ending_soon(100.071) < 4


def test_two_long_jobs_that_end_together_do_not_count_as_many_short_ones() -> None:
    found = turnover(0)
    for moment in (100.1, 100.12, 100.14):
        found.note_ended(1, moment)
        found.note_ended(1, moment + 0.001)
        assert found.ending_soon(moment + 0.002) == 0


def test_rate_from_before_a_pause_is_forgotten() -> None:
    found = turnover(50_000)
    later = 100.05 + 2 * FORGET_AFTER
    assert found.ending_soon(later) == 0
    found.note_ended(1, later)
    assert found.ending_soon(later) == 0


@pytest.fixture
def plain(clock: Clock, table: InflightTable) -> QueueState:
    return QueueState(service(size=None, is_async=False), 0, table)


@pytest.fixture
def table() -> InflightTable:
    return InflightTable(1, 100)


def end_jobs(queue: QueueState, clock: Clock, jobs: int, *, seconds: float) -> None:
    queue.leases.hold(jobs)
    for number in range(jobs):
        queue.outcomes.add(RunEnding(str(number), number, Finish()))
    clock.now += seconds
    while endings := queue.outcomes.take():
        queue.outcomes.confirm(endings)


def held(queue: QueueState, pace: Pace) -> int:
    """How many jobs of the queue fit into an idle worker."""
    view = queue.view(pace, needs_reconcile=False, own_units=0)
    return int(queue.activity.capacity * view.pace) // view.size


def test_long_functions_are_not_held_ready(plain: QueueState, clock: Clock) -> None:
    for _ in range(10):
        end_jobs(plain, clock, 1, seconds=0.1)
    assert held(plain, Pace()) == 10


def test_functions_of_ten_milliseconds_have_two_held_ready(plain: QueueState, clock: Clock) -> None:
    for _ in range(100):
        end_jobs(plain, clock, 1, seconds=0.001)
    assert held(plain, Pace()) == 12


def test_short_functions_fill_the_capacity(plain: QueueState, clock: Clock) -> None:
    for _ in range(10):
        end_jobs(plain, clock, 100, seconds=0.002)
    pace = Pace()
    assert plain.portions.size(pace) == round(DEFAULT_SIZE / MAX_PACE)
    assert held(plain, pace) == 100


def test_short_functions_that_compute_are_held_ready_as_well(
    plain: QueueState, clock: Clock
) -> None:
    pace = Pace()
    pace.plain = 0.1
    assert held(plain, pace) == 1
    for _ in range(10):
        end_jobs(plain, clock, 40, seconds=0.002)
    assert 30 < held(plain, pace) <= 50


def test_function_with_a_size_keeps_it(clock: Clock, table: InflightTable) -> None:
    sized = QueueState(service(size=10, is_async=False), 0, table)
    for _ in range(10):
        end_jobs(sized, clock, 100, seconds=0.002)
    assert sized.portions.size(Pace()) == 10
    assert held(sized, Pace()) == 10


def test_functions_that_became_long_are_not_held_ready(plain: QueueState, clock: Clock) -> None:
    for _ in range(10):
        end_jobs(plain, clock, 100, seconds=0.002)
    plain.portions.suspend_early_requests()
    assert held(plain, Pace()) == 10
    clock.now += NO_PREFETCH_AFTER_RELEASE / 2
    assert held(plain, Pace()) == 10
