"""How many jobs fit, decided without a server."""

from typing import Any

import pytest

from queasy.worker.execution.units import Units
from queasy.worker.intake.capacity import MANY, Room, StarvedNeeds, fits_many
from queasy.worker.intake.decisions import QueueView

CAPACITY = 100


def queue(size: int, **fields: Any) -> QueueView:
    return QueueView(index=0, size=size, **fields)


def room(used: Units | None = None, reserved: Units | None = None) -> Room:
    return Room(CAPACITY, used or Units(), reserved or Units())


def needs(busy: Room, *starved: QueueView) -> StarvedNeeds:
    found = StarvedNeeds()
    for queue in starved:
        found.add(busy, queue)
    return found


@pytest.mark.parametrize(
    ("used", "reserved", "fit"),
    [
        (Units(awaited=30, plain=50), Units(), 2),
        (Units(plain=50), Units(awaited=30), 2),
        (Units(awaited=30), Units(plain=50), 2),
        (Units(), Units(awaited=30, plain=50), 2),
        (Units(awaited=60, plain=60), Units(), 0),
    ],
)
@pytest.mark.parametrize("is_async", [True, False])
def test_async_and_plain_handlers_share_the_capacity(
    used: Units, reserved: Units, fit: int, is_async: bool
) -> None:
    assert room(used, reserved).jobs(queue(10, is_async=is_async)) == fit


def test_idle_worker_takes_no_more_jobs_that_compute_than_it_may_run_at_once() -> None:
    assert room().jobs(queue(10, is_async=False, pace=0.1)) == 1
    assert room().jobs(queue(10, is_async=False, pace=0.3)) == 3
    assert room().jobs(queue(80, is_async=False, pace=0.1)) == 1


def test_pace_limits_async_handlers_by_what_async_handlers_use() -> None:
    slow = room(Units(awaited=20, plain=40), Units(awaited=5, plain=5))
    assert slow.jobs(queue(10, is_async=True, pace=0.35)) == 1
    assert slow.jobs(queue(10, is_async=False)) == 3


def test_starved_queue_of_the_other_kind_is_left_its_room() -> None:
    busy = room(Units(awaited=20), Units(awaited=10))
    starved = queue(60, is_async=False)
    assert busy.jobs(queue(10), needs(busy, starved)) == 1
    assert busy.jobs(queue(10), needs(busy, queue(65, is_async=False))) == 0


def test_starved_async_queue_is_left_what_its_pace_allows() -> None:
    busy = room(Units(awaited=15), Units(awaited=5))
    starved = queue(20, pace=0.5)
    assert busy.jobs(queue(5, pace=0.5), needs(busy, starved)) == 2
    assert busy.jobs(queue(5, is_async=False), needs(busy, starved)) == 10


def test_starved_queue_that_fits_only_into_an_idle_worker_is_left_all_room() -> None:
    busy = room(Units(awaited=10))
    assert busy.jobs(queue(1, pace=0.5), needs(busy, queue(50, pace=0.5, own_units=10))) == 0
    assert busy.jobs(queue(1, pace=0.5), needs(busy, queue(49, pace=0.5, own_units=10))) == 1
    assert busy.jobs(queue(1, is_async=False), needs(busy, queue(51, pace=0.5))) == 0


def test_starved_queue_with_a_low_pace_is_left_its_room_by_one_with_a_higher_pace() -> None:
    """Long functions that compute wait beside short ones, which are taken ahead of their turn."""
    busy = room(Units(plain=5))
    starved = queue(10, is_async=False, pace=0.1)
    assert busy.jobs(queue(1, is_async=False)) > 0
    assert busy.jobs(queue(1, is_async=False), needs(busy, starved)) == 0
    assert room(Units()).jobs(starved) > 0, "it runs once the others have ended"


def test_prefetched_jobs_start_beside_what_others_use_and_reserve() -> None:
    busy = room(Units(awaited=20), Units(awaited=30, plain=10))
    assert busy.jobs_that_start_now(10) == 4
    busy.reserved_ahead = 30
    assert busy.jobs_that_start_now(10) == 7
    assert room(Units(awaited=95)).jobs_that_start_now(10) == 0


def test_queue_that_prefetches_may_request_more_while_prefetched_jobs_arrive() -> None:
    arriving = room(Units(awaited=10), Units(awaited=33))
    assert arriving.jobs(queue(1, prefetches=True, reserved_ahead=33)) == 100
    assert arriving.jobs(queue(1, reserved_ahead=33)) == 0


def test_portions_of_a_third_begin_where_many_jobs_fit() -> None:
    assert fits_many(MANY, 1)
    assert not fits_many(MANY - 1, 1)
    assert Room(MANY, Units(), Units()).portion(queue(1)) == MANY // 3
    assert Room(MANY - 1, Units(), Units()).portion(queue(1)) == (MANY - 1) // 2
