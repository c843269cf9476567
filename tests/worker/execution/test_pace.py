"""The pace of a worker, tick by tick, under a clock that the test sets."""

import pytest

from queasy.worker.execution import pace as module
from queasy.worker.execution.pace import LATE, MAX_PACE, MIN, PROMPT, Pace


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> "Clock":
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


class Clock:
    """Each tick takes 0.1 s, of which the process computes the share `use`."""

    def __init__(self) -> None:
        self.now = self.cpu = 0.0

    def monotonic(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.cpu

    def tick(
        self,
        pace: Pace,
        *,
        late: float = 0.0,
        use: float = 0.0,
        threads: int = 0,
        wanted_more: bool = True,
    ) -> None:
        self.now += 0.1
        self.cpu += 0.1 * use
        pace.tick(late, threads, wanted_more=wanted_more)


def test_pace_of_async_handlers_that_wait_rises_to_the_maximum(clock: Clock) -> None:
    pace = Pace()
    for _ in range(20):
        clock.tick(pace)
    assert pace.awaited == MAX_PACE


def test_pace_does_not_rise_while_the_worker_wants_no_more_jobs(clock: Clock) -> None:
    pace = Pace()
    for _ in range(20):
        clock.tick(pace, wanted_more=False)
    assert pace.awaited == 1.0


def test_pace_of_async_handlers_that_compute_falls_to_the_minimum_and_recovers(
    clock: Clock,
) -> None:
    pace = Pace()
    for _ in range(20):
        clock.tick(pace, late=2 * LATE, use=1.0)
    assert pace.awaited == MIN
    assert pace.plain == 1.0, "expected plain functions, which did not run, to keep their pace"
    for _ in range(20):
        clock.tick(pace, wanted_more=False)
    assert pace.awaited >= 1.0


def test_pace_rises_on_a_busy_cpu_while_the_event_loop_is_prompt(clock: Clock) -> None:
    pace = Pace()
    for _ in range(20):
        clock.tick(pace, late=PROMPT / 2, use=1.0)
    assert pace.awaited == MAX_PACE


@pytest.mark.parametrize(("late", "use"), [(0.0, 1.0), (2 * LATE, 0.5)], ids=["cpu", "lag"])
def test_pace_of_plain_functions_that_compute_falls_without_that_of_async_handlers(
    clock: Clock, late: float, use: float
) -> None:
    pace = Pace()
    for _ in range(4):
        clock.tick(pace, late=late, use=use, threads=10)
    assert pace.plain == MIN
    assert pace.awaited == 1.0
