"""Which children take suspects."""

import pytest

from queasy.worker.supervision.suspect_policy import Candidate, choose_suspect_takers


def candidate(*, takes: bool = False, declined: bool = False, runs: int = 0) -> Candidate:
    return Candidate(takes, declined, True, runs)


@pytest.mark.parametrize(("processes", "takers"), [(1, 1), (2, 1), (3, 2), (4, 2)])
def test_half_of_the_children_take_suspects(processes: int, takers: int) -> None:
    assert sum(choose_suspect_takers([candidate()] * processes, processes)) == takers


def test_the_children_with_the_fewest_runs_are_chosen_and_started_ones_first() -> None:
    starting = Candidate(False, False, False, 0)
    candidates = [candidate(runs=3), starting, candidate(runs=1), candidate(runs=2)]
    assert choose_suspect_takers(candidates, 4) == [False, False, True, True]


def test_a_child_that_declined_is_relieved_by_one_with_fewer_runs() -> None:
    busy = candidate(takes=True, declined=True, runs=3)
    assert choose_suspect_takers([busy, candidate(runs=1)], 2) == [False, True]
    others = [candidate(runs=2), candidate(runs=1)]
    assert choose_suspect_takers([busy, *others], 2) == [False, False, True]
    assert choose_suspect_takers([busy, candidate(runs=3)], 2) == [True, False]
    assert choose_suspect_takers([busy, Candidate(False, False, False, 0)], 2) == [True, False]


def test_a_chosen_child_stays_chosen() -> None:
    candidates = [candidate(takes=True, runs=9), candidate(runs=0)]
    assert choose_suspect_takers(candidates, 2) == [True, False]
