"""When a worker takes no other jobs, so that a suspect gets its turn."""

from queasy.suspect_room import BEGIN_WITHIN, FIRST_SECONDS, SuspectRoom


def test_worker_that_skipped_no_suspect_makes_no_room() -> None:
    room = SuspectRoom()
    room.update(10.0, skipped=False)
    assert not room.is_made(10.0)
    assert room.next_change(10.0) is None


def test_room_is_made_soon_and_for_a_while() -> None:
    room = SuspectRoom()
    room.update(10.0, skipped=True)
    begin = room.next_change(10.0)
    assert begin is not None
    assert 10.0 <= begin <= 10.0 + BEGIN_WITHIN
    assert room.is_made(begin)
    assert room.next_change(begin) == begin + FIRST_SECONDS
    assert not room.is_made(begin + FIRST_SECONDS)
    room.update(begin + 0.1, skipped=False)
    assert not room.is_made(begin + 0.1)


def test_other_jobs_have_their_turn_between_times_that_are_longer_and_longer() -> None:
    """So a suspect gets its turn however long other runs last, and other jobs get theirs."""
    room, made = SuspectRoom(), 0
    steps = 10_000
    for step in range(steps):
        room.update(step / 10, skipped=True)
        made += room.is_made(step / 10)
    assert 0.2 < made / steps < 0.9, "a pause is half to four times as long as the time before it"
    longest = run = 0
    room = SuspectRoom()
    for step in range(steps):
        room.update(step / 10, skipped=True)
        run = run + 1 if room.is_made(step / 10) else 0
        longest = max(longest, run)
    assert longest >= 64 * FIRST_SECONDS * 10 - 1, "the seventh time begins within 630 seconds"


def test_workers_that_skip_a_suspect_do_not_all_make_room_at_the_same_times() -> None:
    """Bug: four workers made room in phase, and no other job ran for up to 15 seconds."""
    rooms = [SuspectRoom() for _ in range(8)]
    all_made = 0
    for step in range(10_000):
        for room in rooms:
            room.update(step / 10, skipped=True)
        all_made += all(room.is_made(step / 10) for room in rooms)
    assert all_made < 1_500, "the first times are in phase, later ones are not"
