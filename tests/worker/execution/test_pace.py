"""How much a worker takes on, tick by tick. No clock but the one that is told."""

import pytest

from queasy.worker.execution import pace as module
from queasy.worker.execution.pace import LATE, MAX, MIN, PROMPT, Pace


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> "Clock":
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


class Clock:
    """A tenth of a second passes between two ticks, of which some is spent computing."""

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
        full: bool = True,
    ) -> None:
        self.now += 0.1
        self.cpu += 0.1 * use
        pace.tick(late, threads, wanted_more=full)


def test_async_handlers_that_wait_are_packed_up_to_a_hundred(clock: Clock) -> None:
    pace = Pace()
    for _ in range(20):
        clock.tick(pace)
    assert pace.awaited == MAX


def test_nobody_is_packed_who_does_not_ask_for_more(clock: Clock) -> None:
    pace = Pace()
    for _ in range(20):
        clock.tick(pace, full=False)
    assert pace.awaited == 1.0


def test_async_handlers_that_compute_run_one_at_a_time_and_recover(clock: Clock) -> None:
    pace = Pace()
    for _ in range(20):
        clock.tick(pace, late=2 * LATE, use=1.0)
    assert pace.awaited == MIN
    assert pace.plain == 1.0, "it was not their doing"
    for _ in range(20):
        clock.tick(pace, full=False)
    assert pace.awaited >= 1.0


def test_many_tiny_jobs_use_the_whole_cpu_and_are_packed_all_the_same(clock: Clock) -> None:
    pace = Pace()
    for _ in range(20):
        clock.tick(pace, late=PROMPT / 2, use=1.0)
    assert pace.awaited == MAX


@pytest.mark.parametrize(("late", "use"), [(0.0, 1.0), (2 * LATE, 0.5)], ids=["cpu", "lag"])
def test_plain_functions_that_compute_run_one_at_a_time_and_async_ones_do_not_pay(
    clock: Clock, late: float, use: float
) -> None:
    pace = Pace()
    for _ in range(4):
        clock.tick(pace, late=late, use=use, threads=10)
    assert pace.plain == MIN
    assert pace.awaited == 1.0
