"""The pauses between starts of children that fail."""

from queasy.worker.supervision.start_backoff import FIRST_PAUSE, LONGEST_PAUSE, StartBackoff

NOW = 1000.0


def test_the_pause_before_a_start_doubles_up_to_a_limit() -> None:
    backoff = StartBackoff()
    assert backoff.pause() == 0.0
    for longest in (FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE):
        backoff.failed(NOW)
        assert longest / 2 <= backoff.pause() <= longest
    for _ in range(10):
        backoff.failed(NOW)
    assert LONGEST_PAUSE / 2 <= backoff.pause() <= LONGEST_PAUSE


def test_the_pause_stays_bounded_after_thousands_of_failures() -> None:
    """Without a bound it overflows a float after 1,025 failures, and no child starts again."""
    backoff = StartBackoff()
    for _ in range(5000):
        backoff.failed(NOW)
    assert LONGEST_PAUSE / 2 <= backoff.pause() <= LONGEST_PAUSE


def test_only_a_child_that_started_after_the_last_failure_ends_the_pauses() -> None:
    backoff = StartBackoff()
    backoff.failed(NOW)
    backoff.settled(NOW - 1)
    assert backoff.pause() > 0
    backoff.settled(NOW + 1)
    assert backoff.pause() == 0
