import random

import pytest
from benchmarks.halving import JOBS, MAX_STALLS, ORDERS, Crash, bound


@pytest.mark.parametrize("order", ORDERS)
def test_simulated_crash_clears_all_innocent_jobs_and_gives_up_each_poison(order: str) -> None:
    for seed in range(20):
        poisons = random.Random(seed).sample(range(JOBS), 1 + seed % 3)
        result = Crash(order, poisons, 2).play()
        assert len(result.ends) == JOBS - len(poisons)
        gave_up = {job: stalls for job, stalls in result.stalls.items() if stalls}
        assert gave_up == dict.fromkeys(poisons, MAX_STALLS)


def test_one_poison_of_a_hundred_is_alone_after_seven_deaths() -> None:
    assert Crash("oldest first", [50], 2).play().deaths == 7 + MAX_STALLS


@pytest.mark.parametrize("processes", [2, 4, 8])
def test_no_simulated_order_beats_the_bound(processes: int) -> None:
    for order in ORDERS:
        last = [Crash(order, [place], processes).play().ends[-1] for place in range(JOBS)]
        assert sum(last) / len(last) > bound(processes)
